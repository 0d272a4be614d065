"""Reductions. TVM's lose NaN and infinity in a maximum, and know no axes without elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from tvm_edge.frontend.operators.base import (
    Attributes,
    Converter,
    constant,
    operand,
    scalar,
    static_shape,
)

__all__ = ["REDUCTIONS"]

# Expression, axes, whether reduced axes stay with length 1.
Reduction = Callable[[relax.BlockBuilder, relax.Expr, list[int], bool], relax.Expr]


def _extremum(sign: int) -> Reduction:
    reduce = relax.op.max if sign > 0 else relax.op.min

    def of(bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
        dtype = str(x.ty.dtype)
        if dtype == "bool":
            small = bb.emit(relax.op.astype(x, "int8"))
            return relax.op.astype(reduce(small, axes, keep), "bool")
        if "float" not in dtype:
            return reduce(x, axes, keep)
        if dtype == "bfloat16":  # of which TVM cannot tell a NaN
            wide = bb.emit(relax.op.astype(x, "float32"))
            return relax.op.astype(of(bb, wide, axes, keep), dtype)
        best = reduce(x, axes, keep)
        # TVM begins with the farthest finite number, and its comparison passes by a NaN.
        farthest = scalar(-sign * np.inf, x)
        known = relax.op.where(
            relax.op.equal(x, farthest), relax.const(0, "int8"), relax.const(1, "int8")
        )
        kinds = bb.emit(relax.op.where(relax.op.isnan(x), relax.const(2, "int8"), known))
        kind = bb.emit(relax.op.max(kinds, axes, keep))
        best = bb.emit(relax.op.where(relax.op.equal(kind, relax.const(0, "int8")), farthest, best))
        no_number = relax.op.equal(kind, relax.const(2, "int8"))
        return relax.op.where(no_number, scalar(float("nan"), x), best)

    return of


def _sum(_bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.sum(x, axes, keep)


def _mean(_bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.mean(x, axes, keep)


def _prod(_bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.prod(x, axes, keep)


def _l1(_bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.sum(relax.op.abs(x), axes, keep)


def _l2(bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    dtype = str(x.ty.dtype)
    wide = x if "float" in dtype else bb.emit(relax.op.astype(x, "float64"))
    norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(wide, wide), axes, keep))
    return norm if wide is x else relax.op.astype(norm, dtype)


def _sum_square(_bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.sum(relax.op.multiply(x, x), axes, keep)


def _log_sum(_bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    return relax.op.log(relax.op.sum(x, axes, keep))


def _log_sum_exp(bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keep: bool) -> relax.Expr:
    """Less the maximum, which an exponential would overflow; an infinite one is left alone."""
    most = bb.emit(relax.op.max(x, axes, True))
    most = bb.emit(relax.op.where(relax.op.isinf(most), scalar(0.0, x), most))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, most)), axes, keep)
    if not keep:
        most = relax.op.squeeze(most, axes)
    return relax.op.add(relax.op.log(total), most)


# The operator, the opset that made its axes an input, and what it is of no elements.
_TABLE: dict[str, tuple[Reduction, int, float]] = {
    "ReduceL1": (_l1, 18, 0.0),
    "ReduceL2": (_l2, 18, 0.0),
    "ReduceLogSum": (_log_sum, 18, -np.inf),
    "ReduceLogSumExp": (_log_sum_exp, 18, -np.inf),
    "ReduceMax": (_extremum(1), 18, -np.inf),
    "ReduceMean": (_mean, 18, np.nan),
    "ReduceMin": (_extremum(-1), 18, np.inf),
    "ReduceProd": (_prod, 18, 1.0),
    "ReduceSum": (_sum, 13, 0.0),
    "ReduceSumSquare": (_sum_square, 18, 0.0),
}


def _reduction(name: str) -> Converter:
    reduce, axes_are_input, neutral = _TABLE[name]

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr | None:
        x = inputs[0]
        given = attrs.get("axes")
        if attrs["opset"] >= axes_are_input:
            axes_input = operand(inputs, 1)
            known = constant(axes_input)
            if axes_input is not None and known is None:
                raise NotImplementedError(f"{name} needs constant axes")
            given = known.reshape(-1).tolist() if known is not None else None
        rank, keep = int(x.ty.ndim), bool(attrs.get("keepdims", 1))
        if not given and not attrs.get("noop_with_empty_axes", 0):
            given = range(rank)
        axes = sorted({int(axis) % max(rank, 1) for axis in given or ()})
        shape = static_shape(x)
        if shape is not None and 0 in shape:
            return _of_nothing(x, shape, axes, keep, neutral)
        if rank == 0 or not axes:
            # Nothing is summed up, and what goes with the sum is left: on an axis of length 1.
            wide = bb.emit(relax.op.expand_dims(x, 0))
            return bb.normalize(reduce(bb, wide, [0], False))
        return bb.normalize(reduce(bb, x, axes, keep))

    return convert


def _of_nothing(
    x: relax.Expr, shape: Sequence[int], axes: Sequence[int], keep: bool, neutral: float
) -> relax.Expr:
    """The neutral element, or no elements: a constant either way."""
    dtype = str(x.ty.dtype)
    if dtype == "bool":
        value: float | int = neutral > 0
    elif "float" in dtype or np.isfinite(neutral):
        value = neutral
    else:
        limits = np.iinfo(dtype)
        value = limits.max if neutral > 0 else limits.min
    left = [1 if i in axes else length for i, length in enumerate(shape)]
    if not keep:
        left = [length for i, length in enumerate(shape) if i not in axes]
    return relax.const(np.full(left, value).astype(dtype), dtype)


REDUCTIONS: dict[str, Converter] = {name: _reduction(name) for name in _TABLE}
