"""Resize to, or of, lengths that only the run tells.

The arithmetic is that of :mod:`tvm_edge.schedules.vision.resize_taps`, in expressions: each axis is
a weighted sum of the operand's elements, and the kernel calculates where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from tvm_edge.ops.elements import OPAQUE, plain, read_by_host
from tvm_edge.ops.resized_axes import (
    ResizedAxis,
    axes_by_scales,
    axes_by_sizes,
    int64,
    named_length,
    scale_vector,
)
from tvm_edge.schedules.vision.resize_taps import LONGEST, Filter

__all__ = ["ENLARGED", "resize_in_run"]

_REACH = {"linear": 1, "cubic": 2}

_PICTURE = (2, 3)
"""Axes of lines and columns."""

ENLARGED = ("nearest_neighbor", "asymmetric", "floor")
"""Method, coordinates and rounding of an operator that repeats pixels."""


def resize_in_run(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    named: Sequence[int],
    how: Filter,
    *,
    scales: relax.Expr | None = None,
    known: Sequence[float | None] = (),
    sizes: Sequence[Any] | None = None,
    policy: str = "stretch",
    roi: relax.Expr | None = None,
    outside: float = 0.0,
) -> relax.Expr:
    """Resize axes by expressions.

    Parameters
    ----------
    bb : relax.BlockBuilder
    x : relax.Expr
        Of a known rank.
    named : sequence of int
        Axes that `scales`, `sizes` and `roi` are of.
    how : Filter
    scales : relax.Expr, optional
        Vector of scales.
    known : sequence of (float or None)
        Those of `scales` that are constant.
    sizes : sequence of (int or tirx.Expr), optional
        New lengths, in place of scales.
    policy : {"stretch", "not_larger", "not_smaller"}
        What becomes of the aspect ratio with `sizes`.
    roi : relax.Expr, optional
        All starts, then all ends, for ``tf_crop_and_resize``.
    outside : float
        Value of a crop beyond the picture.

    Raises
    ------
    ValueError
        A constant length is impossible, or operands have other lengths than `named`.
    """
    shape = [plain(length) for length in x.ty.shape]
    crops = how.coordinates == "tf_crop_and_resize"
    if scales is not None:
        scales = scale_vector(bb, scales, len(named), "scales")
        axes = axes_by_scales(bb, shape, named, scales, known)
    else:
        assert sizes is not None
        if len(sizes) != len(named):
            raise ValueError(f"a Resize of {len(named)} axes has {len(sizes)} sizes")
        axes = axes_by_sizes(bb, shape, named, sizes, policy)
    if crops:
        if roi is None:
            raise ValueError("a Resize with tf_crop_and_resize has no roi")
        roi = scale_vector(bb, roi, 2 * len(named), "roi")
        axes = [
            ResizedAxis(a.number, a.old, a.new, a.given, a.scale, a.ratio, i, i + len(named))
            for i, a in enumerate(axes)
        ]
    else:
        roi = None
        axes = [axis for axis in axes if not axis.is_kept]
    dtype = str(x.ty.dtype)
    calculated = dtype if "float" in dtype or how.mode == "nearest" else "float32"
    if calculated != dtype and axes:
        x = bb.emit(relax.op.astype(x, calculated))
    settings = _Settings(how, scales, roi)
    repeats = all(axis.number in _PICTURE and axis.repeats(how) for axis in axes)
    if repeats and axes and len(shape) == 4:
        return _enlarged(x, shape, axes)
    for axis in axes:
        x = _resize_axis(bb, x, axis, settings)
    if crops:
        x = _with_outside(bb, x, axes, settings, outside)
    return x if str(x.ty.dtype) == dtype else bb.emit(relax.op.astype(x, dtype))


@dataclass(frozen=True)
class _Settings:
    """Filter of a Resize, and its operands of fractions."""

    how: Filter
    scales: relax.Expr | None
    roi: relax.Expr | None


class _Line:
    """An axis in a kernel: where each element of the result comes from."""

    def __init__(
        self, axis: ResizedAxis, how: Filter, numbers: Sequence[Any], tables: Sequence[Any]
    ):
        self.how = how
        self.old, self.new, over, under = numbers
        tables = list(tables)
        scales = tables.pop(0) if axis.given is not None and axis.scale is None else None
        roi = tables.pop(0) if axis.start is not None else None
        if axis.ratio is not None:
            self.scale = _real(over) / _real(under)
        elif scales is None:
            self.scale = tirx.const(axis.scale, "float32")
        else:
            self.scale = scales(axis.given)
        self.part = None if roi is None else (roi(axis.start), roi(axis.end))

    def position(self, y: tirx.Expr) -> tirx.Expr:
        """Return the position in the operand of an element of the result, in float32."""
        old, scale = _real(self.old), self.scale
        # TVM's analysis of intervals fails on one of fractions that is divided; a call is none.
        y = tirx.abs(_real(y))
        zero, half, one = (tirx.const(value, "float32") for value in (0, 0.5, 1))
        half_pixel = (y + half) / scale - half
        several = self.new > 1
        last = _real(tirx.max(self.new - 1, tirx.const(1, "int64")))
        coordinates = self.how.coordinates
        if coordinates == "asymmetric":
            return y / scale
        if coordinates == "half_pixel":
            return half_pixel
        if coordinates == "tf_half_pixel_for_nn":
            return (y + half) / scale
        if coordinates == "pytorch_half_pixel":
            return tirx.Select(several, half_pixel, zero)
        if coordinates == "half_pixel_symmetric":
            offset = old * half * (one - _real(self.new) / (scale * old))
            return offset + (y + half) / scale - half
        if coordinates == "align_corners":
            return tirx.Select(several, y * (old - one) / last, zero)
        if self.part is not None:
            start, end = self.part
            inner = start * (old - one) + y * (end - start) * (old - one) / last
            return tirx.Select(several, inner, half * (start + end) * (old - one))
        raise NotImplementedError(f"Resize with {coordinates}")

    def is_inside(self, y: tirx.Expr) -> tirx.Expr:
        """Return whether a position is inside of the operand; NaN is not."""
        position = self.position(y)
        return tirx.all(position >= 0, position <= _real(self.old - 1))

    def held(self, y: tirx.Expr) -> tirx.Expr:
        """Return a position that is an integer's, however far outside; NaN is on the left."""
        position = self.position(y)
        low, high = (tirx.const(value, "float32") for value in (-LONGEST, 2 * LONGEST))
        bounded = tirx.Select(position <= high, position, high)
        return tirx.Select(position >= low, bounded, low)

    def nearest(self, y: tirx.Expr) -> tirx.Expr:
        """Return the index of the nearest element."""
        position, half = self.held(y), tirx.const(0.5, "float32")
        index = {
            "round_prefer_floor": tirx.ceil(position - half),
            "round_prefer_ceil": tirx.floor(position + half),
            "floor": tirx.floor(position),
            "ceil": tirx.ceil(position),
            "simple": tirx.Select(self.scale < 1, tirx.ceil(position), tirx.floor(position)),
        }[self.how.nearest]
        return _inside(index.astype("int64"), self.old)

    def tap(
        self, position: tirx.Expr, number: tirx.Expr | int, kind: str
    ) -> tuple[tirx.Expr, tirx.Expr]:
        """Return index and weight, in `kind`, of the element `number` from the one on the left."""
        scale = None
        if self.how.antialias:
            one = tirx.const(1, "float32")
            scale = tirx.Select(self.scale < one, self.scale, one)
        return _tap(position, number, self.how, self.old, kind, scale)


def _inside(index: tirx.Expr, old: tirx.Expr) -> tirx.Expr:
    """Repeat the border's elements outside."""
    return tirx.max(tirx.min(index, old - 1), tirx.const(0, "int64"))


def _tap(
    position: tirx.Expr,
    number: tirx.Expr | int,
    how: Filter,
    old: tirx.Expr,
    kind: str,
    narrowed: tirx.Expr | None = None,
) -> tuple[tirx.Expr, tirx.Expr]:
    """Return index and weight of an element near a position; a scale narrows the distance."""
    index = tirx.ceil(position).astype("int64") - 1 + number
    distance = index.astype(kind) - position.astype(kind)
    if narrowed is not None:
        distance = distance * narrowed.astype(kind)
    weight = _weight(distance, how, kind)
    if how.exclude_outside:
        within = tirx.all(index >= 0, index < old)
        weight = tirx.Select(within, weight, tirx.const(0, kind))
    return _inside(index, old), weight


def _weight(distance: tirx.Expr, how: Filter, kind: str) -> tirx.Expr:
    """Evaluate the filter: a triangle, or Keys' cubic."""
    d = tirx.abs(distance)
    zero, one, two = (tirx.const(value, kind) for value in (0, 1, 2))
    if how.mode == "linear":
        return tirx.max(one - d, zero)

    def polynomial(*factors: float) -> tirx.Expr:
        total = tirx.const(factors[0], kind)
        for factor in factors[1:]:
            total = total * d + tirx.const(factor, kind)
        return total

    a = how.cubic
    near = polynomial(a + 2, -(a + 3), 0, 1)
    far = polynomial(a, -5 * a, 8 * a, -4 * a)
    return tirx.Select(d <= one, near, tirx.Select(d < two, far, zero))


def _enlarged(x: relax.Expr, shape: Sequence[Any], axes: Sequence[ResizedAxis]) -> relax.Expr:
    """Repeat the pixels of pictures, by an operator that layouts and fusion know."""
    new = {axis.number: axis.new for axis in axes}
    size = [int64(new.get(number, shape[number])) for number in _PICTURE]
    names = "method", "coordinate_transformation_mode", "rounding_method"
    how = dict(zip(names, ENLARGED, strict=True))
    return relax.op.image.resize2d(x, relax.ShapeExpr(size), **how)


def _resize_axis(
    bb: relax.BlockBuilder, x: relax.Expr, axis: ResizedAxis, settings: _Settings
) -> relax.Expr:
    """Resize one axis; a filter that is widened by a scale of the run is a loop."""
    how = settings.how
    tables = _tables(axis, settings)
    numbers = _numbers(axis)
    at = axis.number
    dtype = str(x.ty.dtype)
    kind = "float64" if dtype == "float64" else "float32"

    def replaced(index: Sequence[Any], place: tirx.Expr) -> list[Any]:
        return [place if i == at else each for i, each in enumerate(index)]

    if how.mode == "nearest":

        def nearest(data: te.Tensor, *operands: Any) -> te.Tensor:
            line = _Line(axis, how, operands[-1], operands[:-1])
            shape = replaced(data.shape, line.new)
            return te.compute(
                shape, lambda *i: data(*replaced(i, line.nearest(i[at]))), name="resized"
            )

        return _emit(bb, nearest, "resize", x, *tables, numbers)

    positions = _positions(bb, axis, settings)
    if how.antialias:
        return _by_loop(bb, x, positions, axis, settings)
    reach = _REACH[how.mode]
    offsets = range(1 - reach, 1 + reach)

    def interpolated(data: te.Tensor, positions: te.Tensor, old: tirx.Expr) -> te.Tensor:
        def element(*i: Any) -> tirx.Expr:
            taps = [_tap(positions(i[at]), offset, how, old, kind) for offset in offsets]
            total = _sum([w * data(*replaced(i, place)).astype(kind) for place, w in taps])
            if how.exclude_outside:
                total = total / _sum([weight for _, weight in taps])
            return total.astype(dtype)

        return te.compute(replaced(data.shape, positions.shape[0]), element, name="resized")

    return _emit(bb, interpolated, "resize", x, positions, numbers[0])


def _positions(bb: relax.BlockBuilder, axis: ResizedAxis, settings: _Settings) -> relax.Expr:
    """Return where each element along an axis comes from.

    A kernel of its own: each weight reads a position several times, and TVM simplifies what stands
    in an index again and again. Cubic kernels took seven seconds to compile.
    """

    def positions(*operands: Any) -> te.Tensor:
        line = _Line(axis, settings.how, operands[-1], operands[:-1])
        return te.compute((line.new,), line.held, name="positions")

    return _emit(bb, positions, "positions", *_tables(axis, settings), _numbers(axis))


def _by_loop(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    positions: relax.Expr,
    axis: ResizedAxis,
    settings: _Settings,
) -> relax.Expr:
    """Sum as many elements as the widened filter reaches, and divide by the sum of weights."""
    how, at, dtype = settings.how, axis.number, str(x.ty.dtype)
    tables, numbers = _tables(axis, settings), _numbers(axis)
    kind = "float64" if dtype == "float64" else "float32"
    half = _half_of_taps(bb, axis, settings)
    rank = x.ty.ndim

    def weights(places: te.Tensor, *operands: Any) -> te.Tensor:
        line, half = _Line(axis, how, operands[-2], operands[:-2]), operands[-1]
        k = te.reduce_axis((0, 2 * half), name="k")
        return te.compute(
            (line.new,),
            lambda y: te.sum(line.tap(places(y), k + 1 - half, kind)[1], axis=k),
            name="weights",
        )

    def weighted(data: te.Tensor, places: te.Tensor, *operands: Any) -> te.Tensor:
        line, half = _Line(axis, how, operands[-2], operands[:-2]), operands[-1]
        k = te.reduce_axis((0, 2 * half), name="k")

        def element(*i: Any) -> tirx.Expr:
            place, weight = line.tap(places(i[at]), k + 1 - half, kind)
            index = [place if j == at else each for j, each in enumerate(i)]
            return te.sum(weight * data(*index).astype(kind), axis=k)

        shape = [line.new if j == at else length for j, length in enumerate(data.shape)]
        return te.compute(shape, element, name="resized")

    total = _emit(bb, weights, "weights", positions, *tables, numbers, half)
    made = _emit(bb, weighted, "resize", x, positions, *tables, numbers, half)
    total = bb.emit(relax.op.expand_dims(total, [j for j in range(rank) if j != at]))
    made = bb.emit(relax.op.divide(made, total))
    return made if kind == dtype else bb.emit(relax.op.astype(made, dtype))


def _half_of_taps(bb: relax.BlockBuilder, axis: ResizedAxis, settings: _Settings) -> tirx.Expr:
    """Return how many elements a widened filter reaches on either side."""
    reach = _REACH[settings.how.mode]
    if axis.scale is not None:
        return tirx.IntImm("int64", math.ceil(reach / min(axis.scale, 1.0)))
    if axis.ratio is not None:
        over, under = (int64(each) for each in axis.ratio)
        divisor = tirx.max(over, tirx.const(1, "int64"))
        wide = tirx.floordiv(reach * under + divisor - 1, divisor)
        return int64(named_length(bb, tirx.max(wide, tirx.const(reach, "int64")), 0))

    def taps(scales: te.Tensor, old: Any) -> te.Tensor:
        one = tirx.const(1, "float32")
        scale = scales(axis.given)
        # What is less than one element of the result is none.
        some = tirx.all(scale < one, scale * _real(old) >= one)
        scale = tirx.Select(some, scale, one)
        return te.compute((1,), lambda _: tirx.ceil(reach / scale).astype("int64"))

    return read_by_host(bb, bb.emit_te(taps, settings.scales, int64(axis.old)))[0]


def _with_outside(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    axes: Sequence[ResizedAxis],
    settings: _Settings,
    outside: float,
) -> relax.Expr:
    """Put a value where a crop is beyond the picture along any axis."""
    for axis in axes:
        at = axis.number

        def kept(
            data: te.Tensor, *operands: Any, axis: ResizedAxis = axis, at: int = at
        ) -> te.Tensor:
            line = _Line(axis, settings.how, operands[-1], operands[:-1])
            value = tirx.const(outside, str(data.dtype))
            return te.compute(
                data.shape, lambda *i: tirx.Select(line.is_inside(i[at]), data(*i), value)
            )

        x = _emit(bb, kept, "outside", x, *_tables(axis, settings), _numbers(axis))
    return x


def _emit(
    bb: relax.BlockBuilder, function: Callable[..., te.Tensor], name: str, *operands: Any
) -> relax.Expr:
    """Call a kernel of its own: FuseTIR joins none that take the same lengths."""
    attrs = {"op_pattern": OPAQUE}
    return bb.emit_te(function, *operands, primfunc_name_hint=name, primfunc_attrs=attrs)


def _tables(axis: ResizedAxis, settings: _Settings) -> list[relax.Expr]:
    """Return the tensors that :class:`_Line` reads."""
    tables = []
    if axis.given is not None and axis.scale is None:
        tables.append(settings.scales)
    if axis.start is not None:
        tables.append(settings.roi)
    return tables


def _numbers(axis: ResizedAxis) -> list[Any]:
    """Return the integers that :class:`_Line` takes."""
    over, under = axis.ratio or (axis.new, axis.old)
    return [int64(each) for each in (axis.old, axis.new, over, under)]


def _sum(terms: Sequence[tirx.Expr]) -> tirx.Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _real(value: Any) -> tirx.Expr:
    return value.astype("float32")
