"""Run of the tuner: convolutions in rounds, one list of tasks with one search and one log."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

from tvm_edge.errors import TuningError
from tvm_edge.files import temporary_folder
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.schedules.conv_records import TEMPLATES, template_of
from tvm_edge.tuning.confirm import FINALISTS, confirm
from tvm_edge.tuning.conv_problem import ProblemFiles
from tvm_edge.tuning.fleet import Fleet
from tvm_edge.tuning.interrupt import Interrupt
from tvm_edge.tuning.measurer import Boards, Measurer, make_measurer
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.recorder import Recorder
from tvm_edge.tuning.result import Progress, TaskResult, TuneResult
from tvm_edge.tuning.run_log import LoggedTrial, RunLog
from tvm_edge.tuning.search import Search, TaskSearch
from tvm_edge.tuning.tasks import Task, digest
from tvm_edge.tuning.worker import Failed

__all__ = ["Run"]

_LOG = logging.getLogger("tvm_edge.tuning")

_MOST_CONFIRMING = 1 / 2  # of a time budget is kept for the last round
_CONFIRMATIONS = 2  # of a convolution, about: who was lucky once is followed by the next


@dataclass
class Run:
    """Run and its state; called once."""

    model: str
    resolved: ResolvedTarget
    target: Any
    boards: Boards | None
    tasks: Sequence[Task]
    folder: Path
    recorder: Recorder
    seed: int
    callbacks: Sequence[Callable[[Progress], None]]
    errors: Counter[str] = field(default_factory=Counter)
    taken: int = 0  # trials that a run before has measured
    last_failure: str = ""
    interrupt: Interrupt = field(default_factory=Interrupt)
    device: Callable[[], AbstractContextManager[None]] = nullcontext
    turn: int = 4  # trials that a task gets at a time

    def __call__(self, total: int, time_budget: float | None, resume: bool) -> TuneResult:
        start = monotonic()
        spec = self.resolved.spec
        templates = sorted({template_of(spec, task.workload) for task in self.tasks})
        header = {
            "tasks": digest(self.tasks, *(f"{name} {TEMPLATES[name]}" for name in templates)),
            "device": spec.key,
            "kind": self.resolved.kind,
            "seed": self.seed,
        }
        # Not .jsonl: whatever of the folder ends so are records.
        path = self.folder / "runs" / f"{digest(self.tasks, json.dumps(header))}.run"
        pool, slots, self.device = make_measurer(
            self.resolved, self.target, self.boards, self.interrupt.check
        )
        sizes = [len(task.configs) for task in self.tasks]
        log = RunLog(path, header, self.recorder.known(self.tasks), slots, sizes, resume)
        search = Search(
            [
                TaskSearch.of(task, [task.configs[place] for place in places])
                for task, places in zip(self.tasks, log.known, strict=True)
            ],
            self.seed,
        )
        interrupted = False
        try:
            self._replay(search, log)
            with (
                self.interrupt,
                self._problems() as problems,  # longer than what reads them
                pool,
            ):
                if isinstance(pool, Fleet):
                    self.recorder.driver = pool.sessions.driver
                try:
                    self._rounds(search, log, pool, problems, start, total, time_budget)
                finally:
                    self.recorder.save()
                with self.device():
                    confirm(search, pool, problems, self.recorder)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.recorder.save()
            log.close()
        if not interrupted and self.errors and all(not isfinite(s.best) for s in search.tasks):
            counts = ", ".join(f"{name} ×{n}" for name, n in self.errors.items())
            raise TuningError(
                f"no configuration of {self.model} could be measured on "
                f"{self.resolved.spec.name} ({counts}; the last: {self.last_failure}); tvm-edge "
                "doctor says what is wrong with the device"
            )
        # After the last measurement it ended nothing, and is still what the caller is to do.
        interrupted = interrupted or self.interrupt.noted
        return self._result(search, monotonic() - start, interrupted)

    @contextmanager
    def _problems(self) -> Iterator[ProblemFiles]:
        with temporary_folder("tune") as folder:
            yield ProblemFiles(folder, [task.workload for task in self.tasks])

    def _replay(self, search: Search, log: RunLog) -> None:
        for logged in log.rounds:
            found: dict[int, dict[int, float]] = {}
            for trial in logged:
                found.setdefault(trial.task, {})[trial.place] = trial.cost
                if trial.error:
                    self.errors[trial.error] += 1
            search.tell(found)
        self.taken = search.measured

    def _rounds(
        self,
        search: Search,
        log: RunLog,
        pool: Measurer,
        problems: ProblemFiles,
        start: float,
        total: int,
        time_budget: float | None,
    ) -> None:
        number = len(log.rounds)
        begun = {(trial.task, trial.place): trial for trial in log.begun}
        while search.measured < total:
            self.interrupt.check()
            if time_budget is not None and _is_spent(time_budget, monotonic() - start, search):
                break
            # Rounds are the same whatever the total, so that a run can go on to a larger one.
            proposals = search.propose(log.slots, self.turn)
            if not proposals:
                break
            whole = _in_turns(proposals, self.turn)
            asked = whole[: total - search.measured]
            before = {task: search.tasks[task].best for task, _ in asked}
            found: dict[int, dict[int, float]] = {}
            try:
                with self.device():
                    for trial in self._measured(asked, begun, search, pool, problems, log):
                        found.setdefault(trial.task, {})[trial.place] = trial.cost
            except KeyboardInterrupt:
                search.tell(found)  # the summary counts them
                raise
            begun = {}
            self.recorder.save()
            if asked == whole:
                log.end_round(number)
                number += 1
            search.tell(found)
            self._report(search, before, monotonic() - start, total)

    def _measured(
        self,
        asked: Sequence[tuple[int, int]],
        begun: Mapping[tuple[int, int], LoggedTrial],
        search: Search,
        pool: Measurer,
        problems: ProblemFiles,
        log: RunLog,
    ) -> Iterator[LoggedTrial]:
        for key in asked:
            if key in begun:
                if begun[key].error:
                    self.errors[begun[key].error] += 1
                self.taken += 1
                yield begun[key]
        fresh = [key for key in asked if key not in begun]
        trials = [
            Trial(
                search.tasks[task].task.workload,
                search.tasks[task].task.configs[place],
                problems.path(task),
                search.tasks[task].best,
            )
            for task, place in fresh
        ]
        for number, answer in pool.run(trials):
            task, place = fresh[number]
            if isinstance(answer, Failed):
                self.errors[answer.error] += 1
                self.last_failure = answer.message
                _LOG.info("%s: %s: %s", trials[number].config, answer.error, answer.message)
                trial = LoggedTrial(task, place, (), answer.error)
            else:
                trial = LoggedTrial(task, place, answer.latencies)
            log.add(trial)
            self.recorder.keep(search.tasks[task].task, place, trial.latencies, trial.error)
            yield trial

    def _report(
        self, search: Search, before: Mapping[int, float], seconds: float, total: int
    ) -> None:
        if not self.callbacks:
            return

        def saved(index: int) -> float:
            own = search.tasks[index]
            first = before[index] if isfinite(before[index]) else 2 * own.best
            return own.task.count * (first - own.best) if isfinite(own.best) else 0.0

        chosen = search.tasks[max(before, key=saved)]
        rate = (search.measured - self.taken) / seconds
        results = [_task_result(own) for own in search.tasks]
        progress = Progress(
            trials=search.measured,
            total=total,
            seconds=seconds,
            rate=rate,
            remaining=(total - search.measured) / rate if rate else float("inf"),
            tasks=len(search.tasks),
            tuned=sum(own.best_place != 0 for own in search.tasks if own.measured),
            failed=sum(self.errors.values()),
            task=_task_result(chosen).name,
            gflops=chosen.task.flops / chosen.best / 1e9,
            network_ms=1e3 * sum(result.count * result.best for result in results),
        )
        for callback in self.callbacks:
            callback(progress)

    def _result(self, search: Search, seconds: float, interrupted: bool) -> TuneResult:
        return TuneResult(
            model=self.model,
            device=self.resolved.spec.name,
            tasks=tuple(_task_result(own) for own in search.tasks),
            trials=search.measured - self.taken,
            failed=sum(self.errors.values()),
            seconds=seconds,
            folder=self.folder,
            interrupted=interrupted,
            errors=dict(self.errors),
        )


def _in_turns(proposals: Sequence[tuple[int, Sequence[int]]], turn: int) -> list[tuple[int, int]]:
    """List tasks and places, a turn of each task before the second of any.

    A round may be cut short.
    """
    asked = [(at // turn, t, place) for t, own in proposals for at, place in enumerate(own)]
    return [(task, place) for _, task, place in sorted(asked, key=lambda one: one[0])]


def _is_spent(time_budget: float, elapsed: float, search: Search) -> bool:
    """Return true if the rest of a time budget is as long as the last round."""
    tasks = sum(bool(own.measured) for own in search.tasks)
    trials = _CONFIRMATIONS * (FINALISTS + 1) * tasks  # the heuristic's choice is one more
    confirming = trials * elapsed / search.measured if search.measured else 0.0
    return elapsed + min(confirming, _MOST_CONFIRMING * time_budget) > time_budget


def _task_result(search: TaskSearch) -> TaskResult:
    heuristic = search.measured.get(0, float("inf"))
    config = search.task.configs[search.best_place]
    return TaskResult(
        workload=search.task.workload,
        count=search.task.count,
        trials=len(search.measured),
        failed=sum(not isfinite(seconds) for seconds in search.measured.values()),
        heuristic=heuristic,
        best=search.best,
        config=config,
    )
