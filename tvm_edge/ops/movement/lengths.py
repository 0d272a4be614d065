"""Arithmetic on lengths: numbers, or expressions that only the run evaluates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

from tvm import relax, tirx

from tvm_edge.ops.elements import plain

__all__ = ["int64", "is_number", "least", "most", "product", "shape_of"]


def shape_of(value: relax.Expr) -> list[Any]:
    """Return the lengths of a tensor's axes: numbers, or expressions."""
    if value.ty.shape is None:
        raise NotImplementedError("a tensor of a rank that only the run tells")
    return [plain(length) for length in value.ty.shape]


def is_number(length: Any, number: int) -> bool:
    """Return whether a length is known to be `number`."""
    return not isinstance(length, tirx.Expr) and length == number


def product(lengths: Sequence[Any]) -> Any:
    """Multiply lengths."""
    return reduce(mul, lengths, 1)


def int64(value: Any) -> Any:
    """Return an expression of a length; a number becomes one of 64 bits."""
    return value if isinstance(value, tirx.Expr) else tirx.IntImm("int64", int(value))


def least(a: Any, b: Any) -> Any:
    """Return the smaller of two lengths."""
    if isinstance(a, tirx.Expr) or isinstance(b, tirx.Expr):
        return plain(tirx.min(int64(a), int64(b)))
    return min(a, b)


def most(a: Any, b: Any) -> Any:
    """Return the larger of two lengths."""
    if isinstance(a, tirx.Expr) or isinstance(b, tirx.Expr):
        return plain(tirx.max(int64(a), int64(b)))
    return max(a, b)
