"""Networks in int8: on the CPU beside ONNX Runtime and OpenVINO, on a GPU beside float32.

The zoo's resnet50_v1 and mobilenet_v2 by ``onnxruntime.quantization`` (:mod:`.int8_models`), one
picture, NumPy arrays in and out. Every runtime runs the same file in a process of its own, and the
processes take turns: ours, ours in float32, ONNX Runtime, OpenVINO, ours, … A process loads the
network, warms up, then times runs; its result is their median. A figure is the median of the
processes, their range in brackets. ``ratio`` is the faster peer's figure over ours, ``float32``
that of our own float32 over ours.

In the same run every quantised tensor is compared with ONNX Runtime's on another picture (``> 1``
is the largest share of a tensor that differs by more than one unit), and the mAP of the detector
that ships, quantised alike, with float32's.

With ``--tune TRIALS`` (for each convolution, on average) the networks are tuned first, and what
comes of it is timed beside the heuristics' choice, a process of its own in each turn: the speed is
the latter's figure over the former's. All bytes of the results have to be the same.

Without pictures the detector is left out. With ``--target cuda`` or ``opencl`` a GPU runs the
networks: see :mod:`benchmarks.models.int8_gpu`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.correctness import load_inputs
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import met, spread
from benchmarks.common.timing import timed_runs
from benchmarks.cpu.runtimes import ENVIRONMENT, load_runtime
from benchmarks.models.int8_models import (
    DETECTOR,
    compare,
    inputs_of,
    quantized,
    with_intermediates,
)

_WARM_UP = 0.5  # seconds
_NETWORKS = ("resnet50_v1", "mobilenet_v2")
_FLOAT32, _OURS, _TUNED = "tvm-edge float32", "tvm-edge", "tvm-edge tuned"
_RUNTIMES = (_OURS, _FLOAT32, "onnxruntime", "openvino")
_FORMS = {_FLOAT32: ".float32", _TUNED: ".tuned"}

PEER, FLOAT32 = 1.0, 2.0
"""Bars: the faster peer's time over ours, and our float32's."""

ONE_UNIT, HALF_A_POINT = 1e-3, 0.005
"""Bars: the share of a tensor that may differ by more than one unit, and what mAP may lose."""


# ------------------------------------------------------------------ what the child processes do


def _save(name: str, folder: Path) -> dict[str, Any]:
    """Write the network, quantised and not, both compiled, and an input."""
    import onnx

    import tvm_edge
    from tvm_edge import zoo

    model = zoo.build(name)
    int8 = quantized(name)
    onnx.save(int8, folder / f"{name}.onnx")
    onnx.save(model, folder / f"{name}.float32.onnx")
    np.savez(folder / f"{name}.inputs.npz", **inputs_of(name, 0))
    compiled = tvm_edge.compile(int8, "llvm", tuning_logs=False)
    compiled.export(folder / f"{name}.tvme")
    tvm_edge.compile(model, "llvm", tuning_logs=False).export(folder / f"{name}.float32.tvme")
    rules = [kernel.rule for kernel in compiled.report.kernels]
    return {
        "kernels": len(rules),
        "int8": sum(rule.endswith("_int8") for rule in rules),
        "seconds": sum(compiled.report.seconds.values()),
    }


def _tune(name: str, trials: str, records: str, folder: Path) -> dict[str, Any]:
    """Tune the network and write what is compiled with the records; what differs in its results."""
    import onnx

    import tvm_edge
    from tvm_edge.hardware import resolve_target
    from tvm_edge.tuning.tasks import extract_tasks

    path = folder / f"{name}.onnx"
    tasks = extract_tasks(path, resolve_target("llvm"))
    result = tvm_edge.tune(str(path), "llvm", trials=int(trials) * len(tasks), tuning_logs=records)
    compiled = tvm_edge.compile(path, "llvm", tuning_logs=records)
    compiled.export(folder / f"{name}{_FORMS[_TUNED]}.tvme")
    model, feeds = with_intermediates(onnx.load(path)), inputs_of(name, 1)
    before, after = (
        tvm_edge.compile(model, "llvm", tuning_logs=own).run(feeds) for own in (False, records)
    )
    taken = compiled.report.records
    return {
        "trials": result.trials,
        "failures": result.failed,
        "seconds": result.seconds,
        "convolutions": taken.tuned if taken else 0,
        "kernels_ms": [result.heuristic_ms, result.best_ms],
        "different": asdict(compare(after, before))["different"],
    }


def _time(runtime: str, name: str, threads: str, seconds: str, folder: Path) -> dict[str, Any]:
    inputs = load_inputs(name, folder)
    own = _OURS if runtime in _FORMS else runtime
    form = name + _FORMS.get(runtime, "")
    run = load_runtime(own, form, folder, int(threads))
    run(inputs)
    timed_runs(lambda: run(inputs), _WARM_UP)
    samples = [s * 1e3 for s in timed_runs(lambda: run(inputs), float(seconds))]
    return {"ms": median(samples), "fastest_ms": min(samples), "repeat": len(samples)}


def _compare(name: str, folder: Path) -> dict[str, Any]:
    """Every quantised tensor of a picture, and the classes of some."""
    import onnx

    import tvm_edge

    model = with_intermediates(onnx.load(folder / f"{name}.onnx"))
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    feeds = inputs_of(name, 1)
    return asdict(compare(compiled.run(feeds), onnxruntime_function(model)(feeds)))


def _detector(pictures: str, folder: Path) -> dict[str, Any]:
    """The mAP of the detector in float32 and in int8, by us and by ONNX Runtime."""
    import onnx

    import tvm_edge
    from benchmarks.models.detector import accuracy
    from tvm_edge.zoo import shapes
    from tvm_edge.zoo.trained import model_path

    model = onnx.load(model_path(DETECTOR))
    int8 = quantized(DETECTOR)
    scenes = [shapes.draw(index, "held-out") for index in range(int(pictures))]
    compiled = tvm_edge.compile(int8, "llvm", tuning_logs=False)
    found = {"tvm-edge int8": accuracy(compiled.run, scenes)}
    for label, each in (("ONNX Runtime float32", model), ("ONNX Runtime int8", int8)):
        found[label] = accuracy(onnxruntime_function(each), scenes)
    rules = [kernel.rule for kernel in compiled.report.kernels]
    return {"mAP": found, "int8": sum(rule.endswith("_int8") for rule in rules)}


# ------------------------------------------------------------------ the parent


def _measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"network": name, **run_child(__name__, "save", name, folder)}
    if "failed" in row:
        return row
    row["difference"] = run_child(__name__, "compare", name, folder)
    runtimes = list(_RUNTIMES)
    if options.tune:
        records = options.records or folder / "records"
        row["tune"] = run_child(__name__, "tune", name, options.tune, records, folder)
        if "failed" not in row["tune"]:
            runtimes.insert(1, _TUNED)
    times: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in runtimes}
    for _ in range(0 if options.no_times else options.rounds):
        for runtime, results in times.items():
            own = ENVIRONMENT.get(_OURS, {}) if runtime.startswith(_OURS) else {}
            arguments = (runtime, name, options.threads, options.seconds, folder)
            results.append(run_child(__name__, "time", *arguments, **own))
    row["rounds"] = times
    worked = {
        runtime: median(r["ms"] for r in results)
        for runtime, results in times.items()
        if results and not any("failed" in r for r in results)
    }
    if _OURS in worked:
        ours = worked[_OURS]
        peers = [worked[peer] for peer in ("onnxruntime", "openvino") if peer in worked]
        row["ratio"] = min(peers) / ours if peers else None
        row["float32"] = worked[_FLOAT32] / ours if _FLOAT32 in worked else None
        row["tuned"] = ours / worked[_TUNED] if _TUNED in worked else None
    return row


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['network']} | **{row['failed']}** |" + " |" * 8
    cells = [row["network"], *(_milliseconds(row["rounds"][runtime]) for runtime in _RUNTIMES)]
    cells += [f"**{row[key]:.2f}**" if row.get(key) else "–" for key in ("ratio", "float32")]
    apart = row["difference"]
    if "failed" in apart:
        cells += [f"**{apart['failed']}**", ""]
    else:
        cells += [f"{apart['worst']:.2%} of {apart['tensors']}", f"{apart['different']:.3%}"]
    cells.append(f"{row['int8']} of {row['kernels']}")
    return f"| {' | '.join(cells)} |"


def _milliseconds(results: Sequence[dict[str, Any]]) -> str:
    failed = next((r["failed"] for r in results if "failed" in r), None)
    if failed:
        return f"**{failed}**"
    return spread([r["ms"] for r in results])


def _verdict(rows: Sequence[dict[str, Any]], detector: dict[str, Any]) -> str:
    lines = []
    for row in rows:
        if row.get("ratio"):
            fast = row["ratio"] >= PEER and (row["float32"] or 0) >= FLOAT32
            lines.append(
                f"- {row['network']}: {row['ratio']:.2f} of the faster peer's speed (bar {PEER}), "
                f"{row['float32'] or 0:.2f} of our float32's (bar {FLOAT32}): {met(fast)}"
            )
        apart = row.get("difference", {})
        if "worst" in apart:
            good = apart["worst"] <= ONE_UNIT
            lines.append(
                f"- {row['network']}: at most {apart['worst']:.3%} of a tensor is more than one "
                f"unit off ({apart['worst_name']}; bar {ONE_UNIT:.1%}): {met(good)}"
            )
    if "mAP" in detector:
        found = detector["mAP"]
        lost = found["ONNX Runtime float32"] - found["tvm-edge int8"]
        table = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        lines.append(f"- {DETECTOR}: mAP@0.5 {table}: {met(lost <= HALF_A_POINT)}")
    elif detector:
        lines.append(f"- {DETECTOR}: **{detector['failed']}**")
    return "\n".join(lines)


def _tuned_lines(rows: Sequence[dict[str, Any]]) -> str:
    """Lines of what tuning found, one for each network."""
    lines = []
    for row in rows:
        found = row.get("tune", {})
        if "failed" in found:
            lines.append(f"- {row['network']} tuned: **{found['failed']}**")
        elif found:
            before, after = found["kernels_ms"]
            times = _milliseconds(row["rounds"].get(_TUNED, []))
            ratio = f", {row['tuned']:.3f} of the speed before" if row.get("tuned") else ""
            one_by_one = (
                f" ({before:.3g} ms one by one, now {after:.3g})" if isfinite(before) else ""
            )
            lines.append(
                f"- {row['network']} tuned: {times} ms{ratio}; {found['convolutions']} "
                f"convolutions{one_by_one}; {found['trials']} trials in {found['seconds']:.0f} s, "
                f"{found['failures']} failed; {found['different']:.2%} of the bytes differ"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("int8", __doc__)
    parser.shared(networks=_NETWORKS, target=Among("llvm", ("llvm", "cuda", "opencl")))
    parser.shared(rounds=5, seconds=3.0, threads=2, pictures=500, jobs=2)
    parser.shared(records=None, no_tune=False, json=None)
    parser.add_argument("--tune", type=int, default=0, metavar="TRIALS")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="of a GPU's memory, GB/s")
    options = parser.parse_args(arguments)
    if options.no_tune and (options.target == "llvm" or options.records is None):
        parser.error("argument --no-tune: for --target cuda or opencl, with --records FOLDER")
    if options.target != "llvm":
        from benchmarks.models import int8_gpu

        int8_gpu.measure(options)
        return
    rows, detector = [], {}
    with tempfile.TemporaryDirectory(prefix="tvm-edge-int8-") as base:
        for name in options.networks:
            rows.append(_measure(name, options, Path(base)))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
        if options.pictures:
            detector = run_child(__name__, "detector", options.pictures, base)
    print(json.dumps(describe_machine(), indent=2))
    print(
        "| network | int8, ms | float32, ms | ONNX Runtime, ms | OpenVINO, ms | ratio | float32 "
        "| > 1 | differ | int8 kernels |"
    )
    print("|" + "---|" * 10)
    for row in rows:
        print(_line(row))
    print(f"\n{_verdict(rows, detector)}")
    if options.tune:
        print(_tuned_lines(rows))
    found = {"machine": describe_machine(), "rows": rows, "detector": detector}
    save_json(options.json, found)


JOBS: dict[str, Job] = {
    "save": _save,
    "tune": _tune,
    "time": _time,
    "compare": _compare,
    "detector": _detector,
}
