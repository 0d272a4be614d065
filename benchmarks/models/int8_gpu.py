"""Networks in int8 on a GPU, for :mod:`benchmarks.models.int8`.

The same networks, as they are and in float32, both by heuristics alone: nobody
else has kernels of bytes for ONNX's quantised operators on these devices. A time is that of a call
by the device's timer, all launches included; processes take turns, ``--rounds`` times. ``ratio`` is
float32's time over that of bytes.

With ``--tune TRIALS`` (for each convolution, on average) the networks of bytes are tuned first, and
what is compiled with the records, which ``--records FOLDER`` keeps, takes its turn with the others.

``floor`` is what the device could do: each kernel's operations at four times its single-precision
peak, which is what an instruction with four products promises, or its operands and results at
``--bandwidth`` (10**9 bytes per second; 0 leaves memory out), whichever takes longer. Chips that
run it at half rate promise half.

In the same run every quantised tensor of another picture is compared with ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import isfinite, nan
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import load_inputs
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import met, spread
from benchmarks.common.timing import machine_us
from benchmarks.models.int8_models import compare, inputs_of, quantized, with_intermediates

__all__ = ["measure"]

_FORMS = ("int8", "float32")
_TUNED = "tuned"  # of bytes, with records
_CALLS = 30  # between two events
_SLOWEST = 12  # kernels that are listed

FLOAT32 = 1.5
"""Bar: our float32's time over that of bytes."""

ONE_UNIT = 1e-3
"""Bar: the share of a tensor that may differ by more than one unit."""


# ------------------------------------------------------------------ what the child processes do


def _save(name: str, folder: Path) -> dict[str, Any]:
    """Write the network, quantised and not, and an input."""
    import onnx

    from tvm_edge import zoo

    model = zoo.build(name)
    onnx.save(quantized(name), folder / f"{name}.int8.onnx")
    onnx.save(model, folder / f"{name}.float32.onnx")
    np.savez(folder / f"{name}.inputs.npz", **inputs_of(name, 0))
    return {}


def _tune(name: str, target: str, trials: str, records: str, folder: Path) -> dict[str, Any]:
    """Tune the network of bytes."""
    import tvm_edge
    from tvm_edge.hardware import resolve_target
    from tvm_edge.tuning.tasks import extract_tasks

    path = folder / f"{name}.int8.onnx"
    tasks = extract_tasks(path, resolve_target(target))
    result = tvm_edge.tune(str(path), target, trials=int(trials) * len(tasks), tuning_logs=records)
    return {
        "trials": result.trials,
        "failures": result.failed,
        "seconds": result.seconds,
        "kernels_ms": [result.heuristic_ms, result.best_ms],
    }


def _compile(
    name: str, form: str, target: str, bandwidth: str, records: str, folder: Path
) -> dict[str, Any]:
    """Compile one form; which rules its kernels are of, and what the device could do."""
    import tvm_edge
    from tvm_edge.hardware import resolve_target

    start, is_tuned = perf_counter(), form == _TUNED
    model = tvm_edge.compile(
        folder / f"{name}.{'int8' if is_tuned else form}.onnx",
        target,
        fallback="none",
        tuning_logs=records if is_tuned else False,
    )
    seconds = perf_counter() - start
    model.export(folder / f"{name}.{form}.tvme")
    peak = resolve_target(target).spec.peak_gflops * (1 if form == "float32" else 4)
    floor = sum(
        max(
            kernel.flops / peak / 1e3 if peak else 0.0,
            kernel.bytes / float(bandwidth) / 1e3 if float(bandwidth) else 0.0,
        )
        for kernel in model.report.kernels
    )
    rules = Counter(kernel.rule for kernel in model.report.kernels)
    known = model.report.records
    return {
        "seconds": seconds,
        "rules": dict(rules),
        "floor_us": floor,
        "convolutions": known.tuned if known else 0,
    }


def _time(name: str, form: str, target: str, folder: Path) -> dict[str, Any]:
    import tvm

    import tvm_edge

    path, device = folder / f"{name}.{form}.tvme", tvm.device(target, 0)
    arrays = load_inputs(name, folder)
    inputs = {key: tvm.runtime.tensor(value, device) for key, value in arrays.items()}
    us = machine_us(path, target, inputs, _CALLS)
    # One by one, with a synchronisation behind each: which of them take the time.
    rows = tvm_edge.load(path).profile(arrays).kernels
    slowest = sorted(rows, key=lambda row: -row.time_us)[:_SLOWEST]
    return {"us": us, "kernels": [[row.name, row.time_us] for row in slowest]}


def _compare(name: str, target: str, folder: Path) -> dict[str, Any]:
    """Every quantised tensor of a picture."""
    import onnx

    import tvm_edge

    model = with_intermediates(onnx.load(folder / f"{name}.int8.onnx"))
    compiled = tvm_edge.compile(model, target, fallback="none", tuning_logs=False)
    feeds = inputs_of(name, 1)
    return asdict(compare(compiled.run(feeds), onnxruntime_function(model)(feeds)))


JOBS: dict[str, Job] = {
    "save": _save,
    "tune": _tune,
    "compile": _compile,
    "time": _time,
    "compare": _compare,
}


# ------------------------------------------------------------------ the parent


def _measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All figures, a row for each network."""
    names, target = options.networks, options.target
    records = options.records or folder / "records"
    forms = (*_FORMS, _TUNED) if options.tune or options.no_tune else _FORMS
    with ThreadPoolExecutor(options.jobs) as pool:
        saved = list(pool.map(lambda n: run_child(__name__, "save", n, folder), names))
        for name, result in zip(names, saved, strict=True):
            if options.tune and "failed" not in result:  # alone: it measures
                result["tune"] = run_child(
                    __name__, "tune", name, target, options.tune, records, folder
                )
        jobs = [
            (name, job)
            for name, result in zip(names, saved, strict=True)
            if "failed" not in result
            for job in (
                *(("compile", name, form, target, options.bandwidth, records) for form in forms),
                ("compare", name, target),
            )
        ]
        done = list(pool.map(lambda job: run_child(__name__, *job[1], folder), jobs))
    rows = {
        name: {"network": name, "us": {form: [] for form in forms}, **result}
        for name, result in zip(names, saved, strict=True)
    }
    for (name, job), result in zip(jobs, done, strict=True):
        rows[name][str(job[2]) if job[0] == "compile" else "difference"] = result
    for _ in range(0 if options.no_times else options.rounds):
        for name, row in rows.items():
            for form in forms:
                if "failed" in row.get(form, {"failed": ""}):
                    continue
                result = run_child(__name__, "time", name, form, target, folder)
                if "failed" in result:
                    row[form] = result
                    continue
                row["us"][form].append(result["us"])
                row[form]["kernels"] = result["kernels"]
    return list(rows.values())


def _line(row: Mapping[str, Any]) -> str:
    failed = [row[key]["failed"] for key in _FORMS if "failed" in row.get(key, {})]
    if "failed" in row or failed:
        return f"| {row['network']} | **{row.get('failed') or failed[0]}** |" + " |" * 7
    times = [spread(row["us"][form], ",.0f") for form in _FORMS]
    rules: Mapping[str, int] = row["int8"]["rules"]
    own = sum(count for rule, count in rules.items() if rule.endswith("_int8"))
    apart = row["difference"]
    worst = apart.get("failed") or f"{apart['worst']:.2%} of {apart['tensors']}"
    different = "" if "failed" in apart else f"{apart['different']:.3%}"
    ratio = _ratio(row)
    cells = [
        row["network"],
        *times,
        f"**{ratio:.2f}**" if ratio else "–",
        f"{row['int8']['floor_us']:,.0f}",
        worst,
        different,
        f"{own} of {sum(rules.values())}",
        "/".join(f"{row[form]['seconds']:.0f}" for form in _FORMS),
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(row: Mapping[str, Any], form: str = "int8") -> float | None:
    times = [row["us"].get(each) for each in (form, "float32")]
    return median(times[1]) / median(times[0]) if all(times) else None


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        apart = row.get("difference", {})
        for form, words in (("int8", ""), (_TUNED, ", tuned")):
            ratio = _ratio(row, form)
            if ratio:
                lines.append(
                    f"- {row['network']}{words}: {ratio:.2f} of our float32's speed (bar "
                    f"{FLOAT32}): {met(ratio >= FLOAT32)}"
                )
        if _TUNED in row["us"]:
            lines.append(_tuned_line(row))
        if "worst" in apart:
            good = met(apart["worst"] <= ONE_UNIT)
            lines.append(
                f"- {row['network']}: at most {apart['worst']:.3%} of a tensor is more than one "
                f"unit off ({apart['worst_name']}; bar {ONE_UNIT:.1%}): {good}"
            )
        for form in _FORMS:
            if row.get(form, {}).get("rules"):
                rules = ", ".join(f"{n} {rule}" for rule, n in sorted(row[form]["rules"].items()))
                lines.append(f"- {row['network']}, kernels of {form}: {rules}")
    return "\n".join(lines)


def _tuned_line(row: Mapping[str, Any]) -> str:
    """Line of what tuning found."""
    found, compiled = row.get("tune", {}), row.get(_TUNED, {})
    failed = found.get("failed") or compiled.get("failed")
    if failed:
        return f"- {row['network']}, tuned: **{failed}**"
    before, after = found.get("kernels_ms", (nan, nan))
    one_by_one = f" ({before:.3g} ms one by one, now {after:.3g})" if isfinite(before) else ""
    search = "records that were there"
    if found:
        search = f"{found['trials']} trials in {found['seconds']:.0f} s, {found['failures']} failed"
    times = spread(row["us"][_TUNED], ",.0f")
    return (
        f"- {row['network']}, tuned: {times} µs; {compiled['convolutions']} "
        f"convolutions{one_by_one}; {search}"
    )


def measure(options: argparse.Namespace) -> None:
    """Measure on a GPU, and print."""
    with tempfile.TemporaryDirectory(prefix="tvm-edge-int8-") as base:
        rows = _measure(options, Path(base))
    print(json.dumps(describe_machine(), indent=2))
    print(
        "| network | int8, µs | float32, µs | ratio | floor, µs | > 1 | differ | int8 kernels "
        "| compile, s |"
    )
    print("|" + "---|" * 9)
    for row in rows:
        print(_line(row))
    print(f"\n{_verdict(rows)}")
    found = {"machine": describe_machine(), "target": options.target, "rows": rows}
    save_json(options.json, found)
