"""Fleet of boards, which measure side by side what processes of this machine build for them.

A board that is lost or late ends its session; another begins with whichever board of the key the
tracker has. A candidate that a board was lost with is tried once more, on any of them, since a
board may go for reasons of its own.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm_edge.hardware import resolve_target
from tvm_edge.tuning.board_sessions import BoardSessions
from tvm_edge.tuning.fleet_threads import CHECK_SECONDS, BoardThread, BuilderThread, Job, JobQueues
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.worker import Done, Failed, Limits

__all__ = ["Fleet"]


class Fleet:
    """Boards that serve a key, or one board; used as :class:`~tvm_edge.tuning.pool.Pool` is.

    Parameters
    ----------
    target, host
        As for :func:`tvm_edge.compile`; of the boards.
    tracker : str
        ``host:port`` of a tracker, or of a board's own server.
    key : str or None
        ``None`` for a server without a tracker.
    builders : int
        Processes of this machine that build.
    limits : Limits, optional
    check : callable
        Called every fifth of a second; what it raises ends the wait.

    Attributes
    ----------
    sessions : BoardSessions

    Raises
    ------
    DeviceUnavailableError
        There is no tracker.
    """

    def __init__(
        self,
        target: Any,
        host: Any,
        tracker: str,
        key: str | None,
        builders: int,
        limits: Limits | None = None,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits or Limits()
        self._target, self._host, self._check = target, host, check
        self._resolved = resolve_target(target, host)
        self.sessions = BoardSessions(self._resolved, target, tracker, key)
        self._queues = JobQueues()
        self._count = builders
        self._builders: list[BuilderThread] = []
        self._boards: list[BoardThread] = []

    def __enter__(self) -> Fleet:
        try:
            for _ in range(self.sessions.size):
                cores = self._resolved.spec.cores
                self._boards.append(BoardThread(self._queues, self.sessions, self._boards, cores))
            self._boards[0].agent = self.sessions.open_first()
            suffix = ".so" if self._resolved.host is None else ".tvme"
            self._builders = [
                BuilderThread(self._queues, self._target, self._host, suffix)
                for _ in range(self._count)
            ]
            for thread in (*self._builders, *self._boards):
                thread.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End sessions and processes, whatever they do."""
        self._queues.ending.set()
        threads: list[BuilderThread | BoardThread] = [*self._boards, *self._builders]
        for thread in threads:
            thread.interrupt()
        for thread in threads:
            thread.finish()

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[int, Done | Failed]]:
        """Build and measure; yields each trial's place and result as it comes.

        Raises
        ------
        DeviceLost
            No board is left.
        MissingDependencyError
            There is no linker for the boards.
        """
        limits = self.limits
        yield from self._done(
            [
                Job({place: trial}, limits, limits.rounds, limits.seconds)
                for place, trial in enumerate(trials)
            ]
        )

    def measure_in_turns(
        self, trials: Sequence[Trial], rounds: int, seconds: float
    ) -> list[Done | Failed]:
        """Time candidates of one task round by round on one board, each once in a round."""
        job = Job(dict(enumerate(trials)), self.limits, rounds, seconds)
        found = dict(self._done([job]))
        return [found[place] for place in range(len(trials))]

    def _done(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Done | Failed]]:
        left = self._queues.begin(jobs)
        while left:
            self._check()
            try:
                found = self._queues.found.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                if not any(board.is_alive() for board in self._boards):
                    raise self.sessions.none_left() from None
                continue
            if isinstance(found, Exception):
                raise found
            job, place, answer = found
            if self._queues.is_current(job):
                left -= 1
                yield place, answer
