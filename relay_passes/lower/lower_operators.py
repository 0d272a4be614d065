"""Lower operators that become kernels of their own, once it is known where they run.

These are vision operators, sorts and scans, which are several kernels, and on a GPU convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["LowerOperators"]


@tvm.transform.module_pass(opt_level=0, name="LowerOperators")
class LowerOperators:
    """Replace operators by calls of the kernels that their families declare (``lower=``).

    Parameters
    ----------
    resolved : ResolvedTarget
        Devices, which decide tiles and loops.
    precision : str
        Precision of products on the first one.
    configs : mapping of ConvWorkload to ConvConfig
        Measured algorithms and knobs of convolutions on that one.
    chooser : DeviceSpec, optional
        Device that algorithms are chosen for, where that is not the first one.
    """

    def __init__(
        self,
        resolved: ResolvedTarget,
        precision: str = "float32",
        configs: Mapping[ConvWorkload, ConvConfig] | None = None,
        chooser: DeviceSpec | None = None,
    ) -> None:
        self.resolved, self.precision, self.configs = resolved, precision, configs or {}
        self.chooser = chooser

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        lowerer = _Lowerer(mod, self)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                lowerer.builder_.update_func(gvar, lowerer.visit_expr(func))
        return lowerer.builder_.get()


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, options: Any) -> None:
        super().__init__(mod)
        self._options = options

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        lower = of_call(op).lower
        if lower is None:
            return op
        resolved = self._options.resolved
        # A constant is on no device.
        placed = (vdevice_of(arg.ty) for arg in op.args)
        device = next((found for found in placed if found is not None), None)
        on_host = device is not None and device.target.kind.name != resolved.kind
        spec = (resolved.cpu if on_host else resolved).spec
        site = KernelSite(self.builder_, device, spec)
        if not on_host:
            options = self._options
            site = replace(
                site,
                precision=options.precision,
                configs=options.configs,
                chooser=options.chooser,
            )
        return lower(site, op)
