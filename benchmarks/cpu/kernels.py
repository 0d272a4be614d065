"""Time of single kernels beside ONNX Runtime, in processes that take turns.

A case is a model of one operator or of a short chain. Each result that is timed is compared with
ONNX Runtime's, to 1e-4 of its largest value; 1e-2 is allowed with ``--precision float16``, and 0.1
with ``bfloat16``, which are tvm-edge's alone. A figure is the median over rounds of the least time
of a turn, as other work takes a part of a core now and then.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from benchmarks.common.correctness import TOLERANCE, relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import Run, onnxruntime_function
from benchmarks.common.options import Parser, save_json
from benchmarks.common.processes import Job
from benchmarks.common.text import met
from benchmarks.common.timing import timed_runs
from benchmarks.common.turns import TurnProcess, answer_turns
from benchmarks.cpu.kernel_cases import Case
from benchmarks.cpu.kernels_pointwise import CASES as POINTWISE
from benchmarks.cpu.kernels_products import CASES as PRODUCTS

__all__ = ["CASES", "JOBS", "main"]

CASES: Mapping[str, Case] = {**POINTWISE, **PRODUCTS}
"""All cases by name."""

TOLERANCES = {"float32": TOLERANCE, "float16": 1e-2, "bfloat16": 0.1}
"""Error that is allowed in a precision, of a result's largest value."""

_PEER, _OURS = "onnxruntime", "tvm-edge"
_MOST, _MEAN = 1.05, 0.9  # bars of a case's and of the mean ratio
_TURN = 120.0  # seconds, of a turn with the compilation


def _answer(
    runtime: str, seconds: str, threads: str, target: str, precision: str, folder: Path
) -> dict[str, Any]:
    """Load a case when it is first asked for; time it, and compare its result."""
    loaded: dict[str, tuple[Run, dict[str, np.ndarray]]] = {}

    def turn(name: str) -> dict[str, Any]:
        if name not in loaded:
            loaded.clear()
            loaded[name] = _load(runtime, name, int(threads), target, precision)
        run, inputs = loaded[name]
        result, kept = np.asarray(run(inputs)["y"]), folder / "y.npy"
        if runtime == _PEER:
            np.save(kept, result)
        expected = np.load(kept)
        same = result.shape == expected.shape
        error = relative_error(result, expected) if same else float("inf")
        timed_runs(lambda: run(inputs), float(seconds) / 4)
        times = timed_runs(lambda: run(inputs), float(seconds))
        return {"us": min(times) * 1e6, "median_us": median(times) * 1e6, "error": error}

    return answer_turns(dict, turn)


def _load(
    runtime: str, name: str, threads: int, target: str, precision: str
) -> tuple[Run, dict[str, np.ndarray]]:
    proto, random = CASES[name](), np.random.default_rng(0)
    shapes = {
        each.name: [d.dim_value for d in each.type.tensor_type.shape.dim]
        for each in proto.graph.input
    }
    inputs = {n: random.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    if runtime == _PEER:
        return onnxruntime_function(proto, threads), inputs
    import tvm_edge

    model = tvm_edge.compile(
        proto, target, num_threads=threads, precision=precision, tuning_logs=False
    )
    return model.run, inputs


def _measure(
    name: str, processes: Mapping[str, TurnProcess], rounds: int, tolerance: float
) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in processes}
    for _ in range(rounds):
        for runtime, process in processes.items():  # the peer first: its result is the reference
            found[runtime].append(process.ask(name))
    row: dict[str, Any] = {"case": name, "rounds": found}
    failed = [each["failed"] for turns in found.values() for each in turns if "failed" in each]
    if failed:
        return {**row, "failed": failed[0]}
    us = {runtime: median(turn["us"] for turn in turns) for runtime, turns in found.items()}
    error = max(turn["error"] for turn in found[_OURS])
    ratio = us[_OURS] / us[_PEER]
    return {**row, "us": us, "ratio": ratio, "error": error, "right": error <= tolerance}


def _line(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['case']} | **{row['failed']}** | | | |"
    wrong = "" if row["right"] else " **wrong**"
    cells = [f"{row['us'][runtime]:,.1f}" for runtime in (_OURS, _PEER)]
    return (
        f"| {row['case']} | {' | '.join(cells)} | {row['ratio']:.2f} | {row['error']:.0e}{wrong} |"
    )


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    right = [row for row in rows if row.get("right")]
    if not right:
        return "no case was right"
    mean = geometric_mean(row["ratio"] for row in right)
    above = [row["case"] for row in right if row["ratio"] > _MOST]
    return (
        f"{len(right)} of {len(rows)} cases right; time over ONNX Runtime's {mean:.2f} in "
        f"geometric mean, bar <= {_MEAN}: {met(mean <= _MEAN)}; above {_MOST}: {len(above)} "
        f"({', '.join(above) or 'none'}): {met(not above and len(right) == len(rows))}"
    )


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("cpu_kernels", __doc__)
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help="cases whose name has one (default: all)"
    )
    parser.shared(rounds=3, seconds=0.15, threads=2, target="llvm", json=None)
    parser.add_argument(
        "--precision", choices=list(TOLERANCES), default="float32", help="tvm-edge's"
    )
    options = parser.parse_args(arguments)
    names = [n for n in CASES if any(re.search(p, n) for p in options.patterns or [""])]
    rows = []
    print("| case | tvm-edge, µs | ONNX Runtime, µs | ratio | error |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="tvm-edge-kernels-") as folder:
        words = (options.seconds, options.threads, options.target, options.precision, folder)
        processes = {
            runtime: TurnProcess("benchmarks.cpu.kernels", "answer", runtime, *words, seconds=_TURN)
            for runtime in (_PEER, _OURS)
        }
        for name in names:
            rows.append(_measure(name, processes, options.rounds, TOLERANCES[options.precision]))
            print(_line(rows[-1]), flush=True)
        for process in processes.values():
            process.end()
    machine = describe_machine()
    print(f"\n{_verdict(rows)}", file=sys.stdout)
    save_json(options.json, {"machine": machine, "threads": options.threads, "rows": rows})


JOBS: dict[str, Job] = {"answer": _answer}
