"""Reductions over axes.

TVM's lose NaN and infinity in a maximum, and know no axes without elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.arg_extrema import arg_extremum
from tvm_edge.ops.converter import Attributes, Converter, operand, scalar
from tvm_edge.ops.flops import per_element
from tvm_edge.ops.registry import FOLLOWS, PERFORMS, Fitness, register, relax_names
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape

__all__: list[str] = []

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
    """Subtract the maximum, whose exponential overflows; leave an infinite one alone."""
    most = bb.emit(relax.op.max(x, axes, True))
    most = bb.emit(relax.op.where(relax.op.isinf(most), scalar(0.0, x), most))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, most)), axes, keep)
    if not keep:
        most = relax.op.squeeze(most, axes)
    return relax.op.add(relax.op.log(total), most)


def _reduction(name: str, reduce: Reduction, axes_are_input: int, neutral: float) -> Converter:
    """Make a converter.

    Parameters
    ----------
    name : str
    reduce : callable
    axes_are_input : int
        The opset that made the axes an input.
    neutral : float
        The result of no elements.
    """

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr | None:
        x = inputs[0]
        given = attrs.get("axes")
        if attrs["opset"] >= axes_are_input:
            axes_input = operand(inputs, 1)
            known = constant_of(axes_input)
            if axes_input is not None and known is None:
                raise NotImplementedError(f"{name} needs constant axes")
            given = known.reshape(-1).tolist() if known is not None else None
        rank, keep = int(x.ty.ndim), bool(attrs.get("keepdims", 1))
        if not given and not attrs.get("noop_with_empty_axes", 0):
            given = range(rank)
        axes = sorted({int(axis) % max(rank, 1) for axis in given or ()})
        shape = static_shape(x.ty)
        if shape is not None and 0 in shape:
            return _of_nothing(x, shape, axes, keep, neutral)
        if rank == 0 or not axes:
            # Nothing is reduced, and what comes with the reduction is left: on an axis of length 1.
            wide = bb.emit(relax.op.expand_dims(x, 0))
            return bb.normalize(reduce(bb, wide, [0], False))
        return bb.normalize(reduce(bb, x, axes, keep))

    return convert


def _of_nothing(
    x: relax.Expr, shape: Sequence[int], axes: Sequence[int], keep: bool, neutral: float
) -> relax.Expr:
    """Return the neutral element, or no elements: a constant either way."""
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


# Reduction, opset that made the axes an input, result of no elements, operations per element.
_TABLE: dict[str, tuple[Reduction, int, float, int]] = {
    "ReduceL1": (_l1, 18, 0.0, 1),
    "ReduceL2": (_l2, 18, 0.0, 2),
    "ReduceLogSum": (_log_sum, 18, -np.inf, 1),
    "ReduceLogSumExp": (_log_sum_exp, 18, -np.inf, 2),
    "ReduceMax": (_extremum(1), 18, -np.inf, 1),
    "ReduceMean": (_mean, 18, np.nan, 1),
    "ReduceMin": (_extremum(-1), 18, np.inf, 1),
    "ReduceProd": (_prod, 18, 1.0, 1),
    "ReduceSum": (_sum, 13, 0.0, 1),
    "ReduceSumSquare": (_sum_square, 18, 0.0, 2),
}

for _name, (_reduce, _opset, _neutral, _operations) in _TABLE.items():
    register(
        _name,
        convert=_reduction(_name, _reduce, _opset, _neutral),
        forming=(1,),
        flops=per_element(_operations),
    )
register("ArgMax", "ArgMin", flops=per_element(1))

register(*relax_names("argmax argmin"), legalize=arg_extremum)
register(*relax_names("argmax argmin max mean min prod sum"), gpu=PERFORMS, flops=per_element(1))
register(*relax_names("collapse_sum_like collapse_sum_to std variance"), gpu=PERFORMS)
register(*relax_names("max mean min"), float16=FOLLOWS)
register("relax.mean", blocks="image")
# TVM's kernel calls a sort of the CPU's.
register("relax.median", gpu=Fitness(impossible="TVM's form of it has no GPU kernel"))
