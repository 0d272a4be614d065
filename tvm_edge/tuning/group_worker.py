"""Variants of a group of kernels, apart and as one, in a process of their own.

What may hang or crash does so there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tvm_edge.errors import WrongResult
from tvm_edge.hardware import resolve_target
from tvm_edge.runtime import CompiledModel
from tvm_edge.runtime.inputs import random_inputs
from tvm_edge.tuning.group_problem import Area
from tvm_edge.tuning.kernel_model import kernel_model
from tvm_edge.tuning.worker import Done, Failed, Limits, Service, Worker, serve

__all__ = ["GROUP_LIMITS", "largest_error", "measure_variants", "start_worker"]

# Of the largest value. Members calculate what they do by themselves; a compiler may join products
# and additions in another way.
_TOLERANCE = 1e-5

# Launches that may wait in a queue, as for convolutions.
_LAUNCHES_IN_FLIGHT = 600

GROUP_LIMITS = Limits(build=120.0, measure=60.0, rounds=5, seconds=0.01)
"""For a variant to be built and compared, and for all of them to be timed."""

_Areas = tuple[Area | None, ...]


@dataclass(frozen=True)
class _Try:
    """Build a variant of a group and compare its results; answered by :class:`Done`.

    Attributes
    ----------
    name : str
    module : str
        As :func:`tvm.ir.save_json` writes it.
    areas : tuple
        See :class:`~tvm_edge.tuning.group_problem.GroupProblem`.
    is_first : bool
        Whether it begins a group: the others have to agree with it.
    """

    name: str
    module: str
    areas: _Areas
    is_first: bool


@dataclass(frozen=True)
class _TimeAll:
    """Time the variants that were tried, in turns; answered by :class:`_Timed`."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class _Timed:
    """Seconds of single runs of each variant, one of each round."""

    latencies: Mapping[str, tuple[float, ...]]


def start_worker(target: Any, host: Any, num_threads: int) -> Worker:
    """Start a process for :func:`measure_variants`."""
    return Worker(__name__, target, host, num_threads)


def measure_variants(
    worker: Worker,
    variants: Mapping[str, tvm.IRModule],
    areas: _Areas,
    limits: Limits = GROUP_LIMITS,
    check: Callable[[], None] = lambda: None,
) -> dict[str, tuple[float, ...] | Failed]:
    """Return the seconds of each variant, or how it failed.

    Parameters
    ----------
    worker : Worker
    variants : mapping of str to IRModule
        All have to compute what the first computes.
    areas : tuple
        See :class:`~tvm_edge.tuning.group_problem.GroupProblem`.
    limits : Limits
    check : callable
        Called every fifth of a second; what it raises ends the wait.

    Raises
    ------
    DeviceLost
        The process does not start.
    MissingDependencyError
        No compiler for the device.
    """
    first = next(iter(variants))
    failed: dict[str, Failed] = {}

    def try_all() -> bool:
        """Build and check what has not failed; whether the process holds all that is left."""
        for name, module in variants.items():
            if name in failed:
                continue
            holder = worker.generation
            ask = _Try(name, tvm.ir.save_json(module), areas, name == first)
            answer = worker.call(ask, limits.build, check)
            if isinstance(answer, Failed):
                failed[name] = answer
            if first in failed or worker.generation != holder:
                return False
        return True

    while first not in failed and not try_all():
        pass
    if first in failed:
        return {name: failed.get(name, failed[first]) for name in variants}
    answer = worker.call(_TimeAll(limits.rounds, limits.seconds), limits.measure, check)
    if isinstance(answer, Failed):
        return {name: failed.get(name, answer) for name in variants}
    assert isinstance(answer, _Timed)
    return {name: failed[name] if name in failed else answer.latencies[name] for name in variants}


def largest_error(
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    areas: Sequence[tuple[int, int] | None],
) -> float:
    """Return the largest difference of results, of each relative to its largest value.

    Infinite where one alone is not a finite number. What no kernel writes is not compared.
    """
    worst = 0.0
    for one, other, area in zip(found, expected, areas, strict=True):
        if area is not None:
            part = np.s_[:, area[0] : area[0] + area[1]]
            one, other = one[part], other[part]
        if one.dtype.kind not in "fc":
            worst = max(worst, 0.0 if np.array_equal(one, other) else float("inf"))
            continue
        finite = np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return float("inf")
        if not finite.any():
            continue
        scale = float(np.abs(other[finite]).max()) or 1.0
        difference = float(np.abs(one[finite] - other[finite]).max()) / scale
        worst = max(worst, difference if np.isfinite(difference) else float("inf"))
    return worst


class _Variants(Service):
    """Variants of one group that the process holds."""

    def __init__(self, target: Any, host: Any, num_threads: int) -> None:
        self._resolved, self._num_threads = resolve_target(target, host), num_threads
        self._models: dict[str, CompiledModel] = {}
        self._expected: list[np.ndarray] = []
        self.handlers = {_Try: self._try, _TimeAll: self._time_all}

    def _try(self, ask: _Try) -> Done:
        if ask.is_first:
            self._models.clear()
        # Kernels write over some of their inputs, and of a model's own memory: each run gets more.
        model = kernel_model(tvm.ir.load_json(ask.module), self._resolved, self._num_threads)
        self.launched = True
        results = list(model.run(random_inputs(model.inputs)).values())
        if ask.is_first:
            self._expected = results
        elif not (error := largest_error(results, self._expected, ask.areas)) <= _TOLERANCE:
            raise WrongResult(f"a result is off by {error:.1e} of the largest value")
        self._models[ask.name] = model
        return Done()

    def _time_all(self, ask: _TimeAll) -> _Timed:
        self.launched = True
        inputs = {name: random_inputs(model.inputs) for name, model in self._models.items()}
        runs = {}
        for name, model in self._models.items():
            model.seconds_in_a_row(inputs[name], 2)
            one = model.seconds_in_a_row(inputs[name], 4)
            runs[name] = max(1, min(_LAUNCHES_IN_FLIGHT // 8, round(ask.seconds / one)))
        latencies: dict[str, tuple[float, ...]] = {name: () for name in self._models}
        for _ in range(ask.rounds):
            for name, model in self._models.items():
                found = model.seconds_in_a_row(inputs[name], runs[name])
                latencies[name] = (*latencies[name], found)
        return _Timed(latencies)


def main() -> None:
    """Serve the parent of this process."""
    serve(_Variants)
