"""What converters share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

__all__ = ["Attributes", "Converter", "constant", "num_outputs", "operand", "static_shape"]

Attributes = dict[str, Any]
Converter = Callable[[relax.BlockBuilder, Sequence[relax.Expr], Attributes], relax.Expr | None]
"""``None`` means "take TVM's"; ``NotImplementedError`` refuses this form of the operator."""


def operand(inputs: Sequence[relax.Expr], index: int) -> relax.Expr | None:
    """An optional input."""
    return inputs[index] if index < len(inputs) else None


def constant(value: relax.Expr | None) -> np.ndarray | None:
    """The value of a constant, ``None`` for anything else."""
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def static_shape(value: relax.Expr) -> tuple[int, ...] | None:
    """The shape of a tensor where it is known."""
    shape = value.ty.shape if isinstance(value.ty, relax.TensorType) else None
    if shape is None or not all(isinstance(length, tirx.IntImm) for length in shape):
        return None
    return tuple(int(length) for length in shape)


def num_outputs(attrs: Attributes) -> int:
    """Outputs that the node has."""
    return int(attrs["tvm_custom"]["num_outputs"])
