"""Bound on submissions that wait to be run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tvm_edge.errors import InputError

__all__ = ["BoundedQueue"]


class BoundedQueue:
    """Thread that calls functions in order; its thread starts with the first, and ends with it.

    Whoever submits to a full queue waits: each submission keeps a copy of its inputs. A forked
    child has a thread of its own, and nothing pending.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tvm-edge")
        self._state = _State()

    def submit(self, most: int, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a function called; wait while `most` are not done.

        Raises
        ------
        InputError
            The queue is full, and its own thread calls: nobody would make room.
        """
        if self._process != os.getpid():  # a lock may be held by a thread that stayed behind
            self._begin()
        state = self._state
        with state.changed:
            while state.pending >= most:
                if state.thread == threading.get_ident():
                    raise InputError(
                        f"{state.pending} runs are pending, and this one is submitted by a "
                        "callback of theirs, which cannot wait for them; raise max_pending",
                        name="max_pending",
                        expected=f"< {most} pending",
                        got=str(state.pending),
                    )
                state.changed.wait()
            state.pending += 1
        try:
            future = self._pool.submit(state.call, call, *arguments)
        except BaseException:
            state.done()
            raise
        future.add_done_callback(state.done)
        return future


class _State:
    """Part of the queue that its thread uses, and that outlives the queue."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.pending = 0
        self.thread = 0

    def call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.thread = threading.get_ident()
        return call(*arguments)

    def done(self, _future: Any = None) -> None:
        with self.changed:
            self.pending -= 1
            self.changed.notify()
