"""Operators of detection beside other libraries, for :mod:`benchmarks.vision.operators`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.options import save_json
from benchmarks.common.processes import run_child
from benchmarks.cpu.runtimes import ENVIRONMENT
from benchmarks.vision import detection_peers
from benchmarks.vision.boxes import DETECTIONS, Detection, small_detections
from benchmarks.vision.detection_report import (
    COLUMNS,
    RATIOS,
    beside_lines,
    rounding_lines,
    table,
    verdicts_of,
)
from benchmarks.vision.figures import (
    Rounds,
    machine_line,
    note,
    note_failures,
    table_line,
    verdict_records,
    wrong_line,
)
from benchmarks.vision.sorting_peers import environment_of

__all__ = ["measure_detection"]

_RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("tvm-edge", "onnxruntime"),
    "cuda": ("cuda", "opencl", "torch"),
    "opencl": ("opencl",),
}
_TARGETS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("llvm",),
    "cuda": ("cuda", "opencl"),
    "opencl": ("opencl",),
}
# What ONNX has no operator for.
_NOT_ONNX = frozenset({"multibox"})

Jobs = Sequence[tuple[str, tuple[object, ...]]]


class _Session:
    """The files and processes of one run."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.device: str = options.device

    def child(self, runtime: str, *job: object) -> dict[str, Any]:
        """Run a job in a process for a runtime."""
        environment = dict(ENVIRONMENT.get(runtime, {}))
        if self.device == "cuda":
            environment |= environment_of(runtime)
        return run_child(detection_peers.__name__, *job, self.folder, **environment)

    def all(self, jobs: Jobs) -> list[dict[str, Any]]:
        """Run jobs, which are not timed, side by side; each is a runtime and what it does."""
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) * 3 // 4)) as pool:
            results = list(pool.map(lambda job: self.child(job[0], *job[1]), jobs))
        for (runtime, what), result in zip(jobs, results, strict=True):
            if "failed" in result:
                note(f"{' '.join(map(str, what))} ({runtime}): {result['failed']}")
        return results


def _prepare(
    workloads: Sequence[Detection], session: _Session
) -> dict[str, dict[str, dict[str, Any]]]:
    """Models, expected outputs, artifacts; workload's name → target → what the compiler said."""
    session.all([("", ("prepare", w.name)) for w in workloads])
    jobs = [
        (target, ("compile", target, w.name))
        for w in workloads
        for target in _TARGETS[session.device]
    ]
    found: dict[str, dict[str, dict[str, Any]]] = {w.name: {} for w in workloads}
    for (target, (_, _, name)), result in zip(jobs, session.all(jobs), strict=True):
        found[name][target] = result
    return found


def _measure(
    workloads: Sequence[Detection],
    compiled: Mapping[str, Mapping[str, dict[str, Any]]],
    session: _Session,
) -> Rounds:
    """Processes take turns: on a CPU one for each workload, on a GPU one for all of them."""
    runtimes = _RUNTIMES[session.device]
    failed: Rounds = {w.name: {} for w in workloads}  # to compile
    for name, targets in compiled.items():
        for target, result in targets.items():
            if "failed" in result:
                runtime = "tvm-edge" if target == "llvm" else target
                failed[name][runtime] = [{"failed": result["failed"]}]
    rounds: Rounds = {w.name: {} for w in workloads}
    for workload in workloads:
        out = {"onnxruntime"} if workload.operator in _NOT_ONNX else set()
        rounds[workload.name] = {
            r: list(failed[workload.name].get(r, [])) for r in runtimes if r not in out
        }
    if session.device == "cpu":
        _measure_cpu(rounds, failed, session)
    else:
        _measure_gpu(rounds, failed, session)
    for name, results in rounds.items():
        note_failures(name, results)
    return rounds


def _measure_cpu(rounds: Rounds, failed: Rounds, session: _Session) -> None:
    options = session.options
    for name, results in rounds.items():
        for _ in range(options.rounds):
            for runtime, found in results.items():
                if runtime not in failed[name]:
                    how = (runtime, name, options.threads, options.seconds)
                    found.append(session.child(runtime, "time_cpu", *how))
        note(table_line(name, results, COLUMNS["cpu"], RATIOS["cpu"]))


def _measure_gpu(rounds: Rounds, failed: Rounds, session: _Session) -> None:
    timed = {
        runtime: [n for n, results in rounds.items() if runtime in results.keys() - failed[n]]
        for runtime in _RUNTIMES[session.device]
    }
    (session.folder / "detections.json").write_text(json.dumps(timed))
    for number in range(session.options.rounds):
        for runtime, names in timed.items():
            done = session.child(runtime, "time_gpu", runtime, session.options.seconds)
            for name in names:
                found = done if "failed" in done else done["results"][name]
                rounds[name][runtime].append(found)
            note(f"round {number + 1}: {runtime} {done.get('failed', 'done')}")


def measure_detection(
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
        Takes what was measured, as ``detection``; written to ``options.json``.
    """
    session = _Session(options, folder)
    listed = small_detections() if options.small else DETECTIONS
    workloads = list(dict.fromkeys(w for w in listed if w.operator in options.operators))
    compiled = _prepare(workloads, session)
    found: dict[str, Any] = {"compiled": compiled}
    rounds = found["workloads"] = _measure(workloads, compiled, session)
    record["detection"] = found
    save_json(options.json, record)
    verdicts = verdicts_of(workloads, rounds, session.device)
    found["verdicts"] = verdict_records(verdicts)
    save_json(options.json, record)
    for operator in dict.fromkeys(w.operator for w in workloads):
        print(machine_line(machine), *table(operator, workloads, rounds, session.device), sep="\n")
        print()
    for lines in (
        [str(verdict) for verdict in verdicts],
        [*rounding_lines(rounds), *beside_lines(rounds), wrong_line(rounds)],
    ):
        if lines:
            print(*lines, sep="\n", end="\n\n")
