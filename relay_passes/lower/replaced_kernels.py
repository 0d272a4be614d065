"""Modules with other kernels in the place of some, which are given something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, is_call

__all__ = ["Replaced", "with_kernels"]


@dataclass(frozen=True)
class Replaced:
    """A kernel in the place of another.

    Attributes
    ----------
    name : str
        Kernels of one name are one.
    func : PrimFunc
    given : callable
        Returns what a call gives it, of the call of the other.
    """

    name: str
    func: tirx.PrimFunc
    given: Callable[[relax.Call], Sequence[relax.Expr]]


def with_kernels(mod: tvm.IRModule, kernels: Mapping[ir.GlobalVar, Replaced]) -> tvm.IRModule:
    """Return a module whose calls of some kernels are calls of others."""
    return _Calls(mod, kernels).module()


@mutator
class _Calls(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kernels: Mapping[ir.GlobalVar, Replaced]) -> None:
        # A name has the type of its kernel as it was, and types are never changed.
        self._kernels = kernels
        self._new: dict[str, ir.GlobalVar] = {}
        functions = {gvar: func for gvar, func in mod.functions_items() if gvar not in kernels}
        for kernel in kernels.values():
            if kernel.name not in self._new:
                gvar = self._new[kernel.name] = ir.GlobalVar(kernel.name)
                relax.expr._update_type(gvar, kernel.func.ty)
                functions[gvar] = kernel.func
        self._mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        super().__init__(self._mod)

    def module(self) -> tvm.IRModule:
        for gvar, func in self._mod.functions_items():
            if isinstance(func, relax.Function):
                self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = super().visit_call_(op)
        if not is_call(call, *KERNEL_CALLS) or call.args[0] not in self._kernels:
            return call
        kernel = self._kernels[call.args[0]]
        taken = [self._new[kernel.name], relax.Tuple(list(kernel.given(call)))]
        return relax.Call(call.op, taken, call.attrs, call.ty_args, call.span)
