"""Every network of the zoo on every target.

One row per network and target: does it agree with ONNX Runtime, how long does a run take, what
memory does it need. ONNX Runtime on the same CPU is measured between, in processes that take turns.

By default the targets are llvm and those GPUs that are here. With more than one of ``--jobs`` all
networks are compiled before anything is timed. A run is right if each float32 output is within 1e-4
of its largest value, and detections are the same one to one (``tests/detections.py``).

Columns: ``ms`` is ``CompiledModel.run`` with NumPy arrays in and out; ``memory`` the resident peak
of a process that loads the artifact and runs it, interpreter and TVM included, and beside it that
of one with ONNX Runtime; ``planned`` what the report says: weights, activations, workspace.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_session
from benchmarks.common.options import Parser, save_json
from benchmarks.common.process_memory import peak_mib
from benchmarks.common.processes import Job, run_child
from benchmarks.common.timing import timed_runs

SECONDS = 1.5  # of timed runs in a process


# ------------------------------------------------------------------ what the child processes do


def _compile(name: str, target: str, folder: Path) -> dict[str, Any]:
    """Compile the network and write the artifact."""
    import tvm_edge

    start = perf_counter()
    model = tvm_edge.compile(folder / f"{name}.onnx", target)
    seconds = perf_counter() - start
    model.export(folder / f"{name}.{target}.tvme")
    devices = [device for device, _ in model.report.partitions]
    return {
        "compile_seconds": seconds,
        "kernels": len(model.report.kernels),
        "partitions": "+".join(dict.fromkeys(devices)),
        "unscheduled": sum(k.origin not in ("heuristic", "tuned") for k in model.report.kernels),
    }


def _run(name: str, target: str, folder: Path) -> dict[str, Any]:
    """Load the artifact, check a run, time more."""
    import tvm_edge

    inputs = load_inputs(name, folder)
    model = tvm_edge.load(folder / f"{name}.{target}.tvme")
    actual = model.run(inputs)
    expected = load_expected(name, folder)
    return {
        **compare_outputs(actual, expected, folder / f"{name}.onnx"),
        **_time(lambda: model.run(inputs)),
        "planned_mib": model.report.memory.peak / 2**20,
    }


def _peer(name: str, folder: Path) -> dict[str, Any]:
    """Time ONNX Runtime."""
    from tvm_edge.host import physical_cores

    inputs = load_inputs(name, folder)
    session = onnxruntime_session(folder / f"{name}.onnx", physical_cores())
    return _time(lambda: session.run(None, inputs))


def _time(run: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds of repeated runs, and the process's peak so far."""
    run()
    samples = [seconds * 1e3 for seconds in timed_runs(run, SECONDS)]
    return {"ms": median(samples), "repeat": len(samples), "resident_mib": peak_mib()}


# ------------------------------------------------------------------ the parent


def _targets_here() -> list[str]:
    import tvm

    gpus = [k for k in ("opencl", "cuda") if tvm.runtime.enabled(k) and tvm.device(k, 0).exist]
    return ["llvm", *gpus]


def _prepare(name: str, targets: Iterable[str], folder: Path) -> dict[str, dict[str, Any]]:
    saved = run_child(__name__, "save", name, folder)
    if "failed" in saved:
        return {target: saved for target in targets}
    return {target: run_child(__name__, "compile", name, target, folder) for target in targets}


def _measure(
    name: str, prepared: dict[str, dict[str, Any]], folder: Path, rounds: int
) -> list[dict[str, Any]]:
    """Rows of a network: a target each, ONNX Runtime's first."""
    samples: dict[str, list[dict[str, Any]]] = {"onnxruntime": []}
    samples.update({t: [] for t, result in prepared.items() if "failed" not in result})
    for _ in range(rounds):
        for target, results in samples.items():
            if target == "onnxruntime":
                results.append(run_child(__name__, "peer", name, folder))
            else:
                results.append(run_child(__name__, "run", name, target, folder))
    rows = []
    for target, result in {"onnxruntime": {}, **prepared}.items():
        row = {"network": name, "target": target, **result}
        runs = samples.get(target, [])
        failed = next((r for r in runs if "failed" in r), None)
        if failed:
            row |= failed
        elif runs:
            row |= {**runs[0], "right": all(r.get("right", True) for r in runs)}
            row["ms"] = median(r["ms"] for r in runs)
            row["ms_range"] = [min(r["ms"] for r in runs), max(r["ms"] for r in runs)]
            row["resident_mib"] = max(r["resident_mib"] for r in runs)
        rows.append(row)
    return rows


def _markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table: a line per network and target."""
    peers = {row["network"]: row for row in rows if row["target"] == "onnxruntime"}
    lines = [
        "| network | target | right | error | detections | ms | ONNX Runtime, CPU | memory, MiB "
        "| ONNX Runtime | planned | kernels | runs on |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["target"] == "onnxruntime":
            continue
        peer = peers[row["network"]]
        if "failed" in row:
            lines.append(f"| {row['network']} | {row['target']} | **{row['failed']}** |" + " |" * 9)
            continue
        lines.append(
            f"| {row['network']} | {row['target']} | {'yes' if row['right'] else '**no**'} "
            f"| {row['error']:.1e} | {row.get('detections', '')} | {_spread(row)} "
            f"| {_spread(peer)} | {row['resident_mib']:.0f} | {peer.get('resident_mib', 0):.0f} "
            f"| {row['planned_mib']:.0f} | {row['kernels']} | {row['partitions']} |"
        )
    return "\n".join(lines)


def _spread(row: Mapping[str, Any]) -> str:
    if "ms" not in row:
        return "failed"
    low, high = row["ms_range"]
    return f"{row['ms']:.3g} [{low:.3g}–{high:.3g}]"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    from tvm_edge import zoo

    parser = Parser("zoo", __doc__)
    parser.shared(networks=zoo.names(), targets=None, jobs=1, rounds=3, json=None)
    options = parser.parse_args(arguments)
    targets = options.targets or _targets_here()
    rows: list[dict[str, Any]] = []

    def finish(name: str, prepared: dict[str, dict[str, Any]], folder: Path) -> None:
        rows.extend(_measure(name, prepared, folder, options.rounds))
        lines = _markdown(rows).splitlines()[-len(prepared) :]
        print(*lines, sep="\n", file=sys.stderr, flush=True)
        shutil.rmtree(folder)  # a network takes up to 5 GB
        content = {"machine": describe_machine(), "rounds": options.rounds, "rows": rows}
        save_json(options.json, content)

    with tempfile.TemporaryDirectory(prefix="tvm-edge-zoo-") as base:
        folders = {name: Path(base) / name for name in options.networks}
        for folder in folders.values():
            folder.mkdir()
        if options.jobs > 1:  # compile all, then time all: compiling disturbs the clock
            with ThreadPoolExecutor(options.jobs) as pool:
                results = pool.map(lambda n: _prepare(n, targets, folders[n]), folders)
                everything = dict(zip(folders, results, strict=True))
            for name, prepared in everything.items():
                finish(name, prepared, folders[name])
        else:
            for name, folder in folders.items():
                finish(name, _prepare(name, targets, folder), folder)
    print(json.dumps(describe_machine(), indent=2))
    print(_markdown(rows))


JOBS: dict[str, Job] = {
    "save": write_reference,
    "compile": _compile,
    "run": _run,
    "peer": _peer,
}
