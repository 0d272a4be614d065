"""Arithmetic on shapes: integers that the host knows or calculates from lengths, each by itself.

Exporters write the target of a Reshape, the sizes of a Resize or the k of a TopK as graphs of
Shape, Gather, Concat, Min and so on. Here each element of such a tensor is a number, or an
expression of lengths that only the run tells; no kernel calculates either.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, num_outputs, type_name
from tvm_edge.ops.elements import Elements, plain
from tvm_edge.ops.movement.converters import split_lengths

__all__ = ["ARITHMETIC", "LARGEST", "evaluate", "shape_elements"]

LARGEST = 1 << 12
"""Elements of a tensor that is taken for a shape, or for arithmetic on one."""


def evaluate(
    op_type: str, inputs: Sequence[Elements | None], attrs: Attributes
) -> list[Elements] | None:
    """Evaluate an operator on known elements.

    Parameters
    ----------
    op_type : str
        ONNX's name.
    inputs : sequence of Elements or None
        ``None`` for an optional operand that is left out.
    attrs : mapping
        The node's attributes, and the model's ``opset``.

    Returns
    -------
    list of Elements or None
        The results; ``None`` where the operator is none of arithmetic on shapes, or the tensors
        are too large for one.

    Raises
    ------
    ValueError, IndexError
        The operands do not fit each other.
    """
    function = ARITHMETIC.get(op_type)
    if function is None or not inputs or inputs[0] is None:
        return None
    if any(each is not None and each.values.size > LARGEST for each in inputs):
        return None
    fractions = any(each is not None and "float" in each.dtype for each in inputs)
    if fractions and all(each is None or each.numbers is not None for each in inputs):
        return None  # of constants alone, which is nothing about shapes: kernels round as they do
    try:
        return function(inputs, attrs)
    except (_TooLarge, OverflowError):  # no shape either
        return None


def shape_elements(op_type: str, value: relax.Expr, attrs: Attributes) -> list[Elements] | None:
    """Return the result of a Shape or a Size of a tensor; ``None`` if its rank is not known."""
    if not isinstance(value.ty, relax.TensorType) or value.ty.shape is None:
        return None
    shape = list(value.ty.shape)
    if op_type == "Size":
        return [Elements.of(math.prod(shape), "int64")]
    return [Elements.of(shape[int(attrs.get("start", 0)) : attrs.get("end")], "int64")]


Function = Callable[[Sequence[Any], Attributes], list[Elements] | None]


def _array(function: Callable[..., np.ndarray], values: Elements, *args: Any) -> list[Elements]:
    """Move elements by a function of NumPy."""
    return [Elements(np.asarray(function(values.values, *args), dtype=object), values.dtype)]


def _map(function: Callable[..., Any], dtype: str, *operands: Elements) -> list[Elements]:
    """Apply a function to elements that are broadcast against each other."""
    arrays = np.broadcast_arrays(*(each.values for each in operands))
    if arrays[0].size > LARGEST:
        raise _TooLarge
    made = np.empty(arrays[0].shape, dtype=object)
    for index in np.ndindex(made.shape):
        made[index] = _typed(plain(function(*(array[index] for array in arrays))), dtype)
    return [Elements(made, dtype)]


class _TooLarge(Exception):
    """The result is no shape."""


def _typed(value: Any, dtype: str) -> Any:
    """Round a number to its type, as the tensor's arithmetic would."""
    if isinstance(value, tirx.Expr):
        return value
    return np.asarray(value).astype(dtype).item()


def _elementwise(function: Callable[..., Any], result: str = "") -> Function:
    def run(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements]:
        return _map(function, result or inputs[0].dtype, *inputs)

    return run


def _variadic(function: Callable[[Any, Any], Any]) -> Function:
    def run(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements]:
        total = [inputs[0]]
        for each in inputs[1:]:
            total = _map(function, each.dtype, total[0], each)
        return total

    return run


def _is_expression(*values: Any) -> bool:
    return any(isinstance(value, tirx.Expr) for value in values)


def _by_length(function: Callable[..., Any], a: Any, b: Any) -> Any:
    """Divide by a length that may be 0 in a run, which would end the process: by 0 it is 0."""
    zero, one = (tirx.const(number, str(b.ty.dtype)) for number in (0, 1))
    divided = function(a, tirx.Select(b == 0, one, b))
    return divided * tirx.Select(b == 0, zero, one)


def _is_real(value: Any) -> bool:
    if isinstance(value, tirx.Expr):
        return "float" in str(value.ty.dtype)
    return isinstance(value, float)


def _divide(a: Any, b: Any) -> Any:
    """Divide as ONNX does: integers towards zero."""
    if _is_expression(a, b):
        if _is_real(a) or _is_real(b):
            return a / b
        return _by_length(tirx.truncdiv, *_typed_operands(a, b))
    if isinstance(a, float) or isinstance(b, float):
        return float(np.divide(a, b))
    if b == 0:
        raise ValueError("a shape is divided by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _modulo(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    if attrs.get("fmod", 0) or "float" in inputs[0].dtype:
        return None
    return _map(
        _binary(operator.mod, partial(_by_length, tirx.floormod)),
        inputs[0].dtype,
        *inputs,
    )


def _typed_operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Make both operands expressions of one type; one of them is."""
    like = str((a if isinstance(a, tirx.Expr) else b).ty.dtype)
    made = [v if isinstance(v, tirx.Expr) else tirx.const(v, like) for v in (a, b)]
    return made[0], made[1]


def _binary(of_numbers: Callable[..., Any], of_expressions: Callable[..., Any]) -> Callable:
    def run(a: Any, b: Any) -> Any:
        if not _is_expression(a, b):
            return of_numbers(a, b)
        return of_expressions(*_typed_operands(a, b))

    return run


_minimum = _binary(min, tirx.min)
_maximum = _binary(max, tirx.max)


def _rounded(of_number: Callable[[float], Any], of_expression: Callable[..., Any]) -> Callable:
    def run(value: Any) -> Any:
        if isinstance(value, tirx.Expr):
            return of_expression(value) if _is_real(value) else value
        return of_number(value)

    return run


def _logical(of_numbers: Callable[..., Any], of_expressions: Callable[..., Any]) -> Callable:
    def run(*values: Any) -> Any:
        if not _is_expression(*values):
            return of_numbers(*map(bool, values))
        made = (v if isinstance(v, tirx.Expr) else tirx.const(bool(v), "bool") for v in values)
        return of_expressions(*made)

    return run


def _choose(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, tirx.Expr):
        return a if condition else b
    if not _is_expression(a, b) and a == b:
        return a
    if not _is_expression(a, b):
        like = "float32" if _is_real(a) else "bool" if isinstance(a, bool) else "int64"
        a = tirx.const(a, like)
    return tirx.Select(condition, *_typed_operands(a, b))


def _where(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements]:
    return _map(_choose, inputs[1].dtype, *inputs)


def _cast(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements]:
    return _converted(inputs[0], type_name(attrs["to"]))


def _cast_like(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements]:
    return _converted(inputs[0], inputs[1].dtype)


def _converted(source: Elements, dtype: str) -> list[Elements]:
    def convert(value: Any) -> Any:
        if not isinstance(value, tirx.Expr):
            return math.trunc(value) if _is_real(value) and "int" in dtype else value
        # Lengths stay 64 bits wide: nothing that an int32 holds is changed by that.
        wide = "int64" if "int" in dtype else dtype
        return value if str(value.ty.dtype) == wide else value.astype(wide)

    return _map(convert, dtype, source)


def _axes(inputs: Sequence[Elements | None], attrs: Attributes, at: int = 1) -> list[int] | None:
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
    axes = _axes(inputs, attrs)
    if axes is None:
        return None
    rank = inputs[0].values.ndim + len(axes)
    return _array(np.expand_dims, inputs[0], tuple(axis % rank for axis in axes))


def _squeeze(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
    axes = _axes(inputs, attrs)
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


def _reduction(function: Callable[[Any, Any], Any], neutral: int | None) -> Function:
    def run(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
        data = inputs[0].values
        axes = _axes(inputs, attrs)
        if axes is None and len(inputs) > 1 and inputs[1] is not None:
            return None
        if not axes:
            if attrs.get("noop_with_empty_axes", 0):
                return [inputs[0]]
            axes = list(range(data.ndim))
        axes = sorted(axis % max(data.ndim, 1) for axis in axes) if data.ndim else []
        for axis in reversed(axes):
            rows = list(np.moveaxis(data, axis, 0))
            if not rows and neutral is None:
                return None
            first = np.full(np.delete(data.shape, axis), neutral, dtype=object)
            total = rows[0] if rows else first
            for row in rows[1:]:
                total = np.frompyfunc(function, 2, 1)(total, row)
            data = np.asarray(total, dtype=object)
            if attrs.get("keepdims", 1):
                data = np.expand_dims(data, axis)
        return [Elements.of(data, inputs[0].dtype)]

    return run


def _identity(inputs: Sequence[Elements], _attrs: Attributes) -> list[Elements]:
    return [inputs[0]]


def _negative(value: Any) -> Any:
    return tirx.const(0, value.ty.dtype) - value if isinstance(value, tirx.Expr) else -value


ARITHMETIC: Mapping[str, Function] = {
    "Abs": _elementwise(lambda v: tirx.abs(v) if _is_expression(v) else abs(v)),
    "Add": _elementwise(operator.add),
    "And": _elementwise(_logical(lambda a, b: a and b, tirx.all), "bool"),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _elementwise(_rounded(math.ceil, tirx.ceil)),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _elementwise(_divide),
    "Equal": _elementwise(_binary(operator.eq, tirx.EQ), "bool"),
    "Expand": _expand,
    "Floor": _elementwise(_rounded(math.floor, tirx.floor)),
    "Gather": _gather,
    "Greater": _elementwise(_binary(operator.gt, tirx.GT), "bool"),
    "GreaterOrEqual": _elementwise(_binary(operator.ge, tirx.GE), "bool"),
    "Identity": _identity,
    "Less": _elementwise(_binary(operator.lt, tirx.LT), "bool"),
    "LessOrEqual": _elementwise(_binary(operator.le, tirx.LE), "bool"),
    "Max": _variadic(_maximum),
    "Min": _variadic(_minimum),
    "Mod": _modulo,
    "Mul": _elementwise(operator.mul),
    "Neg": _elementwise(_negative),
    "Not": _elementwise(_logical(operator.not_, tirx.Not), "bool"),
    "Or": _elementwise(_logical(lambda a, b: a or b, tirx.any), "bool"),
    "Range": _range,
    "ReduceMax": _reduction(_maximum, None),
    "ReduceMin": _reduction(_minimum, None),
    "ReduceProd": _reduction(operator.mul, 1),
    "ReduceSum": _reduction(operator.add, 0),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _elementwise(operator.sub),
    "Sum": _variadic(operator.add),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""Operators of arithmetic on shapes, by ONNX's names; Shape and Size look at types alone."""
