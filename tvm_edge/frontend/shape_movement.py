"""Elements of shapes that are moved, picked out, joined or repeated; no arithmetic is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_edge.ops.converter import Attributes, num_outputs
from tvm_edge.ops.elements import Elements
from tvm_edge.ops.movement.converters import split_lengths

__all__ = ["LARGEST", "MOVEMENT", "Function", "axes_of"]

LARGEST = 1 << 12
"""Elements of a tensor that is taken for a shape, or for arithmetic on one."""

Function = Callable[[Sequence[Any], Attributes], list[Elements] | None]
"""Evaluates an operator: its operands and attributes, and its results if they are known."""


def _array(function: Callable[..., np.ndarray], values: Elements, *args: Any) -> list[Elements]:
    """Move elements by a function of NumPy."""
    return [Elements(np.asarray(function(values.values, *args), dtype=object), values.dtype)]


def axes_of(inputs: Sequence[Elements | None], attrs: Attributes, at: int = 1) -> list[int] | None:
    """Return the axes of an operand or, before opset 13, of an attribute."""
    given = inputs[at] if len(inputs) > at else None
    if given is None:
        return [int(axis) for axis in attrs["axes"]] if "axes" in attrs else None
    numbers = given.numbers
    return None if numbers is None else [int(axis) for axis in numbers.reshape(-1)]


def _numbers(value: Elements | None) -> list[int] | None:
    if value is None or value.numbers is None:
        return None
    return [int(number) for number in value.numbers.reshape(-1)]


def _unsqueeze(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    axes = axes_of(inputs, attrs)
    if axes is None:
        return None
    rank = inputs[0].values.ndim + len(axes)
    return _array(np.expand_dims, inputs[0], tuple(axis % rank for axis in axes))


def _squeeze(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    axes = axes_of(inputs, attrs)
    if axes is None and len(inputs) > 1 and inputs[1] is not None:
        return None
    return _array(np.squeeze, inputs[0], tuple(axes) if axes is not None else None)


def _reshape(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    target = _numbers(inputs[1])
    if target is None:
        return None
    if not attrs.get("allowzero", 0):
        shape = inputs[0].values.shape
        target = [shape[i] if length == 0 else length for i, length in enumerate(target)]
    return _array(np.reshape, inputs[0], target)


def _transpose(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements]:
    return _array(np.transpose, inputs[0], attrs.get("perm"))


def _expand(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements] | None:
    target = _numbers(inputs[1])
    if target is None:
        return None
    shape = np.broadcast_shapes(inputs[0].values.shape, tuple(target))
    if math.prod(shape) > LARGEST:
        return None
    return _array(np.broadcast_to, inputs[0], shape)


def _tile(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements] | None:
    times = _numbers(inputs[1])
    if times is None or math.prod(times) * inputs[0].values.size > LARGEST:
        return None
    return _array(np.tile, inputs[0], times)


def _constant_of_shape(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    import onnx.numpy_helper

    shape = _numbers(inputs[0])
    if shape is None or math.prod(shape) > LARGEST:
        return None
    value = np.zeros(1, "float32")
    if "value" in attrs:
        value = onnx.numpy_helper.to_array(attrs["value"])
    if "int" not in value.dtype.name and value.dtype.name != "bool":
        return None
    return [
        Elements.of(np.full(shape, value.reshape(-1)[0].item(), dtype=object), value.dtype.name)
    ]


def _gather(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    indices = inputs[1].numbers
    if indices is None:
        return None
    axis = int(attrs.get("axis", 0))
    return _array(np.take, inputs[0], indices.astype("int64"), axis)


def _concat(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements]:
    joined = np.concatenate([each.values for each in inputs], int(attrs.get("axis", 0)))
    return [Elements(joined, inputs[0].dtype)]


def _slice(inputs: Sequence[Elements | None], attrs: Attributes) -> list[Elements] | None:
    data = inputs[0]
    assert data is not None
    given: list[list[int] | None]
    if attrs["opset"] < 10:
        given = [attrs["starts"], attrs["ends"], attrs.get("axes")]
    else:
        given = [_numbers(each) for each in inputs[1:]]
        if any(g is None and each is not None for g, each in zip(given, inputs[1:], strict=True)):
            return None
    starts, ends, axes, steps = (*given, None, None)[:4]
    if starts is None or ends is None:
        return None
    index = [slice(None)] * data.values.ndim
    for i, axis in enumerate(axes if axes is not None else range(len(starts))):
        step = steps[i] if steps is not None else 1
        end: int | None = ends[i]
        if step < 0 and end is not None and end < -data.values.shape[axis]:
            end = None
        index[axis] = slice(starts[i], end, step)
    return [Elements(np.asarray(data.values[tuple(index)], dtype=object), data.dtype)]


def _split(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    axis = int(attrs.get("axis", 0))
    length = inputs[0].values.shape[axis]
    parts: Any = attrs.get("split")
    if len(inputs) > 1 and inputs[1] is not None:
        parts = _numbers(inputs[1])
        if parts is None:
            return None
    count = int(attrs.get("num_outputs", num_outputs(attrs)))
    ends = np.cumsum(split_lengths(length, parts, count))[:-1]
    return [
        Elements(np.asarray(part, dtype=object), inputs[0].dtype)
        for part in np.split(inputs[0].values, ends, axis)
    ]


def _range(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements] | None:
    bounds = [each.numbers for each in inputs]
    if any(bound is None or bound.size != 1 for bound in bounds):
        return None
    start, limit, step = (bound.item() for bound in bounds if bound is not None)
    if step == 0 or abs((limit - start) / step) > LARGEST:
        return None
    return [Elements.of(np.arange(start, limit, step).astype(object), inputs[0].dtype)]


MOVEMENT: Mapping[str, Function] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operators that move elements, by ONNX's names."""
