"""Sorts, top-k and prefix sums beside other libraries, for :mod:`benchmarks.vision.operators`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.options import save_json
from benchmarks.common.paths import RESULTS
from benchmarks.common.processes import run_child
from benchmarks.cpu.runtimes import ENVIRONMENT
from benchmarks.vision import sorting_peers
from benchmarks.vision.figures import (
    Rounds,
    machine_line,
    note,
    note_failures,
    table_line,
    verdict_records,
    wrong_line,
)
from benchmarks.vision.sorting_peers import (
    CPU_RUNTIMES,
    GPU_RUNTIMES,
    environment_of,
    has_runtime,
)
from benchmarks.vision.sorting_report import (
    COLUMNS,
    COPIED,
    LONGEST,
    RATIOS,
    copy_lines,
    cpu_verdicts,
    draw,
    gpu_verdicts,
    sweep_lines,
    table,
)
from benchmarks.vision.workloads import WORKLOADS, Workload, sweep_workloads

__all__ = ["measure_sorting"]

_child = partial(run_child, sorting_peers.__name__)


def _prepare(
    workloads: Sequence[Workload], device: str, folder: Path
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compile everything; workload's name → target → what the compiler said."""
    jobs: list[tuple[str, tuple[str, ...], str]] = []  # runtime, job and arguments, workload
    for workload in workloads:
        targets = {"cpu": ("llvm",), "cuda": ("cuda", "opencl")}[device]
        jobs += [(target, ("compile", target, workload.name), workload.name) for target in targets]
        if device == "cpu" and workload.operator in CPU_RUNTIMES["onnxruntime"]:
            jobs.append(("onnxruntime", ("save_onnx", workload.name), workload.name))
        if device == "cuda" and workload.operator in GPU_RUNTIMES["stock"]:
            jobs.append(("stock", ("compile_stock", workload.name), workload.name))
    if device == "cuda":
        jobs.append(("cub", ("build_cub",), ""))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        results = pool.map(
            lambda job: run_child(
                sorting_peers.__name__, *job[1], folder, **environment_of(job[0])
            ),
            jobs,
        )
        for (runtime, _, name), result in zip(jobs, results, strict=True):
            found.setdefault(name, {})[runtime] = result
            for what in ("failed", "model_failed", "kernel_failed"):
                if what in result:
                    note(f"{name} {runtime}, {what}: {result[what]}")
    return found


def _measure_cpu(
    workloads: Sequence[Workload],
    compiled: Mapping[str, Mapping[str, dict[str, Any]]],
    options: argparse.Namespace,
    folder: Path,
    record: dict[str, Any],
) -> tuple[Rounds, list[dict[str, Any]]]:
    """A process for each workload, runtime and round; and copies beside the large scan."""
    rounds: Rounds = {}
    copies: list[dict[str, Any]] = []
    for workload in workloads:
        results = rounds[workload.name] = {r: [] for r in has_runtime(workload, CPU_RUNTIMES)}
        for _ in range(options.rounds):
            for runtime, found in results.items():
                failed = compiled[workload.name]["llvm"] if runtime == "tvm-edge" else {}
                arguments = (runtime, workload.name, options.threads, options.seconds, folder)
                environment = ENVIRONMENT.get(runtime, {})
                found.append(
                    {"failed": failed["failed"]}
                    if "failed" in failed
                    else _child("time_cpu", *arguments, **environment)
                )
            if workload.shape == (COPIED,):
                how = (COPIED, options.threads, options.seconds, folder)
                copies.append(_child("copy", *how))
        note(table_line(workload.name, results, COLUMNS["cpu"], RATIOS["cpu"]))
        note_failures(workload.name, results)
        save_json(options.json, record | {"workloads": rounds})
    return rounds, copies


def _measure_gpu(
    workloads: Sequence[Workload],
    options: argparse.Namespace,
    folder: Path,
    record: dict[str, Any],
) -> Rounds:
    """A process for each runtime and round, which times all workloads."""
    (folder / "workloads.json").write_text(json.dumps([w.name for w in workloads]))
    rounds: Rounds = {w.name: {r: [] for r in has_runtime(w, GPU_RUNTIMES)} for w in workloads}
    for number in range(options.rounds):
        for runtime in GPU_RUNTIMES:
            arguments = (runtime, options.seconds, folder)
            done = run_child(
                sorting_peers.__name__, "time_gpu", *arguments, **environment_of(runtime)
            )
            for name, results in rounds.items():
                if runtime in results:
                    results[runtime].append(done if "failed" in done else done["results"][name])
            note(f"round {number + 1}: {runtime} {done.get('failed', 'done')}")
        save_json(options.json, record | {"workloads": rounds})
    for name, results in rounds.items():
        note_failures(name, results)
    return rounds


def measure_sorting(
    options: argparse.Namespace, machine: Mapping[str, Any], folder: Path, record: dict[str, Any]
) -> None:
    """Measure, print tables and bars.

    Parameters
    ----------
    options : argparse.Namespace
        The command line's, of :mod:`benchmarks.vision.operators`.
    machine : mapping
        What ``describe`` found.
    folder : Path
        For the files of processes.
    record : dict
        Takes what was measured; written to ``options.json``.
    """
    device = options.device
    listed = [w for w in WORKLOADS if w.operator in options.operators]
    swept = [
        w
        for w in (sweep_workloads(LONGEST[device]) if options.sweep else ())
        if w.operator in options.operators
    ]
    copies: list[dict[str, Any]] = []
    compiled = _prepare([*listed, *swept], device, folder)
    if device == "cpu":
        rounds, copies = _measure_cpu([*listed, *swept], compiled, options, folder, record)
        verdicts = cpu_verdicts(listed, rounds, copies)
    else:
        rounds = _measure_gpu([*listed, *swept], options, folder, record)
        verdicts = gpu_verdicts(listed, rounds)
    record |= {
        "workloads": rounds,
        "verdicts": verdict_records(verdicts),
        "compiled": compiled,
        "copies": copies,
    }
    save_json(options.json, record)
    operators = dict.fromkeys(w.operator for w in listed)
    tables = [table(operator, listed, rounds, device) for operator in operators]
    tables += [copy_lines(rounds, copies, options.threads)] if copies else []
    tables += [sweep_lines(swept, rounds, device)] if swept else []
    for lines in tables:
        print(machine_line(machine), *lines, sep="\n", end="\n\n")
    if swept:
        print(draw(swept, rounds, device, RESULTS / "vision" / f"{device}.png"))
        print()
    print(*verdicts, sep="\n", end="\n\n")
    print(wrong_line(rounds))
