"""Workspace of kernels as further results that nobody reads.

So the memory planner knows it, shares it between kernels, and nothing is allocated in the run.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, is_call
from tvm_edge.relay_passes.ir.locations import emit_at
from tvm_edge.schedules.base import workspace_of
from tvm_edge.schedules.open_lengths import wide

__all__ = ["AddWorkspace"]


@tvm.transform.module_pass(opt_level=0, name="AddWorkspace")
class AddWorkspace:
    """Have calls of scheduled kernels give them their workspace."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        wanting = [gvar for gvar, func in mod.functions_items() if workspace_of(func)]
        if not wanting:
            return mod
        # A name has the type of its kernel as it was, and types are never changed.
        renamed = {gvar: tvm.ir.GlobalVar(gvar.name_hint) for gvar in wanting}
        functions = {renamed.get(gvar, gvar): func for gvar, func in mod.functions_items()}
        for gvar in renamed.values():
            relax.expr._update_type(gvar, functions[gvar].ty)
        updated = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        rewriter = _Rewriter(updated, renamed)
        for gvar, func in functions.items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return rewriter.builder_.get()


@mutator
class _Rewriter(PyExprMutator):
    def __init__(
        self, mod: tvm.IRModule, renamed: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar]
    ) -> None:
        super().__init__(mod)
        self._mod, self._renamed = mod, renamed
        self._var: relax.Var | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not is_call(op, *KERNEL_CALLS):
            return op
        if op.args[0] not in self._renamed:
            return op
        kernel, result = self._renamed[op.args[0]], op.ty_args[0]
        several = isinstance(result, relax.TupleType)
        own = list(result.fields) if several else [result]
        place = _lengths(self._mod[kernel], op)
        room = [
            relax.TensorType(
                [wide(dim, place) for dim in buffer.shape], str(buffer.dtype), own[0].vdevice
            )
            for buffer in workspace_of(self._mod[kernel])
        ]
        results = [*own, *room]
        if is_call(op, "relax.call_tir"):
            call = relax.call_tir(kernel, op.args[1], results)
        else:
            places = [*op.attrs.inplace_indices, *(-1 for _ in room)]  # -1: a tensor of its own
            call = relax.op.call_tir_inplace(kernel, op.args[1], places, results)
        made = emit_at(self.builder_, call, self._var)
        items = [relax.TupleGetItem(made, index) for index in range(len(own))]
        return relax.Tuple([self.builder_.emit(each) for each in items]) if several else items[0]


def _lengths(kernel: tirx.PrimFunc, call: relax.Call) -> Callable[[tirx.Var], tirx.Expr]:
    """Return a function from a kernel's variables to what a call has in their place."""
    found: dict[tirx.Var, tirx.Expr] = {}
    given = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else [call.args[1]]
    results = call.ty_args[0]
    made = list(results.fields) if isinstance(results, relax.TupleType) else [results]
    types = [*given, *made]
    for param, argument in zip(kernel.params, types, strict=False):  # workspace comes last
        if not isinstance(param.ty, tirx.BufferType):
            found[param] = argument
            continue
        tensor = argument if isinstance(argument, relax.TensorType) else argument.ty
        lengths = list(tensor.shape.values) if tensor.shape is not None else []
        if len(lengths) != len(param.shape):
            continue  # a result in its place in a larger tensor
        for dim, length in zip(param.shape, lengths, strict=True):
            if isinstance(dim, tirx.Var):
                found.setdefault(dim, length)
    return found.__getitem__
