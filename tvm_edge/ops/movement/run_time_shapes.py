"""Converters of operators whose shape only the run tells: its integers are expressions.

Each leaves constant integers to the converter beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, Converter, num_outputs, operand, text
from tvm_edge.ops.elements import ensure, integers, length_tensor, plain
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = [
    "constant_of_shape",
    "expand",
    "first_of",
    "pad",
    "pad_by",
    "range_of",
    "reshape",
    "slice_of",
    "split",
    "squeeze",
    "tile",
]


def _are_constant(
    inputs: Sequence[relax.Expr], attrs: Attributes, positions: Sequence[int]
) -> bool:
    """Return whether operands are constants, or left out."""
    return all(
        value is None or constant_of(value) is not None
        for value in (operand(inputs, i) for i in positions)
    )


def reshape(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Reshape; 0 and -1 are constants of the target, which an expression never is taken for."""
    if attrs["opset"] < 5 or _are_constant(inputs, attrs, [1]):
        return None
    x, target = inputs[0], integers(bb, inputs, attrs, 1)
    assert target is not None
    shape = _shape_of(x)
    made: list[Any] = []
    for axis, length in enumerate(target):
        kept = not isinstance(length, tirx.Expr) and length == 0 and not attrs.get("allowzero", 0)
        made.append(shape[axis] if kept else length)
    free = [i for i, length in enumerate(made) if not isinstance(length, tirx.Expr) and length < 0]
    total = _product(shape)
    if free:
        made[free[0]] = _rest(shape, [d for i, d in enumerate(made) if i not in free])
    ensure(bb, tirx.all(*(_int64(d) >= 0 for d in made), _int64(_product(made)) == _int64(total)))
    return bb.normalize(relax.op.reshape(x, made))


def squeeze(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Leave out axes that have to turn out to be of length 1 in the run."""
    x = inputs[0]
    shape = _shape_of(x)
    if not any(isinstance(length, tirx.Expr) for length in shape):
        return None
    given = integers(bb, inputs, attrs, 1) if attrs["opset"] >= 13 else attrs.get("axes")
    if given is None:
        raise NotImplementedError("axes that only the run tells; give them as an operand")
    axes = {int(axis) % len(shape) for axis in given}
    for axis in axes:
        ensure(bb, tirx.EQ(_int64(shape[axis]), _int64(1)))
    kept = [length for axis, length in enumerate(shape) if axis not in axes]
    return bb.normalize(relax.op.reshape(x, kept))


def _rest(shape: Sequence[Any], known: Sequence[Any]) -> Any:
    """Return the length that a target leaves open; one of both shapes cancels, even if it is 0."""
    over, under = list(shape), []
    for length in known:
        same = next((i for i, each in enumerate(over) if _is(plain(each - length), 0)), None)
        if same is None:
            under.append(length)
        else:
            del over[same]
    return plain(tirx.floordiv(_int64(_product(over)), _int64(_most(_product(under), 1))))


def expand(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Repeat along axes of length 1, which an axis may turn out to be in the run."""
    x = inputs[0]
    shape = _shape_of(x)
    known = _are_constant(inputs, attrs, [1]) and not any(isinstance(d, tirx.Expr) for d in shape)
    target = integers(bb, inputs, attrs, 1)
    assert target is not None
    rank = max(len(shape), len(target))
    shape = [*[1] * (rank - len(shape)), *shape]
    target = [*[1] * (rank - len(target)), *target]
    if any(_is(wanted, 0) for wanted in target):
        pairs = list(zip(shape, target, strict=True))
        ensure(
            bb,
            tirx.all(*(tirx.any(*(_int64(d) == k for k in (0, 1))) for d, w in pairs if _is(w, 0))),
        )
        return _nothing(bb, [d if _is(w, 1) else w for d, w in pairs], x)
    if known:
        return None
    if len(shape) > x.ty.ndim:
        x = bb.emit(relax.op.reshape(x, shape))
    made, open_axes = [], []
    for axis, (length, wanted) in enumerate(zip(shape, target, strict=True)):
        if _is(length, 1):
            made.append(wanted)
        elif _is(wanted, 1) or plain(_int64(length) == _int64(wanted)) is True:
            made.append(length)
        else:
            length, wanted = _int64(length), _int64(wanted)
            ensure(bb, tirx.any(length == 1, wanted == 1, length == wanted))
            made.append(plain(tirx.Select(length == 1, wanted, length)))
            open_axes.append(axis)
    if not open_axes:
        return bb.normalize(relax.op.broadcast_to(x, made))

    def stretched(data: te.Tensor, lengths: Sequence[Any]) -> te.Tensor:
        def element(*index: Any) -> Any:
            at = list(index)
            for axis, length in enumerate(data.shape):
                if axis in open_axes:
                    at[axis] = tirx.Select(length == 1, tirx.const(0, "int64"), index[axis])
                elif _is(plain(length), 1):
                    at[axis] = 0
            return data(*at)

        return te.compute(list(lengths), element, name="stretched")

    return bb.emit_te(stretched, x, [_int64(d) for d in made], primfunc_name_hint="expand")


def _nothing(bb: relax.BlockBuilder, shape: Sequence[Any], like: relax.Expr) -> relax.Expr:
    """Make a tensor without elements."""
    dtype = str(like.ty.dtype)
    if not any(isinstance(length, tirx.Expr) for length in shape):
        return relax.const(np.zeros(shape, dtype), dtype)
    return bb.normalize(relax.op.full(shape, relax.const(np.zeros((), dtype), dtype), dtype))


def constant_of_shape(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Fill a tensor; TVM gives a shape of one length to the value as well."""
    import onnx.numpy_helper

    value = np.zeros(1, "float32")
    if "value" in attrs:
        value = onnx.numpy_helper.to_array(attrs["value"])
    dtype = str(value.dtype)
    shape = integers(bb, inputs, attrs, 0)
    assert shape is not None
    if all(not isinstance(length, tirx.Expr) for length in shape):
        if shape and 0 not in shape:
            return None
        return relax.const(np.full(shape, value.reshape(-1)[0]), dtype)
    return bb.normalize(relax.op.full(shape, relax.const(value.reshape(()), dtype), dtype))


def slice_of(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Slice from, to or along lengths of the run."""
    if attrs["opset"] < 10:
        return None
    x = inputs[0]
    starts, ends = integers(bb, inputs, attrs, 1), integers(bb, inputs, attrs, 2)
    assert starts is not None and ends is not None
    axes = integers(bb, inputs, attrs, 3) or list(range(len(starts)))
    steps = integers(bb, inputs, attrs, 4) or [1] * len(starts)
    if any(isinstance(each, tirx.Expr) for each in (*axes, *steps)):
        raise NotImplementedError("Slice along axes, or by steps, that only the run tells")
    shape = _shape_of(x)
    axes = [int(axis) % len(shape) for axis in axes]
    if not any(
        isinstance(each, tirx.Expr) for each in (*starts, *ends, *(shape[axis] for axis in axes))
    ):
        # TVM takes no bounds the other way round.
        for axis, start, end, step in zip(axes, starts, ends, map(int, steps), strict=True):
            first, last = _slice_bounds(start, end, step, shape[axis])
            if first == last:
                shape[axis] = 0
        return _nothing(bb, shape, x) if 0 in shape else None
    begins: list[Any] = [0] * len(shape)
    counts: list[Any] = list(shape)
    strides = [1] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, map(int, steps), strict=True):
        begin, stop = _slice_bounds(start, end, step, shape[axis])
        length = stop - begin if step > 0 else begin - stop
        if abs(step) > 1:
            length = tirx.floordiv(_int64(length) + (abs(step) - 1), abs(step))
        begins[axis], counts[axis], strides[axis] = begin, plain(length), step
    return _taken(bb, x, begins, counts, strides)


def _taken(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    begins: Sequence[Any],
    counts: Sequence[Any],
    strides: Sequence[int],
) -> relax.Expr:
    """Take `counts` elements of each axis; TVM divides by a negative stride, and LLVM fails."""

    def taken(data: te.Tensor, first: Sequence[Any], count: Sequence[Any]) -> te.Tensor:
        def element(*index: Any) -> Any:
            return data(*(f + i * s for f, i, s in zip(first, index, strides, strict=True)))

        return te.compute(list(count), element, name="taken")

    sides = ([_int64(each) for each in side] for side in (begins, counts))
    return bb.emit_te(taken, x, *sides, primfunc_name_hint="slice")


def _slice_bounds(start: Any, end: Any, step: int, length: Any) -> tuple[Any, Any]:
    """Bring bounds inside of an axis by the rules of ONNX: negative ones count from its end."""
    low, high = (0, length) if step > 0 else (-1, length - 1)
    first = _clamped(start, length, low if step > 0 else 0, high)
    last = _clamped(end, length, low, high)
    # A slice the other way round has no elements.
    return first, _most(last, first) if step > 0 else _least(last, first)


def _clamped(value: Any, length: Any, low: Any, high: Any) -> Any:
    if isinstance(value, tirx.Expr):
        value = tirx.Select(value < 0, value + length, value)
    elif value <= -(1 << 31):
        return low
    elif value >= (1 << 31) - 1:
        return high
    elif value < 0:
        value = length + value
    elif value == 0 and low == 0:
        return 0
    return _least(_most(value, low), high)


def split(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Take the parts one by one where a length is of the run."""
    x = inputs[0]
    shape = _shape_of(x)
    axis = int(attrs.get("axis", 0)) % len(shape)
    lengths = integers(bb, inputs, attrs, 1) if attrs["opset"] >= 13 else attrs.get("split")
    if not any(isinstance(each, tirx.Expr) for each in (*(lengths or ()), shape[axis])):
        return None
    if lengths is None:
        count = int(attrs.get("num_outputs", num_outputs(attrs)))
        each = tirx.floordiv(shape[axis] + (count - 1), count)
        lengths = [_least(each, _most(shape[axis] - each * i, 0)) for i in range(count)]
    whole = [_int64(length) for length in lengths]
    total = sum(whole[1:], whole[0])
    ensure(bb, tirx.all(*(length >= 0 for length in whole), total == _int64(shape[axis])))
    parts, start = [], 0
    for length in lengths:
        begins = [start if i == axis else 0 for i in range(len(shape))]
        counts = [length if i == axis else size for i, size in enumerate(shape)]
        parts.append(_taken(bb, x, begins, counts, [1] * len(shape)))
        start = plain(start + length)
    return relax.Tuple(parts)


def tile(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Repeat by a number of the run: along an axis of its own, which is merged."""
    if attrs["opset"] < 6 or _are_constant(inputs, attrs, [1]):
        return None
    x, times = inputs[0], integers(bb, inputs, attrs, 1)
    assert times is not None
    shape = _shape_of(x)
    apart = bb.emit(relax.op.reshape(x, [d for length in shape for d in (1, length)]))
    pairs = list(zip(times, shape, strict=True))
    wide = bb.emit(relax.op.broadcast_to(apart, [d for pair in pairs for d in pair]))
    return bb.normalize(relax.op.reshape(wide, [plain(t * length) for t, length in pairs]))


def range_of(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Count from the run's start in the run's number of steps, of integers."""
    if _are_constant(inputs, attrs, [0, 1, 2]):
        return None
    dtype = str(inputs[0].ty.dtype)
    if "int" not in dtype:
        raise NotImplementedError("Range of fractions whose bounds only the run tells")
    bounds = [integers(bb, inputs, attrs, i) or [0] for i in range(3)]
    (start,), (limit,), (step,) = bounds
    if isinstance(step, tirx.Expr):
        raise NotImplementedError("Range with a step that only the run tells")
    away = limit - start if step > 0 else start - limit
    count = _most(tirx.floordiv(_int64(away) + (abs(step) - 1), abs(step)), 0)
    numbers = bb.emit(relax.op.arange(0, plain(count), 1, dtype))
    if step != 1:
        numbers = bb.emit(relax.op.multiply(numbers, relax.const(step, dtype)))
    if not isinstance(start, tirx.Expr):
        if start == 0:
            return numbers
        return bb.normalize(relax.op.add(numbers, relax.const(start, dtype)))
    return bb.normalize(relax.op.add(numbers, length_tensor(bb, [start], (), dtype)))


def pad(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Pad by, or along, lengths of the run; negative pads crop."""
    if attrs["opset"] < 11:
        return None
    x = inputs[0]
    shape = _shape_of(x)
    pads = integers(bb, inputs, attrs, 1) or []
    axes = integers(bb, inputs, attrs, 3) or list(range(len(shape)))
    if any(isinstance(axis, tirx.Expr) for axis in axes):
        raise NotImplementedError("Pad along axes that only the run tells")
    axes = [int(axis) % len(shape) for axis in axes]
    along = [shape[axis] for axis in axes]
    if not any(isinstance(each, tirx.Expr) for each in (*pads, *along)):
        return None
    if len(pads) != 2 * len(axes):
        raise ValueError(f"a Pad of {len(axes)} axes has {len(pads)} pads")
    before, after = [0] * len(shape), [0] * len(shape)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    mode = text(attrs, "mode", "constant")
    if mode not in _POSITIONS:
        raise NotImplementedError(f"Pad with the mode {mode}")
    touched = [not (_is(b, 0) and _is(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode != "constant":  # which needs nothing to repeat
        some = [_int64(d) > 0 for d, touch in zip(shape, touched, strict=True) if touch]
        ensure(bb, tirx.all(*some))
    fill = operand(inputs, 2)
    return pad_by(bb, x, before, after, mode=mode, fill=fill)


def pad_by(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    before: Sequence[Any],
    after: Sequence[Any],
    *,
    mode: str = "constant",
    fill: relax.Expr | None = None,
) -> relax.Var:
    """Pad each axis by numbers or expressions; negative ones crop.

    Parameters
    ----------
    bb : relax.BlockBuilder
    x : relax.Expr
    before, after : sequence of (int or tirx.Expr)
        One for each axis.
    mode : {"constant", "edge", "reflect", "wrap"}
    fill : relax.Expr, optional
        A tensor of one element. Default: zero.
    """
    position = _POSITIONS[mode]
    touched = [not (_is(b, 0) and _is(a, 0)) for b, a in zip(before, after, strict=True)]
    dtype = str(x.ty.dtype)
    if fill is None:
        fill = relax.const(np.zeros((), dtype), dtype)
    elif fill.ty.ndim:
        fill = bb.emit(relax.op.reshape(fill, ()))

    def padded(
        data: te.Tensor, value: te.Tensor, front: Sequence[Any], back: Sequence[Any]
    ) -> te.Tensor:
        lengths = list(data.shape)
        made = [plain(length + f + b) for length, f, b in zip(lengths, front, back, strict=True)]

        def element(*index: Any) -> Any:
            places = [i - f for i, f in zip(index, front, strict=True)]
            at = [
                position(place, length) if touch else place
                for place, length, touch in zip(places, lengths, touched, strict=True)
            ]
            if mode != "constant":
                return data(*at)
            inside = [
                tirx.all(place >= 0, place < length)
                for place, length, touch in zip(places, lengths, touched, strict=True)
                if touch
            ]
            if not inside:
                return data(*at)
            return tirx.if_then_else(reduce(tirx.all, inside), data(*places), value())

        return te.compute(made, element, name="padded")

    widths = [[_int64(width) for width in side] for side in (before, after)]
    return bb.emit_te(padded, x, fill, *widths, primfunc_name_hint="pad")


def _reflected(place: Any, length: Any) -> Any:
    period = _most(2 * (length - 1), 1)
    place = tirx.floormod(place, period)
    return tirx.min(place, period - place)


_POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "constant": lambda place, _length: place,
    "edge": lambda place, length: tirx.max(tirx.min(place, length - 1), tirx.const(0, "int64")),
    "reflect": _reflected,
    "wrap": lambda place, length: tirx.floormod(place, length),
}


def first_of(*converters: Converter) -> Converter:
    """Ask converters in turn until one takes the node."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr | None:
        made = (each(bb, inputs, attrs) for each in converters)
        return next((value for value in made if value is not None), None)

    return convert


def _shape_of(value: relax.Expr) -> list[Any]:
    """Return the lengths of a tensor's axes: numbers, or expressions."""
    if value.ty.shape is None:
        raise NotImplementedError("a tensor of a rank that only the run tells")
    return [plain(length) for length in value.ty.shape]


def _is(length: Any, number: int) -> bool:
    return not isinstance(length, tirx.Expr) and length == number


def _product(lengths: Sequence[Any]) -> Any:
    return reduce(mul, lengths, 1)


def _int64(value: Any) -> Any:
    return value if isinstance(value, tirx.Expr) else tirx.IntImm("int64", int(value))


def _least(a: Any, b: Any) -> Any:
    if isinstance(a, tirx.Expr) or isinstance(b, tirx.Expr):
        return plain(tirx.min(_int64(a), _int64(b)))
    return min(a, b)


def _most(a: Any, b: Any) -> Any:
    if isinstance(a, tirx.Expr) or isinstance(b, tirx.Expr):
        return plain(tirx.max(_int64(a), _int64(b)))
    return max(a, b)
