"""Lower copies between devices to calls of the runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.instructions.shared_copies import shared_copies
from tvm_edge.relay_passes.instructions.split_reads import split_reads
from tvm_edge.relay_passes.ir.copy_functions import COPY, HAND_OVER, READ
from tvm_edge.relay_passes.ir.expressions import rewrite_functions

__all__ = ["LowerCopies"]


@tvm.transform.module_pass(opt_level=0, name="LowerCopies")
class LowerCopies:
    """Make ``to_vdevice`` a packed call that copies into a tensor of the other device.

    TVM's own lowering writes the number of the device into the code, and a model could then run
    on no other device of the kind than the first.

    Parameters
    ----------
    shared : collection of {"read", "write"}
        Accesses of the host to tensors of the device where they are, instead of copying them.
    overlapped : bool
        Whether the GPU works while the CPU waits for one of its tensors.
    """

    def __init__(self, shared: Collection[str] = (), *, overlapped: bool = True) -> None:
        self._shared = shared
        self._overlapped = overlapped

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        shared = shared_copies(mod, self._shared)
        mod = (split_reads(mod) if self._overlapped else mod).clone()
        return rewrite_functions(mod, lambda func: _Lowerer(mod, shared).visit_expr(func))


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, shared: Mapping[relax.Var, str]) -> None:
        super().__init__(mod)
        self._shared = shared
        self._way: str | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._way = self._shared.get(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not isinstance(op.op, tvm.ir.Op) or op.op.name != "relax.to_vdevice":
            return op
        if self._way == READ:
            return relax.op.call_pure_packed(READ, op.args[0], ty_args=op.ty)
        copy = HAND_OVER if self._way == HAND_OVER else COPY
        return relax.op.call_dps_packed(copy, relax.Tuple([op.args[0]]), op.ty)
