"""Associative operators of scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm import tirx

__all__ = ["OPERATORS", "Associative"]


@dataclass(frozen=True)
class Associative:
    """``combine(a, combine(b, c)) == combine(combine(a, b), c)``, and commutative.

    GPU kernels keep the order of operands; a CPU's totals are taken in any order.

    Attributes
    ----------
    combine : callable
        Of two expressions of one type; the first operand comes first in the line.
    identity : callable
        The constant of a type that changes nothing.
    """

    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    identity: Callable[[str], tirx.Expr]


def _maximum(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """Return the maximum, NaN wherever one is, as in NumPy."""
    return tirx.Select(tirx.any(a >= b, tirx.isnan(a)), a, b)


def _minimum(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    return tirx.Select(tirx.any(a <= b, tirx.isnan(a)), a, b)


def _least(dtype: str) -> tirx.Expr:
    if dtype.startswith("float"):
        return tirx.const(float("-inf"), dtype)
    return tirx.min_value(tvm.DataType(dtype))


def _greatest(dtype: str) -> tirx.Expr:
    if dtype.startswith("float"):
        return tirx.const(float("inf"), dtype)
    return tirx.max_value(tvm.DataType(dtype))


OPERATORS: Mapping[str, Associative] = {
    "add": Associative(lambda a, b: a + b, lambda dtype: tirx.const(0, dtype)),
    "multiply": Associative(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype)),
    "maximum": Associative(_maximum, _least),
    "minimum": Associative(_minimum, _greatest),
}
"""Operators by the names that NumPy has for them."""
