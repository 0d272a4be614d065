"""Recurrent layers step by step on GPUs, where a kernel that runs all steps has few work-items."""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.ops.recurrence import RECURRENCE
from tvm_edge.ops.recurrent_activations import activation
from tvm_edge.ops.recurrent_steps import MOST_STEPS, Direction, Products, part_of, unrolled
from tvm_edge.relay_passes.ir.expressions import is_call, rewrite_functions, static_shape

__all__ = ["UnrollRecurrences"]


@tvm.transform.module_pass(opt_level=0, name="UnrollRecurrences")
class UnrollRecurrences:
    """Write out the steps of recurrent layers.

    Layers of more than 1024 steps, and of a batch or number of steps that only the run tells, stay
    one operator, which a CPU runs.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda func: _Unroller(mod).visit_expr(func))


@mutator
class _Unroller(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not is_call(op, RECURRENCE):
            return op
        shape = static_shape(op.args[0].ty)
        return op if shape is None or shape[0] > MOST_STEPS else self._unrolled(op, shape)

    def _unrolled(self, op: relax.Call, shape: tuple[int, ...]) -> relax.Expr:
        bb, how = self.builder_, json.loads(str(op.attrs["how"]))
        products, weights, bias, *rest = op.args
        peepholes = rest.pop(0) if how["has_peepholes"] else None
        lengths = rest.pop(0) if how["has_lengths"] else None
        directions, wide, hidden = static_shape(weights.ty) or ()
        dtype = str(products.ty.dtype)
        settings = {name: how[name] for name in ("clip", "linear_before_reset", "input_forget")}
        rows, last = [], []
        for side in range(directions):
            columns = [side * wide], [(side + 1) * wide]
            direction = Direction(
                kind=how["kind"],
                added=bb.emit(relax.op.strided_slice(products, [2], *columns)),
                recurrence=bb.emit(relax.op.permute_dims(part_of(bb, weights, side))),
                bias=part_of(bb, bias, side),
                products=Products(),
                peepholes=None if peepholes is None else part_of(bb, peepholes, side),
                activations=[
                    activation(name, alpha, beta, dtype)
                    for name, alpha, beta in how["activations"][side]
                ],
                hidden=hidden,
                backwards=how["backwards"][side],
                **settings,
            )
            state: Any = [part_of(bb, each, side) for each in rest]
            row, state = unrolled(bb, direction, state, lengths, shape[0])
            rows.append(row)
            last.append(state)
        ends = [bb.emit(relax.op.stack([s[i] for s in last], 0)) for i in range(len(rest))]
        return relax.Tuple([bb.emit(relax.op.stack(rows, 1)), *ends])
