"""TVM's way of saying that there is no memory, as Python's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["raises_memory_error"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def raises_memory_error(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Raise ``MemoryError`` where TVM's C++ found no memory, and an InternalError came of it."""

    @wraps(call)
    def guarded(*arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return call(*arguments, **options)
        except RuntimeError as err:
            if "std::bad_alloc" not in str(err):
                raise
            raise MemoryError("TVM found no memory for a tensor or for code") from err

    return guarded
