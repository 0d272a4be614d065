"""Processes that build candidates side by side and measure them one after the other."""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any

from tvm_edge.child import Child, ChildEnded
from tvm_edge.errors import DeviceLost, MeasureTimeout, MissingDependencyError
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.serving import Done, Failed
from tvm_edge.tuning.worker import Build, Drop, Measure

__all__ = ["Limits", "Pool", "Trial", "Worker"]

_LOG = logging.getLogger("tvm_edge.tuning")

_START_SECONDS = 120.0
_CHECK_SECONDS = 0.2
_HELD = 8  # built candidates that a worker holds until they are measured


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds, and how a candidate is timed.

    Attributes
    ----------
    build, measure : float
        After which a candidate is given up.
    rounds : int
        Timings of a candidate.
    seconds : float
        Of one timing.
    hopeless : float
        A candidate so many times slower than the best of its task is timed once.
    """

    build: float = 60.0
    measure: float = 20.0
    rounds: int = 3
    seconds: float = 0.015
    hopeless: float = 1.5


@dataclass(frozen=True)
class Trial:
    """A candidate to build and measure."""

    workload: ConvWorkload
    config: ConvConfig
    problem: Path
    best: float = float("inf")
    """Seconds of the best known of its task."""


class Worker(Child):
    """A process that builds and measures, or the one that took its place."""

    def __init__(self, target: Any, host: Any, num_threads: int) -> None:
        self._given = (target, host, num_threads)
        self.generation = 0
        super().__init__("tvm_edge.tuning.worker")

    def start(self) -> None:
        super().start()
        self.ask(self._given, _START_SECONDS)
        self.ready = False
        self._paused = False
        self.generation += 1

    def answer(self) -> Done | Failed:
        """What it sent; a dead one is replaced, and one whose kernels failed."""
        try:
            answer: Done | Failed = self.receive()
        except ChildEnded as err:
            return self.replaced(DeviceLost, str(err))
        self.ready = True
        if isinstance(answer, Failed) and answer.ran:
            self.stop()
            self.start()
        return answer

    def replaced(self, error: type[Exception], message: str) -> Failed:
        """A new process, and why."""
        _LOG.info("a measuring process is replaced: %s", message)
        was_ready = self.ready
        self.stop()
        if not was_ready:
            raise DeviceLost(
                f"a process that measures on {self._given[0]} does not start: {message}; "
                "what it wrote on standard error says why"
            )
        self.start()
        return Failed(error.__name__, message)

    def pause(self, wanted: bool) -> None:
        """Stop the process, or let it go on; returns when all its threads have stopped."""
        if wanted == self._paused:
            return
        self.process.send_signal(signal.SIGSTOP if wanted else signal.SIGCONT)
        self._paused = wanted
        if wanted and self.process.returncode is None:
            pid, stopped = self.process.pid, os.WSTOPPED
            # How it ended, if it did, is left for `answer` to find out; that it stopped is not.
            os.waitid(os.P_PID, pid, stopped | os.WEXITED | os.WNOWAIT)
            os.waitid(os.P_PID, pid, stopped | os.WNOHANG)


class Pool:
    """Workers for one device of this machine.

    Builds run side by side. Nothing is built while a candidate is measured on a CPU, whose cores
    it would take; beside a GPU the others go on.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        For :func:`tvm_edge.hardware.resolve_target`, in each of the processes.
    workers : int
    num_threads : int
        Of a CPU's kernels.
    limits : Limits, optional
    beside : bool
        Whether others may be built while a candidate is measured.
    check : callable
        Called every fifth of a second; what it raises ends the wait.
    """

    def __init__(
        self,
        target: Any,
        workers: int,
        num_threads: int,
        limits: Limits | None = None,
        *,
        beside: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._target, self._num_threads = target, num_threads
        self.limits = limits or Limits()
        self._workers: list[Worker] = []
        self._count, self._beside, self._check = workers, beside, check
        self._tokens = count()

    def __enter__(self) -> Pool:
        try:
            for _ in range(self._count):
                self._workers.append(Worker(self._target, None, self._num_threads))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, whatever they do."""
        while self._workers:
            self._workers.pop().stop()

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[int, Done | Failed]]:
        """Build and measure; yields each trial's place and result as it comes.

        Trials that a worker had built when it died are built again; the one it died of is not.

        Raises
        ------
        MissingDependencyError
            There is no compiler: no trial can be built.
        DeviceLost
            A process does not start.
        """
        if self._beside:
            yield from self._run_beside(trials)
            return
        waiting = list(range(len(trials)))
        while waiting:
            batch, waiting = waiting[: _HELD * self._count], waiting[_HELD * self._count :]
            built, failed = self._build(batch, trials)
            yield from failed
            for made in built:
                if made.is_lost:
                    waiting.append(made.place)
                    continue
                self._pause_others(made.worker)
                yield made.place, self._measure(made, trials[made.place])
            self._pause_others(None)

    def _run_beside(self, trials: Sequence[Trial]) -> Iterator[tuple[int, Done | Failed]]:
        """Each is measured as soon as it is built, while others are built."""
        queue = deque(range(len(trials)))
        busy: dict[Worker, _Built | None] = {}
        while True:
            self._feed(queue, trials, busy)
            if not busy:
                return
            for worker, answer in self._answers(list(busy)):
                asked = busy.pop(worker)
                if asked is None:
                    continue
                if isinstance(answer, Done):
                    answer = self._measure(asked, trials[asked.place])
                else:
                    _check_compiler(answer)
                yield asked.place, answer

    def measure_in_turns(
        self, trials: Sequence[Trial], rounds: int, seconds: float
    ) -> list[Done | Failed]:
        """Candidates of one task timed round by round, each once in a round: drift meets all.

        One that fails stays out of the further rounds; those that its process had built are built
        again.
        """
        found: dict[int, Done | Failed] = {}
        waiting = list(range(len(trials)))
        while waiting:
            built, failed = self._build(waiting, trials)
            found |= dict(failed)
            found |= {made.place: Done() for made in built}
            for _ in range(rounds):
                for made in built:
                    before = found[made.place]
                    if made.is_lost or isinstance(before, Failed):
                        continue
                    if not self._beside:
                        self._pause_others(made.worker)
                    ask = Measure(made.token, 1, seconds, float("inf"))
                    answer = self._asked(made.worker, ask, self.limits.measure)
                    if isinstance(answer, Done):
                        answer = Done((*before.latencies, *answer.latencies))
                    found[made.place] = answer
            self._pause_others(None)
            for made in built:
                self._drop(made)
            waiting = [
                made.place
                for made in built
                if made.is_lost and not isinstance(found[made.place], Failed)
            ]
        return [found[place] for place in range(len(trials))]

    def _build(
        self, places: Iterable[int], trials: Sequence[Trial]
    ) -> tuple[list[_Built], list[tuple[int, Failed]]]:
        built: list[_Built] = []
        failed: list[tuple[int, Failed]] = []
        queue = deque(places)
        busy: dict[Worker, _Built | None] = {}
        while True:
            self._feed(queue, trials, busy)
            if not busy:
                return built, failed
            for worker, answer in self._answers(list(busy)):
                asked = busy.pop(worker)
                if isinstance(answer, Failed):
                    _check_compiler(answer)
                    if asked is not None:
                        failed.append((asked.place, answer))
                elif asked is not None:
                    built.append(asked)

    def _feed(
        self, queue: deque[int], trials: Sequence[Trial], busy: dict[Worker, _Built | None]
    ) -> None:
        """Give what is in the queue to those that are idle; `busy` also has those that start."""
        for worker in self._workers:
            if worker in busy:
                continue
            if not worker.ready:
                busy[worker] = None
            elif queue:
                trial = trials[queue[0]]
                made = _Built(worker, worker.generation, queue.popleft(), next(self._tokens))
                ask = Build(made.token, trial.workload, trial.config, trial.problem)
                worker.ask(ask, self.limits.build)
                busy[worker] = made

    def _measure(self, made: _Built, trial: Trial) -> Done | Failed:
        limits = self.limits
        ask = Measure(made.token, limits.rounds, limits.seconds, limits.hopeless * trial.best)
        answer = self._asked(made.worker, ask, limits.measure)
        self._drop(made)
        return answer

    def _pause_others(self, worker: Worker | None) -> None:
        """Stop all processes but one, or let all go on.

        The threads of TVM's pools, and of OpenCL's on a CPU, look for work for a while before they
        sleep: they would take the cores of what is measured, and double its time.
        """
        for other in self._workers:
            other.pause(worker is not None and other is not worker)

    def _drop(self, made: _Built) -> None:
        if not made.is_lost:
            made.worker.ask(Drop(made.token), self.limits.measure)

    def _asked(self, worker: Worker, ask: Measure, seconds: float) -> Done | Failed:
        worker.ask(ask, seconds)
        ((_, answer),) = self._answers([worker])
        while not worker.ready:  # a new process that starts takes the cores of who is next
            self._answers([worker])
        return answer

    def _answers(self, workers: Sequence[Worker]) -> list[tuple[Worker, Done | Failed]]:
        """Wait for one of them to answer, to die or to run out of time."""
        asked = {worker.connection: worker for worker in workers}
        while True:
            self._check()
            left = min(worker.deadline for worker in workers) - monotonic()
            ready = wait(list(asked), min(max(left, 0.0), _CHECK_SECONDS))
            if ready or left <= 0:
                break
        if ready:
            return [(w, w.answer()) for c, w in asked.items() if c in ready]
        late = min(workers, key=lambda worker: worker.deadline)
        return [(late, late.replaced(MeasureTimeout, "it ran past its time"))]


def _check_compiler(answer: Failed) -> None:
    if answer.error == MissingDependencyError.__name__:
        raise MissingDependencyError(answer.message)


@dataclass(frozen=True)
class _Built:
    """A trial that a worker holds."""

    worker: Worker
    generation: int
    place: int
    token: int

    @property
    def is_lost(self) -> bool:
        """Whether the process that built it has died."""
        return self.worker.generation != self.generation
