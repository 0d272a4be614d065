"""What TVM's features of lowered kernels would bring to the search.

``python -m benchmarks.tuning_stores`` replays the search, without a device, on the spaces that
:mod:`benchmarks.tuning` has measured whole, with other features for its cost model: those that it
has (``ours``), with those that MetaSchedule's ``PerStoreFeature`` reads off the scheduled kernels
(``both``), these alone (``stores``), and ``both`` where only the best by ``ours`` are lowered, four
for each trial (``shortlist``). A configuration has some stores of 164 features each, in one kernel
or several; of each feature the largest is taken, and the number of stores and of kernels.

Lowering all configurations takes minutes: ``--cache`` keeps the features of each space.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import numpy as np

from benchmarks.chosen import chosen_numbers
from benchmarks.tuning import DATA
from benchmarks.tuning_workloads import SPACES, describe
from tvm_edge.hardware import DeviceSpec, ResolvedTarget, resolve_target
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.tuning.cost_model import CostModel
from tvm_edge.tuning.features import features
from tvm_edge.tuning.search import Search, TaskSearch
from tvm_edge.tuning.tasks import Task

_SHARES = (0.05, 0.10, 0.15)
_SHORTLISTED = 4  # configurations that are lowered, for each that is measured
_SLOTS, _EACH = 8, 4


# ----------------------------------------------------------------------------------- features


def store_features(
    number: int, configs: Sequence[ConvConfig], resolved: ResolvedTarget
) -> tuple[np.ndarray, np.ndarray]:
    """Features of a space's lowered kernels, and what they take.

    Returns
    -------
    np.ndarray
        ``[configurations, features]``, float32.
    np.ndarray
        ``[configurations, 2]``: seconds of one core until kernels are scheduled, and for features.
    """
    import tvm
    from tvm import tirx
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    from tvm_edge.compiler import phases
    from tvm_edge.relay_passes.lower.schedule_kernels import schedule_kernels
    from tvm_edge.compiler.steps import fuse
    from tvm_edge.tuning.problem import make_problem
    from tvm_edge.tuning.repeated import repeated_convolution

    workload = SPACES[number]
    extractor = PerStoreFeature()
    context = TuneContext(target=resolved.target, num_threads=1)
    with resolved.cpu.target:
        model = phases.SIMPLIFY(repeated_convolution(workload, make_problem(workload, number), 1))
    rows, seconds = [], []
    for config in configs:
        start = process_time()
        with resolved.target:
            legal = phases.legalize(resolved, "float32", {workload: config})(model)
            fused, _ = fuse(phases.GROUP(legal), resolved)
            scheduled, _ = schedule_kernels(fused, resolved)
        kernels = [f for _, f in scheduled.functions_items() if isinstance(f, tirx.PrimFunc)]
        lowered = process_time()
        candidates = [
            MeasureCandidate(
                Schedule(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})), []
            )
            for kernel in kernels
        ]
        stores = [f.numpy() for f in extractor.extract_from(context, candidates)]
        rows.append(_pooled(stores))
        seconds.append((lowered - start, process_time() - lowered))
    return np.array(rows, "float32"), np.array(seconds)


def _pooled(stores: Sequence[np.ndarray]) -> np.ndarray:
    """One row of however many stores of however many kernels."""
    every = np.concatenate(stores)
    return np.concatenate([every.max(axis=0), [len(every), len(stores)]])


def _known_features(
    number: int, configs: Sequence[ConvConfig], resolved: ResolvedTarget, cache: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    path = None if cache is None else cache / f"stores{number}.npz"
    if path is not None and path.exists():
        with np.load(path) as known:
            return known["features"], known["seconds"]
    found, seconds = store_features(number, configs, resolved)
    if path is not None:
        np.savez(path, features=found, seconds=seconds)
    return found, seconds


# ------------------------------------------------------------------------------------- searches


class _OtherFeatures(Search):
    """The search of one task with other features."""

    def __init__(self, task: Task, seed: int, rows: np.ndarray) -> None:
        super().__init__([TaskSearch.of(task)], seed)
        self._model = CostModel([rows], seed)


class _Shortlist(Search):
    """One task: our features say which configurations are lowered, and both which are measured."""

    def __init__(self, task: Task, seed: int, rows: np.ndarray) -> None:
        super().__init__([TaskSearch.of(task)], seed)
        self._both = CostModel([rows], seed)

    def propose(self, slots: int, each: int) -> list[tuple[int, list[int]]]:
        random = np.random.default_rng([self._seed, self._round])
        (search,) = self.tasks
        if not search.measured:
            return [(0, search.propose(slots, None, random))]
        for model in (self._model, self._both):
            model.fit([search.measured])
        ours, both = self._model.scores(0), self._both.scores(0)
        if ours is None or both is None:
            return [(0, search.propose(slots, ours, random))]
        untried = np.array([p for p in range(len(ours)) if p not in search.measured])
        ranked = untried[np.argsort(-ours[untried], kind="stable")]
        listed = np.full(len(ours), -np.inf)
        lowered = ranked[: _SHORTLISTED * slots]
        listed[lowered] = both[lowered]
        return [(0, search.propose(slots, listed, random))]


def _replayed(search: Search, us: np.ndarray, most: int) -> np.ndarray:
    """How far the best found is from the best there is, after each trial."""
    order: list[int] = []
    while len(order) < most:
        ((_, places),) = search.propose(min(_SLOTS, most - len(order)), _EACH)
        order += places
        search.tell({0: {place: us[place] * 1e-6 for place in places}})
    found: np.ndarray = np.minimum.accumulate(us[order]) / us.min()
    return found


def compare(
    space: dict[str, Any], stores: np.ndarray, seeds: int
) -> dict[str, list[tuple[float, float]]]:
    """Of one space: by features, the mean and the worst over seeds at each share of the space."""
    us = np.array([float("inf") if value is None else value for value in space["us"]])
    task = Task(SPACES[space["number"]], 1, tuple(ConvConfig(*c) for c in space["configs"]))
    both = np.concatenate([features(task), stores], axis=1)
    most = [int(share * len(us)) for share in _SHARES]
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(seeds):
        searches = {
            "ours": Search([TaskSearch.of(task)], seed),
            "both": _OtherFeatures(task, seed, both),
            "stores": _OtherFeatures(task, seed, stores),
            "shortlist": _Shortlist(task, seed, both),
        }
        for name, search in searches.items():
            found.setdefault(name, []).append(_replayed(search, us, most[-1]))
    return {
        name: [(mean(run[n - 1] for run in runs), max(run[n - 1] for run in runs)) for n in most]
        for name, runs in found.items()
    }


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--spaces", type=int, nargs="*", help="their numbers; default all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cache", type=Path, help="a folder that keeps features")
    parser.add_argument("--json", type=Path, help="written after each space")
    options = parser.parse_args()
    numbers = chosen_numbers(parser, "--spaces", options.spaces, len(SPACES))
    if options.seeds < 1:
        parser.error(f"argument --seeds: {options.seeds} replays nothing; give at least 1")
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
    with gzip.open(options.data, "rt") as file:
        data = json.load(file)
    resolved = _device(data["device"])
    rows = {}
    for space in data["spaces"]:
        number = space["number"]
        if number not in numbers:
            continue
        configs = [ConvConfig(*config) for config in space["configs"]]
        stores, seconds = _known_features(number, configs, resolved, options.cache)
        rows[number] = {"seconds": seconds.mean(axis=0).tolist()}
        rows[number] |= compare(space, stores, options.seeds)
        print(_row(number, rows[number]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows))
    for name in ("ours", "both", "stores", "shortlist"):
        cells = []
        for at in range(len(_SHARES)):
            means, worst = zip(*(row[name][at] for row in rows.values()), strict=True)
            cells.append(f"{mean(means):.3f} [{max(worst):.3f}]")
        print(f"{name}: {', '.join(cells)}")


def _device(known: dict[str, Any]) -> ResolvedTarget:
    """That of the data, which need not be here."""
    names = {field.name for field in fields(DeviceSpec)}
    values = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in known.items()
        if key in names
    }
    base = resolve_target({"kind": "cuda", "arch": "sm_90"})
    return replace(base, spec=DeviceSpec(**values))


def _row(number: int, row: dict[str, Any]) -> str:
    cells = [describe(SPACES[number]), *(f"{1e3 * seconds:.0f}" for seconds in row["seconds"])]
    for name in ("ours", "both", "stores", "shortlist"):
        cells.append(" / ".join(f"{average:.3f} [{worst:.3f}]" for average, worst in row[name]))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
