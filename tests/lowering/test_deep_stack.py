"""A stack for what is nested deeply."""

from __future__ import annotations

from contextvars import ContextVar

import pytest
import tvm_ffi
from tvm import tirx

from tvm_edge.lowering.deep_stack import on_deep_stack

CHOSEN: ContextVar[int] = ContextVar("chosen", default=0)


def test_what_is_nested_deeply_is_walked() -> None:
    """On the main thread's stack of 8 MiB this ends the process."""

    def nodes() -> int:
        value = tirx.Var("x", "int64")
        for _ in range(60_000):
            value = tirx.Add(value, tirx.IntImm("int64", 1))
        found = []
        tvm_ffi.structural_walk(value, (tirx.Add, found.append))
        return len(found)

    assert on_deep_stack(nodes) == 60_000


def test_errors_and_context_are_the_callers() -> None:
    def fail() -> None:
        raise KeyError(CHOSEN.get())

    token = CHOSEN.set(7)
    try:
        with pytest.raises(KeyError, match="7"):
            on_deep_stack(fail)
    finally:
        CHOSEN.reset(token)
