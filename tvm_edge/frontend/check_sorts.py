"""Checks of the sorts of a Relax module, before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import relax

from tvm_edge.errors import InvalidModelError, UnsupportedOperatorError
from tvm_edge.ops import SEGMENTED_ARGSORT, UNIQUE
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape
from tvm_edge.report import TensorSpec
from tvm_edge.report.tensors import offsets_problem
from tvm_edge.schedules.vision.keys import SORTABLE

__all__ = ["check_sorts"]

_SORTS = (SEGMENTED_ARGSORT, UNIQUE, "relax.argsort", "relax.sort", "relax.topk")


def check_sorts(main: relax.Function, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Add to the signatures of inputs what a run has to check of offsets of segments.

    Offsets that the model computes are not checked: sorts stay inside of their tensors whatever
    they are.

    Raises
    ------
    InvalidModelError
        Constant offsets that decrease or leave the data, a top-k of more elements than there are.
    UnsupportedOperatorError
        Elements of a type that has no order here, such as bfloat16.
    """
    marked = list(inputs)
    unsupported: list[str] = []
    problems: list[str] = []  # what is raised inside of TVM's visitor comes out as RuntimeError

    def visit(expr: relax.Expr) -> None:
        name = _name(expr)
        if name in _SORTS and str(expr.args[0].ty.dtype) not in SORTABLE:
            unsupported.append(f"{name} of {expr.args[0].ty.dtype}")
        shape = static_shape(expr.args[0].ty) if name in (SEGMENTED_ARGSORT, "relax.topk") else None
        if shape is None:
            return
        if name == "relax.topk":
            k, length = int(expr.attrs.k), shape[int(expr.attrs.axis)]
            if k > length:
                problems.append(
                    f"a topk asks for the first {k} of {length} elements; "
                    "give it a k from 1 to the length of its axis"
                )
            return
        offsets = expr.args[1]
        known = constant_of(offsets)
        problem = offsets_problem(known, shape[0]) if known is not None else ""
        if problem:
            problems.append(
                f"the offsets of a {SEGMENTED_ARGSORT} are a constant, of which {problem}; "
                "give ascending offsets, one more than there are segments"
            )
        for i, param in enumerate(main.params):
            if param.same_as(offsets):
                shortest = min(shape[0], marked[i].offsets_into or shape[0])
                marked[i] = replace(marked[i], offsets_into=shortest)

    relax.analysis.post_order_visit(main, visit)
    if unsupported:
        raise UnsupportedOperatorError(
            f"no implementation of {'; '.join(dict.fromkeys(unsupported))}; convert it to float32",
            sorted(set(unsupported)),
        )
    if problems:
        raise InvalidModelError(problems[0])
    return marked


def _name(expr: relax.Expr) -> str:
    is_operator = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
    return str(expr.op.name) if is_operator else ""
