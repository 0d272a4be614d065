"""Tensors of float16 or bfloat16 whose elements are calculated with in float32.

Kernels read 16 bits, calculate in float32 and round what they store; see
:mod:`tvm_edge.relay_passes.precision.calculate_in_float32`. Where they only move an element, or
bring it to local memory, it stays what it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from tvm import ir, te, tirx

from tvm_edge.schedules.accesses import IF_THEN_ELSE

__all__ = [
    "HALVES",
    "KEPT",
    "STORED",
    "as_stored",
    "is_half",
    "rounded",
    "stored",
    "widened",
]

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
"""Types of 16 bits that are stored, and widened to calculate with; what NumPy has for them."""

STORED = "tvm_edge.stored"
"""Annotation of a block whose conversion to 16 bits is one of storage, and rounds only there."""

KEPT = "tvm_edge.kept"
"""Annotation of a block that only moves elements, and whose result keeps their type."""

_LOWEST = float(np.finfo("float32").min)


def is_half(dtype: object) -> bool:
    """Return whether a type, of elements or of vectors, is one of :data:`HALVES`."""
    return str(dtype).partition("x")[0] in HALVES


def stored(
    shape: Sequence[Any], element: Callable[..., tirx.Expr], dtype: str = "float16"
) -> te.Tensor:
    """A tensor of 16 bits whose elements are calculated in float32.

    Operators fused after it in a kernel read them before they are rounded.
    """
    return te.compute(
        shape, lambda *i: tirx.Cast(dtype, element(*i)), name="stored", attrs={STORED: True}
    )


def widened(value: tirx.Expr) -> tirx.Expr:
    """`value` to calculate with: 16 bits become float32."""
    return tirx.Cast("float32", value) if is_half(value.ty.dtype) else value


def as_stored(value: tirx.Expr, dtype: str = "float16") -> tirx.Expr | None:
    """A float32 expression that is only ever one of some stored elements, as one of `dtype`.

    Returns
    -------
    Expr or None
        ``None`` where anything is calculated.

    Examples
    --------
    ``if_then_else(inside, float32(image[i]), 0.0)`` is ``if_then_else(inside, image[i], 0.0)`` of
    float16.
    """
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tirx.Cast):
        return value.value if str(value.value.ty.dtype) == dtype else None
    if isinstance(value, tirx.FloatImm):
        # The lowest float32 stands for no element at all, and is infinite where it is stored.
        with np.errstate(over="ignore"):
            number = float(HALVES[dtype](value.value))
        same = number == value.value or value.value == _LOWEST
        return tirx.const(number, dtype) if same else None
    if isinstance(value, tirx.Select):
        chosen = [as_stored(value.true_value, dtype), as_stored(value.false_value, dtype)]
        return None if None in chosen else tirx.Select(value.condition, *chosen)
    if isinstance(value, ir.Call) and value.op.same_as(IF_THEN_ELSE):
        chosen = [as_stored(branch, dtype) for branch in value.args[1:]]
        return None if None in chosen else tirx.if_then_else(value.args[0], *chosen)
    return None


def rounded(number: float) -> tirx.FloatImm:
    """Return a number as float16; beyond its range it is infinite, as what is stored there."""
    with np.errstate(over="ignore"):
        return tirx.const(float(np.float16(number)), "float16")
