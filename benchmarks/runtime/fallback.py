"""Operators on the CPU beside a GPU: placements, copies between both, overlap.

**Placements.** Detection networks, batch 1, float32: ``device`` is wholly on the GPU, ``NMS`` with
NonMaxSuppression on the CPU beside it, ``list`` and ``auto`` are ``fallback=``, ``CPU`` is
``target="llvm"``. Every placement has a process of its own, which has run, been compared with ONNX
Runtime's outputs, and waits; the processes run one after the other, ``--rounds`` times (least 30).
A run is `CompiledModel.run` with NumPy arrays in and out. Medians with spread; ``NMS / device`` is
what NonMaxSuppression on the CPU costs end to end, beside 0.5 % or less in ICPP'19 (§3.1.2). The
bar: ``auto`` not slower than the best of device, CPU and list by more than 2 % and the spread,
which is that of the medians of the two halves of the best one's rounds.

**Copies.** A chain of pools that changes the device after each, against the same pools on the
GPU alone and on the CPU alone: a copy is the difference over their number. Beside it the link
by itself: copies of 4 bytes to 64 MiB between host and device, each to its end, as a latency and a
bandwidth, and what waiting for a kernel takes. The bar: a copy within 1.2 of latency + bytes /
bandwidth; where memory is shared and nothing is copied, 50 µs.

**Overlap.** A pool on the GPU, read by a chain of pools on the CPU and by one on the GPU, which
does not wait for the CPU: both against each of them alone. The floor is the longer of the two.

``TVM_EDGE_OPENCL`` chooses the OpenCL device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.paths import ROOT
from benchmarks.common.processes import Job, child_command, require_child, run_child
from benchmarks.common.text import spread
from benchmarks.common.timing import machine_us, timed_runs

NETWORKS = ("ssd_mobilenet_v1", "ssd_resnet50_v1", "yolov3")
PLACEMENTS: dict[str, Any] = {
    "device": "none",
    "NMS": ["NonMaxSuppression"],
    "list": "list",
    "auto": "auto",
    "CPU": None,
}

_PARTS = ("placements", "copies", "overlap")
_WARM_UP = 3
_LINK_SIZES = (4, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
_CHAIN = 8  # operators, and as many copies less one
_SIDES = (16, 512, 2048)  # of the square images of floats that cross
_CHAINED = ("GPU", "CPU", "both")
# Of the heads: operators and side of their window, so that a real GPU and a CPU take a while.
_HEADS = {"CPU": (3, 3), "GPU": (8, 15)}
_HEADS_SIDE = 2048


# ------------------------------------------------------------------ what the child processes do


def _compile(name: str, placement: str, target: str, folder: Path) -> dict[str, Any]:
    import tvm_edge

    fallback = PLACEMENTS[placement]
    target = "llvm" if fallback is None else target
    model = tvm_edge.compile(folder / f"{name}.onnx", target, fallback=fallback or "auto")
    model.export(folder / f"{name}.{placement}.tvme")
    report = model.report
    return {
        "line": report.placement_line(),
        "copies": len(report.copies),
        "bytes": sum(copy["bytes"] for copy in report.copies),
        "on_cpu": sorted({p.op_type for p in report.placements if p.device == "llvm"}),
    }


def _wait(name: str, placement: str, folder: Path) -> dict[str, Any]:
    """Check a run; then time one for each line of standard input."""
    import tvm_edge

    inputs = load_inputs(name, folder)
    model = tvm_edge.load(folder / f"{name}.{placement}.tvme")
    expected = load_expected(name, folder)
    checked = compare_outputs(model.run(inputs), expected, folder / f"{name}.onnx")
    for _ in range(_WARM_UP):
        model.run(inputs)
    print(json.dumps(checked), flush=True)
    for _ in sys.stdin:
        start = perf_counter()
        model.run(inputs)
        print((perf_counter() - start) * 1e6, flush=True)
    return {}


def _link(target: str, folder: Path) -> dict[str, Any]:
    """Microseconds of copies each way, by bytes, and of waiting for a kernel."""
    import tvm

    import tvm_edge

    device = tvm.device(target, 0)
    found: dict[str, Any] = {"to_host": [], "to_device": []}
    for size in _LINK_SIZES:
        there = tvm.runtime.empty((size,), "uint8", device)
        here = tvm.runtime.empty((size,), "uint8")
        ways: dict[str, Callable[[], Any]] = {
            "to_host": lambda here=here, there=there: there.copyto(here),
            "to_device": lambda here=here, there=there: here.copyto(there),
        }
        for way, copy in ways.items():
            found[way].append((size, _median_us(lambda c=copy: (c(), device.sync()))))
    # What a kernel takes that somebody waits for, less what it takes behind another.
    model, _ = _chain_model(_SIDES[0], 1)
    path = folder / "one.tvme"
    tvm_edge.compile(model, target, fallback="none").export(path)
    x = np.zeros((1, 1, _SIDES[0], _SIDES[0]), "float32")
    waited = tvm_edge.load(path).benchmark({"x": x}, repeat=200).device.median * 1e3
    found["wait"] = waited - machine_us(path, target, {"x": tvm.runtime.tensor(x, device)})
    return found


def _median_us(run: Callable[[], Any]) -> float:
    timed_runs(run, 0.1)
    return median(timed_runs(run, 0.3)) * 1e6


def _chain(side: str, target: str, placement: str, _folder: Path) -> dict[str, Any]:
    """Microseconds of a run of the chain in TVM's virtual machine, its input where it is read."""
    import tvm_edge

    model, names = _chain_model(int(side))
    fallback = {"GPU": "none", "CPU": names, "both": names[1::2]}[placement]
    compiled = tvm_edge.compile(model, target, fallback=fallback)
    x = np.random.default_rng(0).standard_normal((1, 1, int(side), int(side))).astype("float32")
    (actual,) = compiled.run({"x": x}).values()
    expected = x[0, 0]
    for _ in names:
        padded = np.pad(expected, 1, constant_values=-np.inf)
        expected = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).max(axis=(2, 3))
    np.testing.assert_array_equal(actual[0, 0], expected)
    copies = compiled.report.copies
    return {
        "us": compiled.benchmark({"x": x}, repeat=200).device.median * 1e3,  # milliseconds
        "copies": len(copies),
        "zero_copy": sum(bool(copy.get("zero_copy")) for copy in copies),
    }


def _chain_model(side: int, length: int = _CHAIN) -> tuple[Any, list[str]]:
    """Pools that keep the shape and cannot be one kernel, and their names."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 1, side, side), "float32"))
    names = []
    with builder.function("main", [x]):
        value = x
        for _ in range(length):
            value = builder.emit(relax.op.nn.max_pool2d(value, (3, 3), padding=(1, 1)))
            names.append(value.name)
        builder.emit_func_output(value)
    return builder.get(), names


def _heads(side: str, target: str, which: str, _folder: Path) -> dict[str, Any]:
    """Microseconds of a run with both heads, or one of them."""
    from tvm import relax

    import tvm_edge

    builder = relax.BlockBuilder()
    shape = (1, 1, int(side), int(side))
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    names: dict[str, list[str]] = {}
    with builder.function("main", [x]):
        trunk = builder.emit(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
        results = []
        for head, (length, window) in _HEADS.items():
            if which not in (head, "both"):
                continue
            value, names[head] = trunk, []
            for _ in range(length):
                pool = relax.op.nn.max_pool2d(value, (window,) * 2, padding=(window // 2,) * 2)
                value = builder.emit(pool)
                names[head].append(value.name)
            results.append(value)
        builder.emit_func_output(relax.Tuple(results))
    compiled = tvm_edge.compile(builder.get(), target, fallback=names.get("CPU", "none"))
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    found = list(compiled.run({"x": values}).values())
    for head, actual in zip(names, found, strict=True):
        length, window = _HEADS[head]
        # Pools one behind the other are one with their windows joined.
        reach = 1 + length * (window // 2)
        rows = _sliding_max(values[0, 0], reach)
        np.testing.assert_array_equal(actual[0, 0], _sliding_max(rows.T, reach).T)
    overlapped = [bool(copy["overlapped"]) for copy in compiled.report.copies]
    median_ms = compiled.benchmark({"x": values}, repeat=100).device.median
    return {"us": median_ms * 1e3, "overlapped": overlapped}


def _sliding_max(values: np.ndarray, reach: int) -> np.ndarray:
    """The largest of the elements up to `reach` lines away."""
    padded = np.pad(values, ((reach, reach), (0, 0)), constant_values=-np.inf)
    found = padded[: len(values)].copy()
    for offset in range(1, 2 * reach + 1):
        np.maximum(found, padded[offset : offset + len(values)], out=found)
    return found


JOBS: dict[str, Job] = {
    "prepare": write_reference,
    "compile": _compile,
    "wait": _wait,
    "link": _link,
    "chain": _chain,
    "heads": _heads,
}


# ----------------------------------------------------------------------------------- the parent


class _Waiting:
    """A process that has loaded a placement and runs when it is told to."""

    def __init__(self, name: str, placement: str, folder: Path) -> None:
        self._what = f"{name} {placement}"
        self._process = subprocess.Popen(
            child_command(__name__, "wait", name, placement, folder),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.checked: dict[str, Any] = json.loads(self._line())

    def run(self) -> float:
        """Microseconds of a run."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._what} ended with status {self._process.wait()}")
        return line


def _placements(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda n: run_child(__name__, "prepare", n, folder), options.networks))
        both = [(name, placement) for name in options.networks for placement in PLACEMENTS]
        jobs = pool.map(lambda j: run_child(__name__, "compile", *j, options.target, folder), both)
        compiled = dict(zip(both, jobs, strict=True))
    found: dict[str, Any] = {}
    for name in options.networks:
        rows = {placement: compiled[name, placement] for placement in PLACEMENTS}
        for placement, row in rows.items():
            print(f"{name} {placement}: {row.get('failed') or row['line']}", flush=True)
        waiting = {p: _Waiting(name, p, folder) for p, row in rows.items() if "failed" not in row}
        for _ in range(options.rounds):
            for placement, process in waiting.items():
                rows[placement].setdefault("us", []).append(process.run())
        for placement, process in waiting.items():
            rows[placement]["checked"] = process.checked
            process.end()
        found[name] = rows
    return found


def _copies(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    chains = []
    for side in _SIDES:
        row: dict[str, Any] = {"bytes": 4 * side**2}
        for placement in _CHAINED:
            rounds = [
                require_child(__name__, "chain", side, options.target, placement, folder)
                for _ in range(min(3, options.rounds))
            ]
            row[placement] = median(r["us"] for r in rounds)
            row["copies"], row["zero_copy"] = rounds[0]["copies"], rounds[0]["zero_copy"]
        # Half of the operators run on each device.
        row["us"] = (row["both"] - (row["GPU"] + row["CPU"]) / 2) / row["copies"]
        chains.append(row)
    link = require_child(__name__, "link", options.target, folder)
    return {"link": link, "chains": chains}


def _overlap(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for _ in range(min(3, options.rounds)):
        for which in _CHAINED:
            row = require_child(__name__, "heads", _HEADS_SIDE, options.target, which, folder)
            rows.setdefault(which, []).append(row)
    if not all(row["overlapped"] == [True] for row in rows["both"]):
        raise SystemExit("the read of the CPU's head is not overlapped")
    return {which: [row["us"] for row in found] for which, found in rows.items()}


def _overlap_lines(found: dict[str, list[float]]) -> list[str]:
    both, gpu, cpu = (median(found[which]) for which in ("both", "GPU", "CPU"))
    cells = [_spread(found[which]) for which in ("both", "GPU", "CPU")]
    return [
        "| both heads, ms | the GPU's alone | the CPU's alone | both / sum | both / the longer |",
        "|---" * 5 + "|",
        f"| {' | '.join(cells)} | {both / (gpu + cpu):.2f} | **{both / max(gpu, cpu):.2f}** |",
    ]


def _spread(us: Sequence[float]) -> str:
    """Milliseconds."""
    return spread([each / 1e3 for each in us], ",.2f")


def _placement_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        "| network | " + " | ".join(f"{p}, ms" for p in PLACEMENTS) + " | right | NMS / device "
        "| auto / best | spread of the best | copies of auto |",
        "|---" * (len(PLACEMENTS) + 6) + "|",
    ]
    for name, rows in found.items():
        middle = {p: median(row["us"]) for p, row in rows.items() if "us" in row}
        best = min((p for p in ("device", "CPU", "list") if p in middle), key=lambda p: middle[p])
        halves = [median(rows[best]["us"][i::2]) for i in range(2)]
        apart = max(halves) / min(halves) - 1
        right = all(row["checked"]["right"] for row in rows.values() if "checked" in row)
        lines.append(
            f"| {name} | "
            + " | ".join(_spread(rows[p]["us"]) if p in middle else "–" for p in PLACEMENTS)
            + f" | {'yes' if right else 'no'} | **{middle['NMS'] / middle['device'] - 1:+.1%}** "
            f"| **{middle['auto'] / middle[best]:.3f}** ({best}) | {apart:.1%} "
            f"| {rows['auto']['copies']}, {rows['auto']['bytes'] / 1024:,.0f} KiB |"
        )
    return lines


def _copy_lines(found: dict[str, Any]) -> list[str]:
    link, ways = found["link"], ("to_host", "to_device")
    latency, rate = {}, {}
    for way in ways:
        rows = link[way]
        latency[way] = rows[0][1] + (link["wait"] if way == "to_host" else 0)
        rate[way] = (rows[-1][0] - rows[-2][0]) / (rows[-1][1] - rows[-2][1]) / 1e3
    lines = [
        ", ".join(f"{way}: {latency[way]:.1f} µs and {rate[way]:.1f} GB/s" for way in ways)
        + f"; {link['wait']:.1f} µs of it for the kernel's end",
        "",
        "| bytes | both, µs | GPU, µs | CPU, µs | copies | of them zero-copy | a copy, µs "
        "| latency + bytes / bandwidth | ratio |",
        "|---" * 9 + "|",
    ]
    for row in found["chains"]:
        expected = sum(latency[w] + row["bytes"] / rate[w] / 1e3 for w in ways) / len(ways)
        lines.append(
            f"| {row['bytes']:,} | {row['both']:,.1f} | {row['GPU']:,.1f} | {row['CPU']:,.1f} "
            f"| {row['copies']} | {row['zero_copy']} | {row['us']:,.1f} | {expected:,.1f} "
            f"| **{row['us'] / expected:.2f}** |"
        )
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("fallback", __doc__)
    parser.shared(target=Among("opencl", ("opencl", "cuda")), part=Among(_PARTS, _PARTS))
    parser.shared(networks=Among(NETWORKS, NETWORKS), rounds=30, jobs=2, json=None)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"machine": describe_machine(), "target": options.target}
    print(json.dumps(found["machine"]))
    with tempfile.TemporaryDirectory() as folder:
        if "placements" in options.part:
            found["placements"] = _placements(options, Path(folder))
            print("\n".join(_placement_lines(found["placements"])), flush=True)
        if "copies" in options.part:
            found["copies"] = _copies(options, Path(folder))
            print("\n".join(_copy_lines(found["copies"])), flush=True)
        if "overlap" in options.part:
            found["overlap"] = _overlap(options, Path(folder))
            print("\n".join(_overlap_lines(found["overlap"])), flush=True)
    save_json(options.json, found)
