"""Return the result of every kernel beside the model's own, to be compared with a reference.

The pass comes after every decision about the graph and before kernels are scheduled: the kernels
stay those of the build without it, and no result is written over.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, bindings_of, is_call
from tvm_edge.relay_passes.ir.locations import kernel_of

__all__ = ["HandedOut", "hand_out_results"]


@dataclass(frozen=True)
class HandedOut:
    """A result that ``main`` returns after the model's own, in their order.

    Attributes
    ----------
    kernel : int
        The number of the kernel.
    field : int
        Which of its results.
    type : TensorType
    """

    kernel: int
    field: int
    type: relax.TensorType


def hand_out_results(mod: tvm.IRModule) -> tuple[tvm.IRModule, tuple[HandedOut, ...]]:
    """Return the results of the kernels that ``main`` calls, those in branches excepted."""
    gvar = mod.get_global_var("main")
    main = mod[gvar]
    made = {binding.var: binding.value for binding in bindings_of(main)}
    kernels = [var for var, value in made.items() if is_call(value, *KERNEL_CALLS)]
    own = _fields(main.body.body, made)
    whole = [var for var in (*own, *kernels) if isinstance(var, relax.DataflowVar)]
    renamed = {var: relax.Var(var.name, var.ty, var.span) for var in whole}
    visible = _Visible(renamed).visit_expr(main)
    builder = relax.BlockBuilder()
    taken: list[relax.Binding] = []
    results: list[relax.Expr] = [renamed.get(field, field) for field in own]
    handed = []
    for var in kernels:
        number = kernel_of(var)
        assert number is not None, "kernels are numbered before"
        call = renamed.get(var, var)
        if isinstance(var.ty, relax.TensorType):
            results.append(call)
            handed.append(HandedOut(number, 0, var.ty))
            continue
        for index, ty in enumerate(var.ty.fields):
            item = builder.normalize(relax.TupleGetItem(call, index))
            taken.append(relax.VarBinding(relax.Var(f"{var.name}_{index}", item.ty), item))
            results.append(taken[-1].var)
            handed.append(HandedOut(number, index, ty))
    blocks = list(visible.body.blocks)
    if taken:
        blocks[-1] = type(blocks[-1])([*blocks[-1].bindings, *taken])
    returned = builder.normalize(relax.Tuple(results))
    body = relax.SeqExpr(blocks, returned)
    relax.expr._update_type(body, returned.ty)
    mod = mod.clone()
    mod[gvar] = relax.Function(main.params, body, None, main.is_pure, main.attrs)
    return mod, tuple(handed)


def _fields(returned: relax.Expr, made: dict[relax.Var, relax.Expr]) -> list[relax.Expr]:
    """The results of a function one by one."""
    whole = made.get(returned, returned) if isinstance(returned, relax.Var) else returned
    if isinstance(whole, relax.Tuple):
        return list(whole.fields)
    if isinstance(returned.ty, relax.TupleType):
        return [relax.TupleGetItem(returned, i) for i in range(len(returned.ty.fields))]
    return [returned]


@mutator
class _Visible(PyExprMutator):
    """Makes variables of dataflow blocks visible outside of them."""

    def __init__(self, renamed: dict[relax.Var, relax.Var]) -> None:
        super().__init__(None)
        self._renamed = renamed

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        new = self._renamed.get(var, var)
        if new is not var:
            self.set_var_remap(var, new)
        return new
