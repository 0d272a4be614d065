"""Lower vision operators, sorts and scans to kernels, once it is known where they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import ResolvedTarget
from tvm_edge.ops import NON_MAX_SUPPRESSION, SCAN, SEGMENTED_ARGSORT, UNIQUE
from tvm_edge.relay_passes.kernel_site import KernelSite
from tvm_edge.relay_passes.lower_nms import lower_nms
from tvm_edge.relay_passes.lower_scan import lower_cumprod, lower_cumsum, lower_scan
from tvm_edge.relay_passes.lower_sort import (
    lower_argsort,
    lower_segmented_argsort,
    lower_sort,
    lower_top_k,
    lower_unique,
)
from tvm_edge.relay_passes.vdevices import vdevice_of

__all__ = ["LowerVision"]

_LOWERINGS: Mapping[str, Callable[[KernelSite, relax.Call], relax.Expr]] = {
    NON_MAX_SUPPRESSION: lower_nms,
    SCAN: lower_scan,
    SEGMENTED_ARGSORT: lower_segmented_argsort,
    UNIQUE: lower_unique,
    "relax.argsort": lower_argsort,
    "relax.cumprod": lower_cumprod,
    "relax.cumsum": lower_cumsum,
    "relax.sort": lower_sort,
    "relax.topk": lower_top_k,
}


@tvm.transform.module_pass(opt_level=0, name="LowerVision")
class LowerVision:
    """Replace composite operators by calls of their kernels.

    Parameters
    ----------
    resolved : ResolvedTarget
        The devices, which decide tiles and loops.
    """

    def __init__(self, resolved: ResolvedTarget) -> None:
        self.resolved = resolved

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        lowerer = _Lowerer(mod, self.resolved)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                lowerer.builder_.update_func(gvar, lowerer.visit_expr(func))
        return lowerer.builder_.get()


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, resolved: ResolvedTarget) -> None:
        super().__init__(mod)
        self._resolved = resolved

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not isinstance(op.op, tvm.ir.Op) or op.op.name not in _LOWERINGS:
            return op
        resolved = self._resolved
        device = vdevice_of(op.args[0].ty)
        on_host = device is not None and device.target.kind.name != resolved.kind
        spec = (resolved.cpu if on_host else resolved).spec
        return _LOWERINGS[op.op.name](KernelSite(self.builder_, device, spec), op)
