"""The process that builds and runs candidates.

A candidate may hang, crash or break the device: it takes this process along and nothing else. The
process does what the other end of its connection says, one thing at a time, and ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tvm_edge.errors import WrongResult
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.serving import Done, serve, serve_parent

__all__ = ["Build", "Drop", "Export", "Measure"]


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


def _serve(connection: Connection, target: Any, host: Any, num_threads: int) -> None:
    from tvm_edge.runtime.candidates import Candidate, Operands
    from tvm_edge.runtime.threads import configure_pool
    from tvm_edge.tuning.candidates import (
        Exported,
        Shared,
        build_candidate,
        export_candidate,
    )
    from tvm_edge.tuning.problem import TOLERANCE

    configure_pool(num_threads)
    built: dict[int, Candidate] = {}
    launched: list[int] = []  # what the message at hand has run
    problems: dict[Path, tuple[Operands, Shared]] = {}

    def given_for(ask: Build | Export) -> tuple[Operands, Shared]:
        if ask.problem not in problems:
            problems.clear()  # one at a time: the largest are a hundred megabytes
            problems[ask.problem] = Operands.load(ask.problem), {}
        return problems[ask.problem]

    def export(ask: Export) -> Exported:
        problem, _ = given_for(ask)
        return export_candidate(ask.workload, ask.config, problem, target, host, ask.path)

    def build(ask: Build) -> Done:
        given = given_for(ask)
        candidate = build_candidate(ask.workload, ask.config, given[0], target, given[1])
        launched.append(ask.token)
        # Here, as others may do so at the same time: a driver takes its time for a kernel's first.
        error = candidate.error()
        if not error <= TOLERANCE:
            raise WrongResult(f"the result is off by {error:.1e} of the largest value")
        built[ask.token] = candidate
        return Done()

    def measure(ask: Measure) -> Done:
        candidate = built[ask.token]
        launched.append(ask.token)
        return Done(tuple(candidate.latencies(ask.rounds, ask.seconds, ask.hopeless)))

    does: Mapping[type, Any] = {Build: build, Export: export, Measure: measure}

    def drop(ask: Drop) -> None:
        built.pop(ask.token, None)

    serve(connection, does, {Drop: drop}, launched)


def main() -> None:
    """Serve the connection that the command line names, for a target in its first message."""
    serve_parent(_serve)
