"""Errors that travel from a board to here, and keep their class."""

from __future__ import annotations

import builtins
from typing import Any

from tvm_edge import errors
from tvm_edge.errors import TvmEdgeError, one_line

__all__ = ["failure_of", "raised_on"]


def failure_of(err: Exception) -> dict[str, Any]:
    """Return an error as a JSON-compatible dictionary: class, message, and fields."""
    ours = isinstance(err, TvmEdgeError)
    return {
        "error": type(err).__name__,
        "message": str(err) if ours else one_line(err, 2000),
        "fields": vars(err) if ours else {},
    }


def raised_on(where: str, failure: dict[str, Any]) -> Exception:
    """Return the error that a board answered with.

    Parameters
    ----------
    where : str
        The board, for the message.
    failure : dict
        From :func:`failure_of`.

    Returns
    -------
    Exception
        Of the same class, if that is one of ours or of Python's; else ``RuntimeError``.
    """
    name, message = str(failure["error"]), f"on board {where}: {failure['message']}"
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TvmEdgeError):
        return kind(message, **failure["fields"])
    kind = getattr(builtins, name, None)
    if kind in (MemoryError, RuntimeError, ValueError, NotImplementedError):
        return kind(message)
    return RuntimeError(f"on board {where}: {name}: {failure['message']}")
