"""Tensors of float16 whose elements are calculated with in float32.

Kernels read float16, calculate in float32 and round what they store; see
:mod:`tvm_edge.relay_passes.precision.calculate_in_float32`. Where they only move an element, or
bring it to local memory, it stays what it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, te, tirx

from tvm_edge.schedules.accesses import IF_THEN_ELSE

__all__ = ["STORED", "as_stored", "as_word", "of_word", "stored", "widened"]

STORED = "tvm_edge.stored"
"""Annotation of a block whose conversion to float16 is one of storage, and rounds only there."""


def stored(shape: Sequence[Any], element: Callable[..., tirx.Expr]) -> te.Tensor:
    """A tensor of float16 whose elements are calculated in float32.

    Operators fused after it in a kernel read them before they are rounded.
    """
    return te.compute(
        shape, lambda *i: tirx.Cast("float16", element(*i)), name="stored", attrs={STORED: True}
    )


def widened(value: tirx.Expr) -> tirx.Expr:
    """`value` to calculate with: float16 becomes float32."""
    return tirx.Cast("float32", value) if str(value.ty.dtype) == "float16" else value


def as_stored(value: tirx.Expr) -> tirx.Expr | None:
    """A float32 expression that is only ever one of some float16, as float16.

    Returns
    -------
    Expr or None
        ``None`` where anything is calculated.

    Examples
    --------
    ``if_then_else(inside, float32(image[i]), 0.0)`` is ``if_then_else(inside, image[i], 0.0)`` of
    float16.
    """
    if str(value.ty.dtype) == "float16":
        return value
    if isinstance(value, tirx.Cast):
        return value.value if str(value.value.ty.dtype) == "float16" else None
    if isinstance(value, tirx.FloatImm):
        exact = float(np.float16(value.value)) == value.value
        return tirx.const(value.value, "float16") if exact else None
    if isinstance(value, tirx.Select):
        chosen = [as_stored(value.true_value), as_stored(value.false_value)]
        return None if None in chosen else tirx.Select(value.condition, *chosen)
    if isinstance(value, ir.Call) and value.op.same_as(IF_THEN_ELSE):
        chosen = [as_stored(branch) for branch in value.args[1:]]
        return None if None in chosen else tirx.if_then_else(value.args[0], *chosen)
    return None


def as_word(value: tirx.Expr) -> tirx.Expr:
    """A float16 twice in an integer of 32 bits."""
    bits = tirx.Cast("uint32", tirx.reinterpret("uint16", value))
    return tirx.bitwise_or(bits, tirx.shift_left(bits, tirx.const(16, "uint32")))


def of_word(word: tirx.Expr) -> tirx.Expr:
    """The float16 that :func:`as_word` made a word of."""
    return tirx.reinterpret("float16", tirx.Cast("uint16", word))
