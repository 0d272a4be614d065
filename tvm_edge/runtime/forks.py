"""Models that are loaded before a process forks, and used in the child.

A fork has one thread. What others were in the middle of stays so for ever: a fork therefore waits
until no model runs, and where that takes too long the child goes on without what was running.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from time import monotonic
from typing import Protocol
from weakref import WeakSet

__all__ = ["survive_forks"]

_WAIT_SECONDS = 5.0


class _Runs(Protocol):
    """Something that runs under locks."""

    def run_locks(self) -> list[threading.Lock]: ...

    def replace_held(self, held: Collection[threading.Lock]) -> None: ...


_all: WeakSet[_Runs] = WeakSet()
_changing = threading.Lock()
_taken: list[threading.Lock] = []
_held: set[threading.Lock] = set()


def survive_forks(runs: _Runs) -> None:
    """Have forks of this process wait for runs of an object, for as long as it lives."""
    with _changing:
        _all.add(runs)


def _before() -> None:
    deadline = monotonic() + _WAIT_SECONDS
    _changing.acquire()
    for runs in list(_all):
        for lock in runs.run_locks():
            # A run may fork itself, in a signal's handler: nobody else would free its lock.
            if lock.acquire(timeout=max(0.0, deadline - monotonic())):
                _taken.append(lock)
            else:
                _held.add(lock)


def _after() -> None:
    for lock in _taken:
        lock.release()
    _taken.clear()
    _held.clear()
    _changing.release()


def _in_child() -> None:
    if _held:
        for runs in list(_all):
            runs.replace_held(_held)
    _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
