"""Ctrl-C, raised where a run can end and nowhere else."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """Handler that notes Ctrl-C while it is entered; :meth:`check` raises it.

    Raised wherever the interpreter happens to be, ``KeyboardInterrupt`` would now and then be lost
    in a callback or a finaliser, which cannot raise, and the run would go on. A second one is
    raised at once.
    """

    def __init__(self) -> None:
        self._noted = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._before = handler
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            self._before(number, frame)
        self._noted = True

    @property
    def noted(self) -> bool:
        """Return whether Ctrl-C came."""
        return self._noted

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C came."""
        if self._noted:
            raise KeyboardInterrupt
