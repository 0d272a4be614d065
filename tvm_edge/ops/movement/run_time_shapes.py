"""Converters of operators whose shape only the run tells: its integers are expressions.

Each leaves constant integers to the converter beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, Converter, num_outputs, operand
from tvm_edge.ops.elements import ensure, integers, length_tensor, plain
from tvm_edge.ops.movement.lengths import int64, is_number, least, most, product, shape_of
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = [
    "constant_of_shape",
    "expand",
    "first_of",
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
    shape = shape_of(x)
    made: list[Any] = []
    for axis, length in enumerate(target):
        kept = not isinstance(length, tirx.Expr) and length == 0 and not attrs.get("allowzero", 0)
        made.append(shape[axis] if kept else length)
    free = [i for i, length in enumerate(made) if not isinstance(length, tirx.Expr) and length < 0]
    total = product(shape)
    if free:
        made[free[0]] = _rest(shape, [d for i, d in enumerate(made) if i not in free])
    ensure(bb, tirx.all(*(int64(d) >= 0 for d in made), int64(product(made)) == int64(total)))
    return bb.normalize(relax.op.reshape(x, made))


def squeeze(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Leave out axes that have to turn out to be of length 1 in the run."""
    x = inputs[0]
    shape = shape_of(x)
    if not any(isinstance(length, tirx.Expr) for length in shape):
        return None
    given = integers(bb, inputs, attrs, 1) if attrs["opset"] >= 13 else attrs.get("axes")
    if given is None:
        raise NotImplementedError("axes that only the run tells; give them as an operand")
    axes = {int(axis) % len(shape) for axis in given}
    for axis in axes:
        ensure(bb, tirx.EQ(int64(shape[axis]), int64(1)))
    kept = [length for axis, length in enumerate(shape) if axis not in axes]
    return bb.normalize(relax.op.reshape(x, kept))


def _rest(shape: Sequence[Any], known: Sequence[Any]) -> Any:
    """Return the length that a target leaves open; one of both shapes cancels, even if it is 0."""
    over, under = list(shape), []
    for length in known:
        same = next((i for i, each in enumerate(over) if is_number(plain(each - length), 0)), None)
        if same is None:
            under.append(length)
        else:
            del over[same]
    return plain(tirx.floordiv(int64(product(over)), int64(most(product(under), 1))))


def expand(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Repeat along axes of length 1, which an axis may turn out to be in the run."""
    x = inputs[0]
    shape = shape_of(x)
    known = _are_constant(inputs, attrs, [1]) and not any(isinstance(d, tirx.Expr) for d in shape)
    target = integers(bb, inputs, attrs, 1)
    assert target is not None
    rank = max(len(shape), len(target))
    shape = [*[1] * (rank - len(shape)), *shape]
    target = [*[1] * (rank - len(target)), *target]
    if any(is_number(wanted, 0) for wanted in target):
        pairs = list(zip(shape, target, strict=True))
        ensure(
            bb,
            tirx.all(
                *(tirx.any(*(int64(d) == k for k in (0, 1))) for d, w in pairs if is_number(w, 0))
            ),
        )
        return _nothing(bb, [d if is_number(w, 1) else w for d, w in pairs], x)
    if known:
        return None
    if len(shape) > x.ty.ndim:
        x = bb.emit(relax.op.reshape(x, shape))
    made, open_axes = [], []
    for axis, (length, wanted) in enumerate(zip(shape, target, strict=True)):
        if is_number(length, 1):
            made.append(wanted)
        elif is_number(wanted, 1) or plain(int64(length) == int64(wanted)) is True:
            made.append(length)
        else:
            length, wanted = int64(length), int64(wanted)
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
                elif is_number(plain(length), 1):
                    at[axis] = 0
            return data(*at)

        return te.compute(list(lengths), element, name="stretched")

    return bb.emit_te(stretched, x, [int64(d) for d in made], primfunc_name_hint="expand")


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
    shape = shape_of(x)
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
            length = tirx.floordiv(int64(length) + (abs(step) - 1), abs(step))
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

    sides = ([int64(each) for each in side] for side in (begins, counts))
    return bb.emit_te(taken, x, *sides, primfunc_name_hint="slice")


def _slice_bounds(start: Any, end: Any, step: int, length: Any) -> tuple[Any, Any]:
    """Bring bounds inside of an axis by the rules of ONNX: negative ones count from its end."""
    low, high = (0, length) if step > 0 else (-1, length - 1)
    first = _clamped(start, length, low if step > 0 else 0, high)
    last = _clamped(end, length, low, high)
    # A slice the other way round has no elements.
    return first, most(last, first) if step > 0 else least(last, first)


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
    return least(most(value, low), high)


def split(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Take the parts one by one where a length is of the run."""
    x = inputs[0]
    shape = shape_of(x)
    axis = int(attrs.get("axis", 0)) % len(shape)
    lengths = integers(bb, inputs, attrs, 1) if attrs["opset"] >= 13 else attrs.get("split")
    if not any(isinstance(each, tirx.Expr) for each in (*(lengths or ()), shape[axis])):
        return None
    if lengths is None:
        count = int(attrs.get("num_outputs", num_outputs(attrs)))
        each = tirx.floordiv(shape[axis] + (count - 1), count)
        lengths = [least(each, most(shape[axis] - each * i, 0)) for i in range(count)]
    whole = [int64(length) for length in lengths]
    total = sum(whole[1:], whole[0])
    ensure(bb, tirx.all(*(length >= 0 for length in whole), total == int64(shape[axis])))
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
    shape = shape_of(x)
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
    count = most(tirx.floordiv(int64(away) + (abs(step) - 1), abs(step)), 0)
    numbers = bb.emit(relax.op.arange(0, plain(count), 1, dtype))
    if step != 1:
        numbers = bb.emit(relax.op.multiply(numbers, relax.const(step, dtype)))
    if not isinstance(start, tirx.Expr):
        if start == 0:
            return numbers
        return bb.normalize(relax.op.add(numbers, relax.const(start, dtype)))
    return bb.normalize(relax.op.add(numbers, length_tensor(bb, [start], (), dtype)))


def first_of(*converters: Converter) -> Converter:
    """Ask converters in turn until one takes the node."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr | None:
        made = (each(bb, inputs, attrs) for each in converters)
        return next((value for value in made if value is not None), None)

    return convert
