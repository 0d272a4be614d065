"""Runs that record a CUDA graph, and whatever would be in their way.

While TVM captures launches, CUDA refuses what any other thread of the process sends to the default
stream, and that breaks the capture as well (``cudaErrorStreamCaptureImplicit``). So a run that may
record has the GPU's driver for itself; all others share it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CAPTURES", "Captures"]


class Captures:
    """A lock that many share or one has alone, who goes before those that come later.

    A thread that has it, in either way, may take it again: that changes nothing.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing: set[object] = set()
        self._alone: list[object] = []  # the first of them runs when nobody shares
        self._own = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Work with the GPU that records nothing."""
        with self._turn(None):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A run that may record."""
        with self._turn(self._alone):
            yield

    @contextmanager
    def _turn(self, queue: list[object] | None) -> Iterator[None]:
        if getattr(self._own, "has", False):
            yield
            return
        token = object()
        # Ctrl-C may come anywhere in here: what is not given back would stop all that follow.
        try:
            with self._changed:
                if queue is None:
                    self._changed.wait_for(lambda: not self._alone)
                    self._sharing.add(token)
                else:
                    queue.append(token)
                    self._changed.wait_for(lambda: queue[0] is token and not self._sharing)
            self._own.has = True
            yield
        finally:
            self._own.has = False
            with self._changed:
                self._sharing.discard(token)
                self._alone[:] = [other for other in self._alone if other is not token]
                self._changed.notify_all()


CAPTURES = Captures()
"""Of this process."""
