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

from tvm_edge.frontend.shape_movement import LARGEST, MOVEMENT, Function, axes_of
from tvm_edge.ops.converter import Attributes, type_name
from tvm_edge.ops.elements import Elements, plain

__all__ = ["ARITHMETIC", "LARGEST", "evaluate", "shape_elements"]


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


def _reduction(function: Callable[[Any, Any], Any], neutral: int | None) -> Function:
    def run(inputs: Sequence[Elements], attrs: Attributes) -> list[Elements] | None:
        data = inputs[0].values
        axes = axes_of(inputs, attrs)
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
    **MOVEMENT,
    "Abs": _elementwise(lambda v: tirx.abs(v) if _is_expression(v) else abs(v)),
    "Add": _elementwise(operator.add),
    "And": _elementwise(_logical(lambda a, b: a and b, tirx.all), "bool"),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _elementwise(_rounded(math.ceil, tirx.ceil)),
    "Div": _elementwise(_divide),
    "Equal": _elementwise(_binary(operator.eq, tirx.EQ), "bool"),
    "Floor": _elementwise(_rounded(math.floor, tirx.floor)),
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
    "ReduceMax": _reduction(_maximum, None),
    "ReduceMin": _reduction(_minimum, None),
    "ReduceProd": _reduction(operator.mul, 1),
    "ReduceSum": _reduction(operator.add, 0),
    "Sub": _elementwise(operator.sub),
    "Sum": _variadic(operator.add),
    "Where": _where,
}
"""Operators of arithmetic on shapes, by ONNX's names; Shape and Size look at types alone."""
