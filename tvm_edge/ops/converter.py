"""Helpers of converters from ONNX: operands and attributes of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

__all__ = [
    "Attributes",
    "Converter",
    "num_outputs",
    "operand",
    "scalar",
    "small_type",
    "spread",
    "text",
    "type_name",
]

Attributes = dict[str, Any]
"""Attributes of a node, and the model's ``opset``, which decides for some defaults."""

Converter = Callable[[relax.BlockBuilder, Sequence[relax.Expr], Attributes], relax.Expr | None]
"""``None`` means "take TVM's"; ``NotImplementedError`` refuses this form of the operator."""


def operand(inputs: Sequence[relax.Expr], index: int) -> relax.Expr | None:
    """Return an optional input."""
    return inputs[index] if index < len(inputs) else None


def scalar(value: float, like: relax.Expr) -> relax.Expr:
    """Make a constant without dimensions, of the type of `like`."""
    return relax.const(value, str(like.ty.dtype))


def num_outputs(attrs: Attributes) -> int:
    """Return how many outputs the node has."""
    return int(attrs["tvm_custom"]["num_outputs"])


def text(attrs: Attributes, name: str, default: str) -> str:
    """Return an attribute that is a word."""
    value = attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def small_type(attrs: Attributes, index: int) -> str:
    """Return the type of an input stored as uint8, such as ``float8_e5m2``; empty for others."""
    kinds = attrs.get("small_types", ())
    return kinds[index] if index < len(kinds) else ""


def spread(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Reshape a vector so that it is broadcast along all axes but one."""
    shape = [1] * rank
    shape[axis] = len(values)
    return values.reshape(shape)


def type_name(number: int) -> str:
    """Return NumPy's name of an element type that ONNX numbers so."""
    import onnx.helper  # which Relax models do without

    return str(onnx.helper.tensor_dtype_to_np_dtype(number).name)
