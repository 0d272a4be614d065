"""``tune``: measure configurations of a model's convolutions on a device, and keep them."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import isfinite
from numbers import Integral
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import tvm

from tvm_edge.compiler.tuned import TuningLogs
from tvm_edge.errors import (
    DeviceUnavailableError,
    InputError,
    TuningError,
    TvmEdgeWarning,
    near_matches,
)
from tvm_edge.hardware import ResolvedTarget, devices, resolve_target
from tvm_edge.records import Record, RecordLibrary, add_records, recorded_device, user_folder
from tvm_edge.runtime.threads import resolve_num_threads
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import (
    TEMPLATES,
    config_of,
    config_space,
    recorded_config,
    recorded_workload,
    template_of,
)
from tvm_edge.tuning.pool import Pool, Trial
from tvm_edge.tuning.problem import make_problem
from tvm_edge.tuning.result import Progress, TaskResult, TuneResult
from tvm_edge.tuning.run_log import LoggedTrial, RunLog
from tvm_edge.tuning.search import Search, TaskSearch
from tvm_edge.tuning.tasks import Task, digest, extract_tasks
from tvm_edge.tuning.worker import Done, Failed

__all__ = ["LEVELS", "tune"]

_LOG = logging.getLogger("tvm_edge.tuning")

LEVELS = {"fast": 10, "normal": 64, "exhaustive": None}
"""Trials for each distinct convolution, shared out by what they are expected to save."""

_EACH = 4  # trials that a task gets at a time
_PER_WORKER = 4  # trials of a round for each process

# The fastest of each convolution are timed again in turns, as the first among many is the luckiest.
_FINALISTS, _FINAL_ROUNDS, _FINAL_SECONDS = 3, 5, 0.02

_MOST_WORKERS = 16
_KNOWN = 4  # records of like devices to begin with


def tune(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target = "llvm",
    *,
    trials: int | None = None,
    time_budget: float | None = None,
    level: str = "normal",
    host: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str = "float32",
    tracker: str | None = None,
    key: str | None = None,
    tuning_logs: TuningLogs = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Callable[[Progress], None]] = (),
) -> TuneResult:
    """Find the fastest kernels of a model's convolutions on a device of this machine.

    What is measured goes into the user's tuning records, which ``compile`` takes from then on.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule or ``"zoo:NAME"``
    target : str, dict or tvm.target.Target
        A device of this machine.
    trials : int, optional
        Configurations to measure in all, in place of those of the level.
    time_budget : float, optional
        Seconds after which no further round begins.
    level : {"fast", "normal", "exhaustive"}
        10 or 64 trials for each distinct convolution on average, or all there are.
    host, input_shapes
        As for :func:`tvm_edge.compile`.
    precision : {"float32"}
        Records of other precisions do not exist yet.
    tracker, key : optional
        For boards behind TVM's RPC tracker: not available yet.
    tuning_logs : path, optional
        Folder of the records; default ``TVM_EDGE_TUNING_LOGS``, else the platform's data folder.
    resume : bool
        Go on with the run of the same model, device and seed that was interrupted.
    seed : int
    callbacks : sequence of callable
        Called with a :class:`Progress` after each round.

    Returns
    -------
    TuneResult
        Of an interrupted run as well: Ctrl-C ends it, and what was measured is kept.

    Raises
    ------
    InputError
        An argument means nothing, or what this version cannot do.
    DeviceUnavailableError
        The device is not in this machine.
    MissingDependencyError
        XGBoost, or a compiler for the device.
    RecordError
        The folder cannot be written: the disk is full, say.
    TuningError
        Every candidate failed.
    """
    _check(trials, time_budget, level, precision, tracker, key, tuning_logs, seed)
    resolved = resolve_target(target, host)
    _check_device(resolved)
    folder = user_folder(tuning_logs if not isinstance(tuning_logs, bool) else None)
    tasks = extract_tasks(model, resolved, input_shapes)
    name = model if isinstance(model, str | os.PathLike) else type(model).__name__
    run = _Run(
        str(name),
        resolved,
        tasks,
        folder,
        seed,
        tuple(callbacks),
        driver=_driver(resolved.kind),
    )
    each = LEVELS[level]
    every = sum(len(task.configs) for task in tasks)
    wanted = trials if trials is not None else every if each is None else each * len(tasks)
    given = target if isinstance(target, str | dict) else json.loads(str(target))
    return run(given, min(wanted, every), time_budget, resume)


def _check(
    trials: Any,
    time_budget: Any,
    level: Any,
    precision: Any,
    tracker: Any,
    key: Any,
    tuning_logs: Any,
    seed: Any,
) -> None:
    for name, value in (("trials", trials), ("seed", seed)):
        least = 1 if name == "trials" else 0
        if (value is not None or name == "seed") and (
            not isinstance(value, Integral) or isinstance(value, bool) or value < least
        ):
            raise InputError(
                f"{name} is {value!r}, and must be a whole number of at least {least}",
                name=name,
                expected=f"a number >= {least}",
                got=repr(value),
            )
    if time_budget is not None and (
        not isinstance(time_budget, int | float)
        or isinstance(time_budget, bool)
        or not time_budget > 0
    ):
        raise InputError(
            f"time_budget is {time_budget!r}, and must be a positive number of seconds",
            name="time_budget",
            got=repr(time_budget),
        )
    if not isinstance(level, str) or level not in LEVELS:
        known = ", ".join(LEVELS)
        raise InputError(
            f"level={level!r} does not exist; {near_matches(str(level), LEVELS)}",
            name="level",
            expected=known,
            got=repr(level),
        )
    if precision != "float32":
        raise InputError(
            f"precision={precision!r} cannot be tuned: tuning records are of float32; leave "
            "precision out",
            name="precision",
            got=repr(precision),
        )
    if tracker is not None or key is not None:
        raise InputError(
            "boards behind an RPC tracker are not available in this version of tvm-edge; run "
            "tune on the board itself, without tracker and key (--rpc-tracker, --rpc-key)",
            name="key" if tracker is None else "tracker",
            got=repr(key if tracker is None else tracker),
        )
    if isinstance(tuning_logs, bool):
        raise InputError(
            f"tuning_logs={tuning_logs!r} (--tuning-records none) names no folder, and a run has "
            "to keep what it measures; leave it out, or name a folder",
            name="tuning_logs",
            got=repr(tuning_logs),
        )
    if tuning_logs is not None and Path(tuning_logs).is_file():
        raise InputError(
            f"tuning_logs={str(tuning_logs)!r} is a file, and a run writes a folder of them; name "
            "its folder",
            name="tuning_logs",
            got=repr(str(tuning_logs)),
        )


def _check_device(resolved: ResolvedTarget) -> None:
    """What is measured here is recorded as that device's: it has to be it."""
    kind = resolved.kind
    if kind != "llvm" and not tvm.device(kind, 0).exist:
        raise DeviceUnavailableError(
            f"this machine has no {kind} device to measure {resolved.spec.name} on; tvm-edge "
            "devices shows what it has"
        )
    here = resolve_target(kind).spec
    if here.key != resolved.spec.key:
        raise DeviceUnavailableError(
            f"{resolved.spec.name} is not in this machine, whose {kind} device is {here.name} "
            f"({here.key}); tune on the device itself, or with target={kind!r} for this one"
        )


@dataclass
class _Run:
    """A run and its state."""

    model: str
    resolved: ResolvedTarget
    tasks: Sequence[Task]
    folder: Path
    seed: int
    callbacks: Sequence[Callable[[Progress], None]]
    errors: Counter[str] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)
    taken: int = 0  # trials that a run before has measured
    driver: str = ""
    last_failure: str = ""

    def __call__(
        self, target: Any, total: int, time_budget: float | None, resume: bool
    ) -> TuneResult:
        start = monotonic()
        template = template_of(self.resolved.spec)
        header = {
            "tasks": digest(self.tasks, f"{template} {TEMPLATES[template]}"),
            "device": self.resolved.spec.key,
            "kind": self.resolved.kind,
            "seed": self.seed,
        }
        # Not .jsonl: whatever of the folder ends so are records.
        path = self.folder / "runs" / f"{digest(self.tasks, json.dumps(header))}.run"
        slots = _PER_WORKER * max(len(os.sched_getaffinity(0)) - 1, 2)
        sizes = [len(task.configs) for task in self.tasks]
        log = RunLog(path, header, self._known(), slots, sizes, resume)
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
            with self._pool(target) as pool, self._problems() as problems:
                try:
                    self._rounds(search, log, pool, problems, start, total, time_budget)
                finally:
                    self._save()
                self._confirm(search, pool, problems)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._save()
            log.close()
        if not interrupted and self.errors and all(not isfinite(s.best) for s in search.tasks):
            counts = ", ".join(f"{name} ×{n}" for name, n in self.errors.items())
            raise TuningError(
                f"no configuration of {self.model} could be measured on "
                f"{self.resolved.spec.name} ({counts}; the last: {self.last_failure}); tvm-edge "
                "doctor says what is wrong with the device"
            )
        return self._result(search, monotonic() - start, interrupted)

    def _known(self) -> list[list[int]]:
        """Places of configurations that records have, of this device and of like ones."""
        spec = self.resolved.spec
        found = []
        with RecordLibrary(recorded_device(spec), self.folder) as library:
            for task in self.tasks:
                places = {config: place for place, config in enumerate(task.configs)}
                space = config_space(task.workload, spec)
                own: dict[int, None] = {}
                for each in library.candidates(
                    recorded_workload(task.workload), self.resolved.kind
                ):
                    try:
                        place = places.get(config_of(each.record, space, spec))
                    except ValueError:  # of another version, or not legal here
                        continue
                    if place is not None:
                        own[place] = None
                    if len(own) == _KNOWN:
                        break
                found.append(list(own))
            for message in library.warnings:
                warnings.warn(message, TvmEdgeWarning, stacklevel=4)
        return found

    def _pool(self, target: Any) -> Pool:
        cores = len(os.sched_getaffinity(0))
        on_cpu = self.resolved.spec.has_cpu_cores  # OpenCL may be, too
        workers = max(1, min(_MOST_WORKERS, cores if on_cpu else cores - 1))
        return Pool(target, workers, resolve_num_threads(None), beside=not on_cpu)

    @contextmanager
    def _problems(self) -> Iterator[_Problems]:
        with tempfile.TemporaryDirectory(prefix="tvm-edge-tune-") as folder:
            yield _Problems(Path(folder), self.tasks)

    def _replay(self, search: Search, log: RunLog) -> None:
        for logged in log.rounds:
            found: dict[int, dict[int, float]] = {}
            for trial in logged:
                found.setdefault(trial.task, {})[trial.place] = _cost(trial)
                if trial.error:
                    self.errors[trial.error] += 1
            search.tell(found)
        self.taken = search.measured

    def _rounds(
        self,
        search: Search,
        log: RunLog,
        pool: Pool,
        problems: _Problems,
        start: float,
        total: int,
        time_budget: float | None,
    ) -> None:
        number = len(log.rounds)
        begun = {(trial.task, trial.place): trial for trial in log.begun}
        while search.measured < total:
            if time_budget is not None and monotonic() - start > time_budget:
                break
            # Rounds are the same whatever the total, so that a run can go on to a larger one.
            proposals = search.propose(log.slots, _EACH)
            if not proposals:
                break
            whole = [(task, place) for task, places in proposals for place in places]
            asked = whole[: total - search.measured]
            before = {task: search.tasks[task].best for task, _ in asked}
            found: dict[int, dict[int, float]] = {}
            try:
                for trial in self._measured(asked, begun, search, pool, problems, log):
                    found.setdefault(trial.task, {})[trial.place] = _cost(trial)
            except KeyboardInterrupt:
                search.tell(found)  # the summary counts them
                raise
            begun = {}
            self._save()
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
        pool: Pool,
        problems: _Problems,
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
            self._keep(search.tasks[task].task, place, trial.latencies, trial.error)
            yield trial

    def _confirm(self, search: Search, pool: Pool, problems: _Problems) -> None:
        """Time the fastest of each convolution again, beside the heuristic's choice.

        Until the fastest by all that is known is one of them: a configuration that was lucky once
        would be taken otherwise.
        """
        if not search.measured:
            return
        sleep(1)  # of two records of one kernel the later stays, and they have the time in seconds
        for index, own in enumerate(search.tasks):
            confirmed: dict[int, float] = {}
            while True:
                ranked = sorted(own.measured, key=lambda place: (own.measured[place], place))
                ranked = [place for place in ranked if isfinite(own.measured[place])]
                if not ranked or ranked[0] in confirmed:
                    break
                best = [place for place in ranked if place not in confirmed][:_FINALISTS]
                again = [min(confirmed, key=lambda place: confirmed[place])] if confirmed else []
                heuristic = [0] if isfinite(own.measured.get(0, 0.0)) else []
                places = list(dict.fromkeys([*best, *again, *heuristic]))
                trials = [
                    Trial(own.task.workload, own.task.configs[place], problems.path(index))
                    for place in places
                ]
                answers = pool.measure_in_turns(trials, _FINAL_ROUNDS, _FINAL_SECONDS)
                for place, answer in zip(places, answers, strict=True):
                    if isinstance(answer, Done):
                        self._keep(own.task, place, answer.latencies, "")
                        own.measured[place] = _cost(LoggedTrial(index, place, answer.latencies))
                    elif place in own.measured:
                        own.measured[place] = float("inf")
                    confirmed[place] = own.measured.get(place, float("inf"))
            self._save()

    def _keep(self, task: Task, place: int, latencies: tuple[float, ...], error: str) -> None:
        spec = self.resolved.spec
        template = template_of(spec)
        self.records.append(
            Record(
                recorded_device(spec, self.driver),
                {"kind": self.resolved.kind},
                recorded_workload(task.workload),
                template,
                TEMPLATES[template],
                recorded_config(task.configs[place]),
                latencies,
                tvm.__version__,
                datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                error,
            )
        )

    def _save(self) -> None:
        """Commit what was measured since; raises RecordError where the disk is full."""
        if not self.records:
            return
        records, self.records = self.records, []
        try:
            added = add_records(self.folder, records)
        except KeyboardInterrupt:
            self.records = records  # for the last time, when the run ends
            raise
        for message in added.warnings:
            warnings.warn(message, TvmEdgeWarning, stacklevel=4)

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


class _Problems:
    """Operands of each task in a file, made when it is first tried."""

    def __init__(self, folder: Path, tasks: Sequence[Task]) -> None:
        self._folder, self._tasks = folder, tasks

    def path(self, index: int) -> Path:
        """The file of one task's operands."""
        path = self._folder / f"{index}.npz"
        if not path.exists():
            make_problem(self._tasks[index].workload, index).save(path)
        return path


def _cost(trial: LoggedTrial) -> float:
    """As records rank: the median, which bursts of other work on the machine do not move."""
    return median(trial.latencies) if trial.latencies else float("inf")


def _task_result(search: TaskSearch) -> TaskResult:
    heuristic = search.measured.get(0, float("inf"))
    config: ConvConfig = search.task.configs[search.best_place]
    return TaskResult(
        workload=search.task.workload,
        count=search.task.count,
        trials=len(search.measured),
        failed=sum(not isfinite(seconds) for seconds in search.measured.values()),
        heuristic=heuristic,
        best=search.best,
        config=config,
    )


def _driver(kind: str) -> str:
    """The version of the device's driver; empty of CPUs."""
    if kind == "llvm":
        return ""
    found = (device for device in devices() if device.target == kind)
    return str(next(found).details.get("driver", ""))
