"""Ctrl-C while Python code runs inside TVM's C++."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["defer_interrupt"]


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends.

    Raised inside a Python callback it would unwind through TVM's C++, which turns it into an empty
    RuntimeError and damages the heap.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pending:
        handler(*pending[0])
