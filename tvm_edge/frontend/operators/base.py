"""What converters share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

__all__ = [
    "Attributes",
    "Converter",
    "constant",
    "num_outputs",
    "operand",
    "scalar",
    "small_type",
    "static_shape",
    "text",
]

Attributes = dict[str, Any]
Converter = Callable[[relax.BlockBuilder, Sequence[relax.Expr], Attributes], relax.Expr | None]
"""``None`` means "take TVM's"; ``NotImplementedError`` refuses this form of the operator."""


def operand(inputs: Sequence[relax.Expr], index: int) -> relax.Expr | None:
    """An optional input."""
    return inputs[index] if index < len(inputs) else None


def constant(value: relax.Expr | None) -> np.ndarray | None:
    """The value of a constant, ``None`` for anything else."""
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def scalar(value: float, like: relax.Expr) -> relax.Expr:
    """A constant without dimensions, of the type of `like`."""
    return relax.const(value, str(like.ty.dtype))


def static_shape(value: relax.Expr) -> tuple[int, ...] | None:
    """The shape of a tensor where it is known."""
    shape = value.ty.shape if isinstance(value.ty, relax.TensorType) else None
    if shape is None or not all(isinstance(length, tirx.IntImm) for length in shape):
        return None
    return tuple(int(length) for length in shape)


def num_outputs(attrs: Attributes) -> int:
    """Outputs that the node has."""
    return int(attrs["tvm_custom"]["num_outputs"])


def text(attrs: Attributes, name: str, default: str) -> str:
    """An attribute that is a word."""
    value = attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def small_type(attrs: Attributes, index: int) -> str:
    """The type of an input that is kept in bytes, such as ``float8_e5m2``; empty for others."""
    kinds = attrs.get("small_types", ())
    return kinds[index] if index < len(kinds) else ""
