"""Convolution networks on a GPU beside cuDNN and stock TVM.

One row per network: batch 1, float32. ``CUDA`` and ``OpenCL`` are tvm-edge's, heuristics alone,
and ``tf32`` is CUDA with ``precision="tf32"``;
``cuDNN`` is PyTorch with the same nodes and weights, batch normalisation folded, algorithms chosen
by measurement (``torch.backends.cudnn.benchmark``), captured in a CUDA graph, with tf32 off, and
beside it with tf32 on; ``stock`` is stock TVM, whose compilations that fail are named.
Outputs are compared with ONNX Runtime's before anything is timed.

Times are device events around many calls without synchronisation between them: the network as it
is used, launches included. ``kernels`` is the time in which kernels ran by CUPTI, the least of some
calls; OpenCL's are launched by CUDA for that (:mod:`benchmarks.gpu.opencl_replay`). What OpenCL's
own events say is in the JSON. Processes take turns, ``--rounds`` times; medians with spread.
``--no-peers`` compares OpenCL with CUDA alone, and ``--builds`` measures some of ``cuda opencl
tf32``, without peers: on machines without CUDA ``--builds opencl``, with ``--jobs 1`` what a
compilation takes that has the machine for itself. Layers: :mod:`benchmarks.gpu.layers`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    relative_error,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import spread
from benchmarks.common.timing import EVENT_ROUNDS, machine_us, open_machine, torch_us
from benchmarks.gpu.cupti import busy_us, kernel_times_us
from benchmarks.gpu.opencl_replay import build_recorder, record, replay

NETWORKS = ("resnet50_v1", "mobilenet_v2", "squeezenet1_0", "vgg19", "inception_v3", "densenet121")
ALSO = ("mobilenet_v1",)  # of no bar: ICPP'19, Table 3

_CALLS = 30  # between two events
_PROFILED = 3  # calls, of which the least sum of kernels' times counts

# Of the largest value: what is allowed to peers, some of which round to tf32.
_PEERS_ERROR = 1e-2

# What is compiled: target, precision, and the error allowed, of the largest value.
_BUILDS = {
    "cuda": ("cuda", "float32", 1e-4),
    "opencl": ("opencl", "float32", 1e-4),
    "tf32": ("cuda", "tf32", 1e-2),
}


# ------------------------------------------------------------------ what the child processes do


def _compile(name: str, build: str, folder: Path) -> dict[str, Any]:
    """Compile the network, write the artifact, compare its results with ONNX Runtime's."""
    import tvm_edge

    target, precision, tolerance = _BUILDS[build]
    start = perf_counter()
    model = tvm_edge.compile(
        folder / f"{name}.onnx", target, precision=precision, fallback="none", tuning_logs=False
    )
    seconds = perf_counter() - start
    model.export(folder / f"{name}.{build}.tvme")
    outputs = model.run(load_inputs(name, folder))
    error = compare_outputs(outputs, load_expected(name, folder), folder / f"{name}.onnx")
    return {
        "compile_seconds": seconds,
        "error": error["error"],
        "right": bool(error["error"] <= tolerance),
    }


def _ours(name: str, build: str, folder: Path) -> dict[str, Any]:
    import tvm

    import tvm_edge

    target = _BUILDS[build][0]
    device, path = tvm.device(target, 0), folder / f"{name}.{build}.tvme"
    arrays = load_inputs(name, folder)
    inputs = {key: tvm.runtime.tensor(value, device) for key, value in arrays.items()}
    us = machine_us(path, target, inputs, _CALLS)
    model = tvm_edge.load(path)
    measure = _opencl_events_us if target == "opencl" else busy_us
    kind = "events_us" if target == "opencl" else "kernels_us"
    return {
        "us": us,
        kind: min(measure(lambda: model.run(arrays)) for _ in range(_PROFILED)),
        # One by one, with a synchronisation behind each: which of them take the time.
        "kernels": [[k.name, k.time_us, k.gflops] for k in model.profile(arrays).kernels],
    }


def _opencl_events_us(run: Callable[[], Any]) -> float:
    """The sum of the times of a call's kernels by OpenCL's events, launches partly counted in."""
    from tvm_edge import opencl

    opencl.profile_start()
    run()
    kernels = (each for each in opencl.profile_stop() if each["kind"] == "kernel")
    return sum((each["end"] - each["start"]) / 1e3 for each in kernels)


def _record(name: str, folder: Path) -> dict[str, Any]:
    """Write down what a call of the OpenCL artifact launches."""
    import tvm

    device = tvm.device("opencl", 0)
    arrays = load_inputs(name, folder)
    inputs = [tvm.runtime.tensor(value, device) for value in arrays.values()]
    machine, weights = open_machine(folder / f"{name}.opencl.tvme")
    where = folder / f"{name}.recording"
    where.mkdir()
    record(lambda: machine["main"](*inputs, weights), device.sync, where)
    return {}


def _replay(name: str, folder: Path) -> dict[str, Any]:
    """A job: the time of OpenCL's kernels, launched by CUDA."""
    run, launches = replay(folder / f"{name}.recording")
    return {
        "kernels_us": min(busy_us(run) for _ in range(_PROFILED)),
        "launches": launches,
        "kernels": kernel_times_us(run),
    }


def _cudnn(name: str, precision: str, folder: Path) -> dict[str, Any]:
    import onnx
    import torch

    from benchmarks.gpu.pytorch import graphed, network

    for backend in (torch.backends.cudnn, torch.backends.cuda.matmul):
        backend.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    run = network(onnx.load(folder / f"{name}.onnx"), "cuda")
    (array,) = load_inputs(name, folder).values()
    data = torch.from_numpy(array).cuda()
    with torch.inference_mode():
        result = run(data.clone())[0].cpu().numpy()
    (expected,) = load_expected(name, folder).values()
    error = relative_error(result, expected)
    graph = graphed(run, data.clone())
    return {"us": torch_us(graph.replay, _CALLS), "error": error}


def _compile_stock(name: str, folder: Path) -> dict[str, Any]:
    from benchmarks.gpu.stock import compile_stock

    compile_stock(folder / f"{name}.onnx", folder / f"{name}.stock.so")
    return {}


def _stock(name: str, folder: Path) -> dict[str, Any]:
    from benchmarks.gpu.stock import time_stock

    inputs = load_inputs(name, folder)
    (expected,) = load_expected(name, folder).values()
    return time_stock(folder / f"{name}.stock.so", inputs, expected, _CALLS, EVENT_ROUNDS)


JOBS: dict[str, Job] = {
    "prepare": write_reference,
    "compile": _compile,
    "ours": _ours,
    "record": _record,
    "replay": _replay,
    "cudnn": _cudnn,
    "compile_stock": _compile_stock,
    "stock": _stock,
}


# ----------------------------------------------------------------------------------- the parent


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures, by network."""
    alone = options.builds or (["cuda", "opencl"] if options.no_peers else [])
    builds = alone or list(_BUILDS)
    found: dict[str, Any] = {name: {"compiled": {}, "us": {}} for name in options.networks}
    others = [] if alone else options.networks
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda n: run_child(__name__, "prepare", n, folder), options.networks))
        both = [(name, build) for name in options.networks for build in builds]
        compiled = list(pool.map(lambda job: run_child(__name__, "compile", *job, folder), both))
        # Afterwards: seconds of compilation are not shared with a peer.
        stock = list(pool.map(lambda n: run_child(__name__, "compile_stock", n, folder), others))
    for (name, build), result in zip(both, compiled, strict=True):
        found[name]["compiled"][build] = result
        seconds = result.get("compile_seconds", 0)
        print(f"{name} {build}: {result.get('failed', f'{seconds:.1f} s')}", flush=True)
    for name, result in zip(others, stock, strict=True):
        found[name]["stock"] = result
        print(f"{name} stock TVM: {result.get('failed', 'compiled')}", flush=True)
    recorder = str(build_recorder(folder)) if {"cuda", "opencl"} <= set(builds) else ""
    for name in options.networks if recorder else ():
        row = found[name]["compiled"]["opencl"]
        if row.get("right"):
            result = run_child(__name__, "record", name, folder, TVM_EDGE_OPENCL_LIBRARY=recorder)
            if "failed" not in result:
                result = run_child(__name__, "replay", name, folder)
            print(f"{name} OpenCL's kernels: {result.get('failed', result.get('kernels_us'))}")
            row["replayed"] = result
    for _ in range(options.rounds):
        for name, row in found.items():
            for build in builds:
                if row["compiled"][build].get("right"):
                    _add(row, name, build, run_child(__name__, "ours", name, build, folder))
            for precision in ("float32", "tf32") if others else ():
                result = run_child(__name__, "cudnn", name, precision, folder)
                _add(row, name, f"cuDNN {precision}", result)
            if others and "failed" not in row["stock"]:
                _add(row, name, "stock TVM", run_child(__name__, "stock", name, folder))
    return found


def _add(row: dict[str, Any], name: str, key: str, result: dict[str, Any]) -> None:
    if "failed" in result:
        print(f"{name}, {key}: {result['failed']}", flush=True)
        return
    if not result.get("error", 0) <= _PEERS_ERROR:
        print(f"{name}, {key}: wrong by {result['error']:.1e}, not counted", flush=True)
        return
    print(f"{name}, {key}: {result['us']:,.1f} µs", flush=True)
    row["us"].setdefault(key, []).append(result["us"])
    for kind in ("kernels_us", "events_us"):
        if kind in result:
            row["compiled"][key] |= {"kernels": result["kernels"]}
            row["compiled"][key].setdefault(kind, []).append(result[kind])


def _lines(found: dict[str, Any]) -> list[str]:
    """Tables and bars."""
    lines = [
        "| network | right | compile, s | CUDA, µs | its kernels | OpenCL, µs | its kernels "
        "| tf32, µs | its kernels | cuDNN, µs | cuDNN tf32 | stock TVM | cuDNN / CUDA "
        "| cuDNN tf32 / CUDA | cuDNN / OpenCL | OpenCL / CUDA, kernels | tf32: cuDNN / CUDA |",
        "|---" * 17 + "|",
    ]
    ratios: dict[str, list[float]] = {}
    for name, row in found.items():
        compiled, us = row["compiled"], row["us"]
        middle = {key: median(values) for key, values in us.items()}
        sums = {t: min(c.get("kernels_us", [0])) for t, c in compiled.items()}
        if "opencl" in compiled:
            sums["opencl"] = compiled["opencl"].get("replayed", {}).get("kernels_us", 0)
        right = {t: c.get("right", False) for t, c in compiled.items()}

        def ratio(a: float | None, b: float | None, key: str) -> str:
            if not a or not b:
                return "–"
            ratios.setdefault(key, []).append(a / b)
            return f"**{a / b:.2f}**"

        lines.append(
            f"| {name} | {'yes' if all(right.values()) else right} | "
            + "/".join(f"{c.get('compile_seconds', 0):.0f}" for c in compiled.values())
            + " | "
            + " | ".join(
                f"{spread(us[t], ',.0f')} | {sums[t]:,.0f}" if t in us else "– | –" for t in _BUILDS
            )
            + " | "
            + " | ".join(
                spread(us.get(k, []), ",.0f") for k in ("cuDNN float32", "cuDNN tf32", "stock TVM")
            )
            + " | "
            + " | ".join(
                (
                    ratio(middle.get("cuDNN float32"), middle.get("cuda"), "cuDNN / CUDA"),
                    ratio(middle.get("cuDNN tf32"), middle.get("cuda"), "cuDNN tf32 / CUDA"),
                    ratio(middle.get("cuDNN float32"), middle.get("opencl"), "cuDNN / OpenCL"),
                    ratio(sums.get("opencl"), sums.get("cuda"), "OpenCL / CUDA, kernels"),
                    ratio(middle.get("cuDNN tf32"), middle.get("tf32"), "tf32: cuDNN / CUDA"),
                )
            )
            + " |"
        )
    lines.append("")
    for key, values in ratios.items():
        lines.append(
            f"- {key}: geometric mean **{geometric_mean(values):.2f}**, least {min(values):.2f}"
        )
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("gpu", __doc__)
    parser.shared(networks=Among(NETWORKS, (*NETWORKS, *ALSO)), rounds=3, jobs=2, json=None)
    parser.add_argument("--builds", nargs="+", choices=_BUILDS)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(options, Path(folder))
    machine = describe_machine()
    print(json.dumps(machine))
    print("\n".join(_lines(found)))
    save_json(options.json, {"machine": machine, "networks": found})
