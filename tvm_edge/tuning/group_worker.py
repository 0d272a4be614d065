"""The process that runs kernels apart and as one: what may hang or crash does so here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tvm_edge.errors import WrongResult
from tvm_edge.tuning.serving import Done, serve, serve_parent

__all__ = ["Forget", "TimeAll", "Timed", "Try", "largest_error"]

# Of the largest value. Members calculate what they do by themselves; how a compiler joins products
# and sums may differ.
_TOLERANCE = 1e-5

# Launches that may wait in a queue, as for convolutions.
_LAUNCHES_IN_FLIGHT = 600


@dataclass(frozen=True)
class Try:
    """Build a variant of a group and compare what it computes; answered by :class:`Done`.

    Attributes
    ----------
    name : str
        The first one of a group is what the others have to agree with.
    module : str
        As :func:`tvm.ir.save_json` writes it.
    areas : tuple
        See :class:`~tvm_edge.tuning.group_problem.GroupProblem`.
    """

    name: str
    module: str
    areas: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class TimeAll:
    """Time the variants that were tried, in turns; answered by :class:`Timed`."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Timed:
    """Seconds of single runs of each variant, one of each round."""

    latencies: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Forget:
    """Forget all variants; not answered."""


def largest_error(
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    areas: Sequence[tuple[int, int] | None],
) -> float:
    """The largest difference of results, of each relative to its largest value.

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


def _serve(connection: Connection, target: Any, host: Any, num_threads: int) -> None:
    import tvm

    from tvm_edge.hardware import resolve_target
    from tvm_edge.runtime import CompiledModel
    from tvm_edge.runtime.inputs import random_inputs
    from tvm_edge.tuning.kernel_model import kernel_model

    resolved = resolve_target(target, host)
    models: dict[str, CompiledModel] = {}
    launched: list[str] = []  # what the message at hand has run
    expected: list[np.ndarray] = []

    def attempt(ask: Try) -> Done:
        # Kernels write over some of their inputs, and of a model's own memory: each run gets more.
        model = kernel_model(tvm.ir.load_json(ask.module), resolved, num_threads)
        launched.append(ask.name)
        results = list(model.run(random_inputs(model.inputs)).values())
        if not models:
            expected[:] = results
        elif not (error := largest_error(results, expected, ask.areas)) <= _TOLERANCE:
            raise WrongResult(f"a result is off by {error:.1e} of the largest value")
        models[ask.name] = model
        return Done()

    def time_all(ask: TimeAll) -> Timed:
        launched.extend(models)
        inputs = {name: random_inputs(model.inputs) for name, model in models.items()}
        runs = {}
        for name, model in models.items():
            model.seconds_in_a_row(inputs[name], 2)
            one = model.seconds_in_a_row(inputs[name], 4)
            runs[name] = max(1, min(_LAUNCHES_IN_FLIGHT // 8, round(ask.seconds / one)))
        latencies: dict[str, tuple[float, ...]] = {name: () for name in models}
        for _ in range(ask.rounds):
            for name, model in models.items():
                found = model.seconds_in_a_row(inputs[name], runs[name])
                latencies[name] = (*latencies[name], found)
        return Timed(latencies)

    does: Mapping[type, Any] = {Try: attempt, TimeAll: time_all}

    def forget(_ask: Forget) -> None:
        models.clear()

    serve(connection, does, {Forget: forget}, launched)


def main() -> None:
    """Serve the connection that the command line names, for a target in its first message."""
    serve_parent(_serve)
