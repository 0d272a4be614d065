"""Ctrl-C while Python code runs inside TVM's C++: held back until it can be raised.

Raised inside a Python callback, ``KeyboardInterrupt`` would unwind through TVM's C++, which turns
it into an empty RuntimeError and may damage the heap; raised in a finaliser it would be lost.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

__all__ = ["hold_interrupts", "on_second_interrupt", "raise_pending_interrupt"]

_second: Callable[[], None] | None = None


def on_second_interrupt(call: Callable[[], None] | None) -> None:
    """Choose what a second Ctrl-C calls while the first is held back; default nothing.

    For a command, which may end its process; a library may not.
    """
    global _second
    _second = call


class _Held:
    """Ctrl-C that came, and the handler that it is for."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler
        # Another thread may deliver while this one notes: a queue loses nothing of it.
        self._pending: deque[tuple[int, FrameType | None]] = deque()

    def note(self, number: int, frame: FrameType | None) -> None:
        if self._pending and _second is not None:
            _second()
        self._pending.append((number, frame))

    def deliver(self) -> None:
        try:
            number, frame = self._pending.popleft()
        except IndexError:
            return
        self._pending.clear()  # of several one is enough
        self.handler(number, frame)


_HELD: ContextVar[_Held | None] = ContextVar("held_interrupts", default=None)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends, or until :func:`raise_pending_interrupt`.

    If it came, the block ends in ``KeyboardInterrupt`` (what the handler raises that was there),
    whatever else it raises: a linker that the same Ctrl-C ended is no error. A block inside another
    one leaves all of that to the outer one; so do threads other than the main thread, which never
    see Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGINT)
    if (
        _HELD.get() is not None
        or threading.current_thread() is not threading.main_thread()
        or not callable(handler)
    ):
        yield
        return
    held = _Held(handler)
    signal.signal(signal.SIGINT, held.note)
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)
        signal.signal(signal.SIGINT, handler)
        held.deliver()


def raise_pending_interrupt() -> None:
    """Raise Ctrl-C that is held back, where no C++ is between here and the holding block.

    Also in a thread that runs in the holding block's context.
    """
    held = _HELD.get()
    if held is not None:
        held.deliver()
