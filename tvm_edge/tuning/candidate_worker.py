"""Process that builds candidates and runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_edge.errors import WrongResult
from tvm_edge.runtime.candidates import Candidate, Operands
from tvm_edge.runtime.threads import resolve_threads
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.candidates import Exported, Shared, build_candidate, export_candidate
from tvm_edge.tuning.conv_problem import tolerance_of
from tvm_edge.tuning.worker import Done, Service, Worker, serve

__all__ = ["Build", "Drop", "Export", "Measure", "start_worker"]


@dataclass(frozen=True)
class Build:
    """Generate code and check its result: answered by :class:`Done` without latencies."""

    token: int
    workload: ConvWorkload
    config: ConvConfig
    problem: Path


@dataclass(frozen=True)
class Export:
    """Generate code for another machine: answered by an
    :class:`~tvm_edge.tuning.candidates.Exported`."""

    workload: ConvWorkload
    config: ConvConfig
    problem: Path
    path: Path


@dataclass(frozen=True)
class Measure:
    """Time a built candidate, `rounds` times for `seconds` each."""

    token: int
    rounds: int
    seconds: float
    hopeless: float
    """Stop after a round above so many seconds a run."""


@dataclass(frozen=True)
class Drop:
    """Forget a candidate; not answered."""

    token: int


def start_worker(target: Any, host: Any, num_threads: int) -> Worker:
    """Start a process that serves the requests of this module."""
    return Worker(__name__, target, host, num_threads)


class _Candidates(Service):
    """Candidates that the process holds."""

    def __init__(self, target: Any, host: Any, num_threads: int) -> None:
        resolve_threads(num_threads).use()
        self._target, self._host = target, host
        self._built: dict[int, Candidate] = {}
        self._problems: dict[Path, tuple[Operands, Shared]] = {}
        self.handlers = {
            Build: self._build,
            Export: self._export,
            Measure: self._measure,
            Drop: self._drop,
        }

    def _problem(self, path: Path) -> tuple[Operands, Shared]:
        if path not in self._problems:
            self._problems.clear()  # one at a time: the largest are a hundred megabytes
            self._problems[path] = Operands.load(path), {}
        return self._problems[path]

    def _export(self, ask: Export) -> Exported:
        problem, _ = self._problem(ask.problem)
        return export_candidate(
            ask.workload, ask.config, problem, self._target, self._host, ask.path
        )

    def _build(self, ask: Build) -> Done:
        problem, shared = self._problem(ask.problem)
        candidate = build_candidate(ask.workload, ask.config, problem, self._target, shared)
        self.launched = True
        # Here, as others may do so at the same time: a driver takes its time for a kernel's first.
        error = candidate.error()
        if not error <= tolerance_of(ask.workload):
            raise WrongResult(f"the result is off by {error:.1e} of the largest value")
        self._built[ask.token] = candidate
        return Done()

    def _measure(self, ask: Measure) -> Done:
        self.launched = True
        latencies = self._built[ask.token].latencies(ask.rounds, ask.seconds, ask.hopeless)
        return Done(tuple(latencies))

    def _drop(self, ask: Drop) -> None:
        self._built.pop(ask.token, None)


def main() -> None:
    """Serve the parent of this process."""
    serve(_Candidates)
