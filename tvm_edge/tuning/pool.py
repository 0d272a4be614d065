"""Pool of processes that build candidates side by side and measure them one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.candidate_worker import Build, Drop, Measure, start_worker
from tvm_edge.tuning.worker import Done, Failed, Limits, Worker, wait_for_answers

__all__ = ["Pool", "Trial"]

_HELD = 8  # built candidates that a worker holds until they are measured


@dataclass(frozen=True)
class Trial:
    """Candidate to build and measure."""

    workload: ConvWorkload
    config: ConvConfig
    problem: Path
    best: float = float("inf")
    """Seconds of the best known candidate of its task."""


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
                self._workers.append(start_worker(self._target, None, self._num_threads))
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
        """Measure each candidate as soon as it is built, while others are built."""
        queue = deque(range(len(trials)))
        busy: dict[Worker, _Built | None] = {}
        while True:
            self._feed(queue, trials, busy)
            if not busy:
                return
            for worker, answer in wait_for_answers(list(busy), self._check):
                asked = busy.pop(worker)
                if asked is None:
                    continue
                if isinstance(answer, Done):
                    answer = self._measure(asked, trials[asked.place])
                yield asked.place, answer

    def measure_in_turns(
        self, trials: Sequence[Trial], rounds: int, seconds: float
    ) -> list[Done | Failed]:
        """Time candidates of one task round by round, each once in a round: drift meets all.

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
                    answer = self._asked(made.worker, ask)
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
            for worker, answer in wait_for_answers(list(busy), self._check):
                asked = busy.pop(worker)
                if asked is None:
                    continue
                if isinstance(answer, Failed):
                    failed.append((asked.place, answer))
                else:
                    built.append(asked)

    def _feed(
        self, queue: deque[int], trials: Sequence[Trial], busy: dict[Worker, _Built | None]
    ) -> None:
        """Give queued trials to idle workers; `busy` also has those that start."""
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
        answer = self._asked(made.worker, ask)
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

    def _asked(self, worker: Worker, ask: Measure) -> Done | Failed:
        answer: Done | Failed = worker.call(ask, self.limits.measure, self._check)
        # A new process that starts takes the cores of who is next.
        worker.wait_until_ready(self._check)
        return answer


@dataclass(frozen=True)
class _Built:
    """Trial that a worker holds."""

    worker: Worker
    generation: int
    place: int
    token: int

    @property
    def is_lost(self) -> bool:
        """Return true if the process that built it has died."""
        return self.worker.generation != self.generation
