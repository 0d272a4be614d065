"""Give each kernel the device of its operands.

``LegalizeOps`` does so for operators whose rule passes its tensors to ``call_te`` by position; for
others (convolutions pass them by name) the result loses its device, and so does all after it.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.vdevices import (
    is_same,
    kernel_of,
    on_vdevice,
    vdevice_of,
    vdevices_of,
)
from tvm_edge.relay_passes.place.label_operators import operands

__all__ = ["SpreadVDevices"]


@tvm.transform.module_pass(opt_level=0, name="SpreadVDevices")
class SpreadVDevices:
    """Annotate results of kernels, and have a kernel that two devices call once for each."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if not vdevices_of(mod):
            return mod
        spreader = _Spreader(mod)
        gvar = mod.get_global_var("main")
        spreader.builder_.update_func(gvar, spreader.visit_expr(mod[gvar]))
        return relax.transform.DeadCodeElimination()(spreader.builder_.get())


@mutator
class _Spreader(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._first = vdevices_of(mod)[0]
        self._kernels: dict[tuple[str, str], tvm.ir.GlobalVar] = {}

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        func = kernel_of(self._mod, op)
        op = super().visit_call_(op)
        # A kernel of lengths alone has no operands, and the placement's device of its result.
        placed = (vdevice_of(ty) for ty in (*(var.ty for var in operands(op)), *op.ty_args))
        device = next((v for v in placed if v is not None), None)
        if func is None or device is None:
            return op
        gvar, own = op.args[0], func.attrs.get("target")
        kind = str(device.target.kind.name)
        missing = own is None and not is_same(device, self._first)
        if missing or (own is not None and own.kind.name != kind):
            key = (gvar.name_hint, kind)
            if key not in self._kernels:
                copy = func.with_attr("target", device.target)
                self._kernels[key] = self.builder_.add_func(copy, f"{gvar.name_hint}_{kind}")
            gvar = self._kernels[key]
        types = [on_vdevice(ty, device) for ty in op.ty_args]
        return self.builder_.normalize(relax.Call(op.op, [gvar, *op.args[1:]], op.attrs, types))
