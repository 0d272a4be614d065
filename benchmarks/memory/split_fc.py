"""Cost of reading the weights of dense layers in every run.

The fully connected layers of YOLOv1 and of VGG, each network in one piece and with a window of a
quarter of its weights, from the artifact, on TVM's runtime tier.

* **Cached**: the file is in the system's cache. Processes take turns; each times runs for some
  seconds. The bar of issue H is 1.3 times what one piece takes.
* **Cold**: before each run the pages are forgotten, and the same bytes are then read with plain
  reads, cold as well. The bar is 90 % of that rate.

Checks results against ONNX Runtime before anything is timed. Writes artifacts of twice the weights
to a folder of the disk (``--folder``), and needs some times that in memory to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Among, Parser
from benchmarks.common.process_memory import status_bytes
from benchmarks.common.processes import Job, run_child
from benchmarks.common.timing import timed_runs

NETWORKS = {
    "yolov1": (50176, 4096, 1470),
    "vgg": (25088, 4096, 4096, 1000),
    "small": (4096, 2048, 1000),
}
_TOLERANCE = 1e-4
_BLOCK = 8 << 20


def write(name: str, target: str, threads: str, parts: str, folder: Path) -> dict[str, Any]:
    """A job: write the network's artifacts, an input, and what ONNX Runtime makes of it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from tvm_edge.compiler.driver import compile_with

    random = np.random.default_rng(0)
    sizes = NETWORKS[name]
    nodes, weights, value = [], [], "x"
    for i, shape in enumerate(pairwise(sizes)):
        # Activations stay of one size, whatever is added up.
        array = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
        weights += [
            numpy_helper.from_array(array, f"w{i}"),
            numpy_helper.from_array(random.standard_normal(shape[1], np.float32), f"b{i}"),
        ]
        last = i == len(sizes) - 2
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"s{i}"], name=f"fc{i}"))
        value = f"s{i}"
        if not last:
            nodes.append(helper.make_node("LeakyRelu", [value], [f"t{i}"], alpha=0.1))
            value = f"t{i}"
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, sizes[0]))],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, (1, sizes[-1]))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{name}.onnx"
    onnx.save(model, path, save_as_external_data=True, location=f"{name}.weights")
    nbytes = sum(4 * a * b for a, b in pairwise(sizes))
    x = random.standard_normal((1, sizes[0])).astype("float32")
    (expected,) = onnxruntime_function(path)({"x": x}).values()
    np.savez(folder / f"{name}.npz", x=x, expected=expected, output=value)
    found = {}
    for way, window in (("whole", None), ("split", nbytes // int(parts))):
        start = perf_counter()
        compiled = compile_with(
            str(path), target, {}, fallback="none", weight_window=window, num_threads=int(threads)
        )
        compiled.export(folder / f"{name}.{way}.tvme")
        found[way] = {
            "compile_seconds": round(perf_counter() - start, 1),
            "splits": [split.line() for split in compiled.report.splits],
        }
    return {"weights_mib": round(nbytes / 2**20, 1), **found}


def cached(name: str, way: str, threads: str, seconds: str, folder: Path) -> dict[str, Any]:
    """A job: milliseconds of runs whose weights are in the system's cache, and memory."""
    model, values = _loaded(name, way, threads, folder)
    model.warmup()
    samples = timed_runs(lambda: model.run(values), float(seconds))
    return {"ms": 1e3 * median(samples), "runs": len(samples), **_memory()}


def cold(name: str, way: str, threads: str, rounds: str, folder: Path) -> dict[str, Any]:
    """A job: GB/s of runs whose weights have to be read from disk, and of plain reads."""
    model, values = _loaded(name, way, threads, folder)
    path = folder / f"{name}.{way}.tvme"
    nbytes = sum(weight.nbytes for weight in map(np.from_dlpack, model._weights))
    runs, reads = [], []
    for _ in range(int(rounds)):
        _forget(model, path)
        start = perf_counter()
        model.run(values)
        runs.append(nbytes / (perf_counter() - start) / 1e9)
        _forget(model, path)
        start = perf_counter()
        _read(path)
        reads.append(path.stat().st_size / (perf_counter() - start) / 1e9)
    return {"run_gb_s": median(runs), "read_gb_s": median(reads), **_memory()}


def _loaded(name: str, way: str, threads: str, folder: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The model, whose result on its input is right, and the input."""
    import tvm_edge

    saved = np.load(folder / f"{name}.npz")
    model = tvm_edge.load(folder / f"{name}.{way}.tvme", num_threads=int(threads))
    values, expected = {"x": saved["x"]}, saved["expected"]
    found = model.run(values)[str(saved["output"])]
    error = relative_error(found, expected)
    if not error < _TOLERANCE:
        raise SystemExit(f"{name}, {way}: the result is off by {error:.1e} of the largest value")
    return model, values


def _memory() -> dict[str, float]:
    sizes, names = status_bytes(), {"anonymous_mib": "RssAnon", "file_mib": "RssFile"}
    return {key: round(sizes[name] / 2**20, 1) for key, name in names.items()}


def _forget(model: Any, path: Path) -> None:
    """Have the system drop the pages of a file, which it keeps while they are mapped."""
    for index in range(len(model._weights)):
        model._artifact.native["release"](index)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> None:
    buffer = bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            continue


def _measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    tier = {"TVM_USE_RUNTIME_LIB": "1"}
    threads = options.threads
    result = run_child(__name__, "write", name, options.target, threads, options.parts, folder)
    if "failed" in result:
        return result
    ways: dict[str, list[Any]] = {"whole": [], "split": []}
    for _ in range(options.rounds):
        for way, found in ways.items():
            job = ("cached", name, way, threads, options.seconds, folder)
            found.append(run_child(__name__, *job, **tier))
    failed = [each["failed"] for found in ways.values() for each in found if "failed" in each]
    if failed:
        return {**result, "failed": failed[0]}
    times = {way: median(each["ms"] for each in found) for way, found in ways.items()}
    disk = {
        way: run_child(__name__, "cold", name, way, threads, options.rounds, folder, **tier)
        for way in ways
    }
    return {
        **result,
        "cached_ms": {way: round(ms, 2) for way, ms in times.items()},
        "cached_spread_ms": {
            way: [round(ends([each["ms"] for each in found]), 2) for ends in (min, max)]
            for way, found in ways.items()
        },
        "cached_ratio": round(times["split"] / times["whole"], 3),
        "memory": {
            way: {key: found[-1][key] for key in ("anonymous_mib", "file_mib")}
            for way, found in ways.items()
        },
        "cold": disk,
        "cold_of_read": {
            way: round(each["run_gb_s"] / each["read_gb_s"], 3)
            for way, each in disk.items()
            if "failed" not in each
        },
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("split_fc", __doc__)
    parser.shared(networks=Among(("yolov1", "vgg"), tuple(NETWORKS)), target="llvm")
    parser.shared(threads=os.cpu_count(), rounds=5, seconds=3.0)
    parser.add_argument("--parts", type=int, default=4, help="the window's share of the weights")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: TMPDIR)")
    options = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.networks:
            found[name] = _measure(name, options, Path(folder))
            for file in Path(folder).iterdir():
                file.unlink()
    bars = {"cached_ratio": 1.3, "cold_of_read": 0.9}
    print(json.dumps({"machine": describe_machine(), "networks": found, "bars": bars}, indent=2))


JOBS: dict[str, Job] = {"write": write, "cached": cached, "cold": cold}
