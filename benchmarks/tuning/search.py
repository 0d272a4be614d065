"""Gain of tuning, and the search beside random choice.

``spaces``
    Measures every configuration of ten convolutions (:data:`benchmarks.tuning.workloads.SPACES`)
    on an NVIDIA GPU and writes them to ``--json``; some 6,600 of them.
``search``
    Replays the search on that data (``--data``), without a device: the best that it has found by
    how much of the space, over 20 seeds, beside random choice. ``--png`` draws it.
``networks``
    Tunes networks (``--trials`` for each convolution) and takes their time with the heuristics
    and with the records, beside cuDNN, or beside ONNX Runtime on a CPU: a process each, in turns.
    Results are compared with ONNX Runtime's before.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean, mean, median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import (
    TOLERANCE,
    compare_outputs,
    load_expected,
    load_inputs,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_session
from benchmarks.common.options import Parser, chosen_numbers, save_json
from benchmarks.common.paths import RESULTS
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import spread
from benchmarks.common.timing import machine_us, timed_runs
from benchmarks.tuning.workloads import CPU_NETWORKS, GPU_NETWORKS, SPACES, describe

_CALLS = 30  # between two events
_SHARE = 0.15  # of a space, after which a search is judged
_SEEDS = 20
DATA = RESULTS / "tuning" / "h200.json.gz"


# ------------------------------------------------------------------------------- whole spaces


def measure_spaces(target: str, path: Path, seconds: float, numbers: list[int]) -> None:
    """Every configuration of some spaces, as far as the time goes; written space by space.

    Spaces that the file has already stay there, if they were measured on the same device.
    """
    from tvm_edge.hardware import resolve_target
    from tvm_edge.schedules.conv_records import recorded_workload
    from tvm_edge.tuning.conv_problem import make_problem
    from tvm_edge.tuning.pool import Pool, Trial
    from tvm_edge.tuning.tasks import legal_configs
    from tvm_edge.tuning.worker import Done, Limits

    resolved, start = resolve_target(target), perf_counter()
    device = resolved.spec.to_dict()
    found: dict[str, Any] = {"device": device, "spaces": []}
    if path.exists():
        with gzip.open(path, "rt") as file:
            there = json.load(file)
        if there["device"]["key"] == device["key"]:
            found = there
    found["machine"] = describe_machine()
    workers = max(1, len(os.sched_getaffinity(0)) - 1)
    limits = Limits(rounds=3, seconds=0.01, hopeless=float("inf"))
    with (
        tempfile.TemporaryDirectory() as folder,
        Pool(target, workers, 1, limits, beside=not resolved.spec.has_cpu_cores) as pool,
    ):
        for number in numbers:
            if perf_counter() - start > seconds:
                print(f"no time for space {number} and those after it", flush=True)
                break
            workload = SPACES[number]
            configs, problem = legal_configs(workload, resolved), Path(folder) / f"{number}.npz"
            make_problem(workload, number).save(problem)
            us: list[float | None] = [None] * len(configs)
            errors: dict[str, int] = {}
            for place, answer in pool.run([Trial(workload, c, problem) for c in configs]):
                if isinstance(answer, Done):
                    us[place] = round(median(answer.latencies) * 1e6, 2)
                else:
                    errors[answer.error] = errors.get(answer.error, 0) + 1
                    if sum(errors.values()) == 1:
                        print(configs[place], answer, flush=True)
            found["spaces"] = [s for s in found["spaces"] if s["number"] != number]
            found["spaces"].append(
                {
                    "workload": recorded_workload(workload).key,
                    "number": number,
                    "configs": [[c.algorithm, c.block, c.m, c.knobs] for c in configs],
                    "us": us,
                }
            )
            with gzip.open(path, "wt") as file:
                json.dump(found, file)
            timed = [value for value in us if value is not None]
            print(
                f"{number}: {len(configs)} configurations, first {us[0]}, best {min(timed)}, "
                f"failed {errors}, {perf_counter() - start:.0f} s",
                flush=True,
            )


# -------------------------------------------------------------------------- the search, replayed


def replay(data: Path) -> list[dict[str, Any]]:
    """Distance of the best found from the best there is, after each trial, by space."""
    from tvm_edge.schedules.conv_config import ConvConfig
    from tvm_edge.tuning.search import Search, TaskSearch
    from tvm_edge.tuning.tasks import Task

    with gzip.open(data, "rt") as file:
        spaces = json.load(file)["spaces"]
    rows = []
    for space in spaces:
        configs = tuple(ConvConfig(*config) for config in space["configs"])
        us = np.array([float("inf") if value is None else value for value in space["us"]])
        task = Task(SPACES[space["number"]], 1, configs)
        most = int(_SHARE * len(configs))
        ours, at_random = [], []
        for seed in range(_SEEDS):
            search, order = Search([TaskSearch.of(task)], seed), []
            while len(order) < most:
                ((_, places),) = search.propose(min(8, most - len(order)), 4)
                order += places
                search.tell({0: {place: us[place] * 1e-6 for place in places}})
            ours.append(np.minimum.accumulate(us[order]) / us.min())
            drawn = np.random.default_rng(seed).permutation(len(us))[:most]
            at_random.append(np.minimum.accumulate(us[drawn]) / us.min())
        rows.append(
            {
                "workload": space["workload"],
                "number": space["number"],
                "configs": len(configs),
                "trials": most,
                "best_us": float(us.min()),
                "heuristic": float(us[0] / us.min()),
                "ours": np.array(ours),
                "random": np.array(at_random),
            }
        )
        print(_replay_row(rows[-1]), flush=True)
    return rows


def _replay_row(row: dict[str, Any]) -> str:
    name = describe(SPACES[row["number"]])
    cells = [name, str(row["configs"]), str(row["trials"]), f"{row['best_us']:.2f}"]
    cells.append(f"{row['heuristic']:.3f}")
    for key in ("ours", "random"):
        last = row[key][:, -1]
        cells.append(f"{mean(last):.3f} [{min(last):.3f}–{max(last):.3f}]")
    return "| " + " | ".join(cells) + " |"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Means over spaces and seeds by the share of the space that was measured."""
    from matplotlib import pyplot

    share = np.linspace(0.005, _SHARE, 60)
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for key, label in (("ours", "search"), ("random", "random")):
        curves = [
            np.stack([run[np.minimum((share * row["configs"]).astype(int), len(run) - 1)]])
            for row in rows
            for run in row[key]
        ]
        axes.plot(100 * share, np.mean(np.concatenate(curves), axis=0), label=label)
    axes.axhline(mean(row["heuristic"] for row in rows), ls=":", color="gray", label="heuristic")
    axes.set(xlabel="measured, % of the space", ylabel="best found / best there is", ylim=(1, None))
    axes.legend()
    figure.savefig(path, dpi=150)


# ----------------------------------------------------------------------------------- networks


def _tune(name: str, target: str, trials: str, folder: Path) -> dict[str, Any]:
    """A job: tune a network; trials for each convolution."""
    import tvm_edge
    from tvm_edge.hardware import resolve_target
    from tvm_edge.tuning.tasks import extract_tasks

    path = folder / f"{name}.onnx"
    tasks = extract_tasks(path, resolve_target(target))
    start = perf_counter()
    result = tvm_edge.tune(
        str(path), target, trials=int(trials) * len(tasks), tuning_logs=folder / "records"
    )
    return {**result.to_dict(), "wall": perf_counter() - start}


def _compile(name: str, target: str, which: str, folder: Path) -> dict[str, Any]:
    """A job: compile with the heuristics or with the records, and compare the results."""
    import tvm_edge

    records: Any = folder / "records" if which == "records" else False
    path = folder / f"{name}.onnx"
    model = tvm_edge.compile(path, target, fallback="none", tuning_logs=records)
    model.export(folder / f"{name}.{which}.tvme")
    outputs = model.run(load_inputs(name, folder))
    error = compare_outputs(outputs, load_expected(name, folder), path)["error"]
    if not error <= TOLERANCE:
        raise ValueError(f"the result is wrong by {error:.1e}")
    found = model.report.records
    return {"tuned": found.tuned if found else 0, "error": error}


def _ours(name: str, target: str, which: str, folder: Path) -> dict[str, Any]:
    """A job: time an artifact."""
    import tvm_edge

    path = folder / f"{name}.{which}.tvme"
    inputs = load_inputs(name, folder)
    if target == "llvm":
        model = tvm_edge.load(path)
        timed_runs(lambda: model.run(inputs), 0.5)
        return {"us": median(timed_runs(lambda: model.run(inputs), 2.0)) * 1e6}
    import tvm

    from benchmarks.gpu.cupti import busy_us

    device = tvm.device(target, 0)
    placed = {key: tvm.runtime.tensor(value, device) for key, value in inputs.items()}
    us = machine_us(path, target, placed, _CALLS)
    if target != "cuda":  # CUPTI sees no kernels of OpenCL
        return {"us": us}
    loaded = tvm_edge.load(path)
    kernels = min(busy_us(lambda: loaded.run(inputs)) for _ in range(3))
    return {"us": us, "kernels_us": kernels}


def _onnxruntime(name: str, folder: Path) -> dict[str, Any]:
    """A job: the peer on a CPU."""
    threads = int(os.environ.get("TVM_NUM_THREADS", "2"))
    session = onnxruntime_session(folder / f"{name}.onnx", threads)
    inputs = load_inputs(name, folder)
    timed_runs(lambda: session.run(None, inputs), 0.5)
    return {"us": median(timed_runs(lambda: session.run(None, inputs), 2.0)) * 1e6}


def measure_networks(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures, by network."""
    target, found = options.target, {}
    names = options.networks or (CPU_NETWORKS if target == "llvm" else GPU_NETWORKS)
    both = [(name, which) for name in names for which in ("heuristic", "records")]
    with ThreadPoolExecutor(options.jobs) as pool:
        prepared = list(pool.map(lambda n: run_child(__name__, "prepare", n, folder), names))
        for name, result in zip(names, prepared, strict=True):
            found[name] = {"us": {}, "kernels_us": {}}
            if not options.no_tune:  # one by one: each measures
                row = run_child(__name__, "tune", name, target, options.trials, folder)
                found[name]["tune"] = row
                tuned = {key: value for key, value in row.items() if key != "tasks"}
                print(name, result or "", tuned, flush=True)
        compiled = pool.map(
            lambda j: run_child(__name__, "compile", j[0], target, j[1], folder), both
        )
        for job, result in zip(both, compiled, strict=True):
            print(*job, result, flush=True)
    for name, row in found.items():
        for _ in range(options.rounds):
            for which in ("heuristic", "records"):
                _take(row, which, run_child(__name__, "ours", name, target, which, folder))
            if target == "llvm":
                _take(row, "ONNX Runtime", run_child(__name__, "onnxruntime", name, folder))
            elif target == "cuda":
                for precision in ("float32", "tf32"):
                    peer = run_child("benchmarks.gpu.networks", "cudnn", name, precision, folder)
                    _take(row, f"cuDNN {precision}", peer)
        print(_network_row(name, row), flush=True)
        save_json(options.json, found)
    return found


def _take(row: dict[str, Any], key: str, result: dict[str, Any]) -> None:
    if "failed" in result:
        print(key, result["failed"], flush=True)
        return
    for kind in ("us", "kernels_us"):
        if kind in result:
            row[kind].setdefault(key, []).append(result[kind])


def _network_row(name: str, row: dict[str, Any]) -> str:
    cells = [name]
    for kind in ("us", "kernels_us"):
        for key, values in row[kind].items():
            cells.append(f"{key} {spread(values, ',.0f')}")
        if {"heuristic", "records"} <= set(row[kind]):
            before, after = (median(row[kind][key]) for key in ("heuristic", "records"))
            cells.append(f"**{before / after:.3f}**")
    return "| " + " | ".join(cells) + " |"


JOBS: dict[str, Job] = {
    "prepare": write_reference,
    "tune": _tune,
    "compile": _compile,
    "ours": _ours,
    "onnxruntime": _onnxruntime,
}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("tuning", __doc__)
    parser.add_argument("--part", choices=["spaces", "search", "networks"], required=True)
    parser.shared(target="cuda", networks=None, spaces=None, trials=32, rounds=3, jobs=1)
    parser.shared(records=None, no_tune=False, json=None, png=None)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all spaces")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args(arguments)
    spaces = chosen_numbers(parser, "--spaces", options.spaces, len(SPACES))
    if options.part == "spaces":
        measure_spaces(options.target, options.json or options.data, options.seconds, spaces)
        return
    if options.part == "search":
        rows = replay(options.data)
        for key in ("heuristic", "ours", "random"):
            ends = [row[key] if key == "heuristic" else mean(row[key][:, -1]) for row in rows]
            average = geometric_mean(ends)
            print(f"{key}: {average:.3f} of the best in the mean, worst {max(ends):.3f}")
        if options.png:
            draw(rows, options.png)
        return
    print(json.dumps(describe_machine()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.records or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure_networks(options, folder)
