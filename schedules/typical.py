"""Typical lengths of open dimensions, from which schedules choose knobs that depend on sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = ["UNKNOWN", "evaluate", "typical", "typical_lengths"]

UNKNOWN = 64
"""Length of a variable that nothing is said of."""

_LENGTHS: ContextVar[Mapping[str, int]] = ContextVar("typical lengths")


@contextmanager
def typical_lengths(lengths: Mapping[str, int]) -> Iterator[None]:
    """Let variables of these names typically be as long as given.

    Parameters
    ----------
    lengths : mapping of str to int
        By the name of the variable, which is that of the dimension.
    """
    token = _LENGTHS.set(lengths)
    try:
        yield
    finally:
        _LENGTHS.reset(token)


def typical(expr: Any) -> int:
    """Return the typical value of a length, at least 1.

    Parameters
    ----------
    expr : int or Expr
        A constant, or an expression of variables: each is as long as :func:`typical_lengths` says,
        or :data:`UNKNOWN`. One that nobody can evaluate counts as :data:`UNKNOWN`.
    """
    known = constant(expr)
    if known is None:
        lengths = _LENGTHS.get({})

        def length(var: tirx.Var) -> tirx.Expr:
            return tirx.const(lengths.get(var.name, UNKNOWN), str(var.ty.dtype))

        evaluated = tvm_ffi.structural_map(expr, (tirx.Var, length))
        known = constant(sym.Analyzer().simplify(evaluated))
    return max(UNKNOWN if known is None else known, 1)


def evaluate(expr: Any, lengths: Mapping[str, int]) -> int | None:
    """Return the value of a length where variables are as long as given.

    Parameters
    ----------
    expr : int or Expr
    lengths : mapping of str to int
        By the names of variables.

    Returns
    -------
    int or None
        ``None`` if the value depends on anything else.
    """
    known = constant(expr)
    if known is not None or not lengths:
        return known
    if any(var.name not in lengths for var in nodes_in(expr, tirx.Var)):
        return None

    def length(var: tirx.Var) -> tirx.Expr:
        return tirx.const(lengths[var.name], str(var.ty.dtype))

    return constant(sym.Analyzer().simplify(tvm_ffi.structural_map(expr, (tirx.Var, length))))
