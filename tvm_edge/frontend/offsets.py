"""Inputs and constants that say where segments begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import relax

from tvm_edge.errors import InvalidModelError
from tvm_edge.frontend.operators.base import constant, static_shape
from tvm_edge.ops import SEGMENTED_ARGSORT
from tvm_edge.report import TensorSpec
from tvm_edge.report.tensors import offsets_problem

__all__ = ["mark_offsets"]


def mark_offsets(main: relax.Function, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The signatures of inputs, with what a run has to check of offsets.

    Offsets that the model computes are not checked: sorts stay inside of their tensors whatever
    they are.

    Raises
    ------
    InvalidModelError
        Constant offsets that decrease or leave the data.
    """
    marked = list(inputs)

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
            return
        if expr.op.name != SEGMENTED_ARGSORT:
            return
        data, offsets = expr.args
        shape, known = static_shape(data), constant(offsets)
        if shape is None:
            return
        problem = offsets_problem(known, shape[0]) if known is not None else ""
        if problem:
            raise InvalidModelError(
                f"the offsets of a {SEGMENTED_ARGSORT} are a constant, of which {problem}; "
                "give ascending offsets, one more than there are segments"
            )
        for i, param in enumerate(main.params):
            if param.same_as(offsets):
                shortest = min(shape[0], marked[i].offsets_into or shape[0])
                marked[i] = replace(marked[i], offsets_into=shortest)

    relax.analysis.post_order_visit(main, visit)
    return marked
