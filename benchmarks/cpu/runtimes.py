"""Runtimes on the same CPU, set up alike: tvm-edge, ONNX Runtime, OpenVINO, ncnn, MNN.

All with the same number of threads, and in float32 but for the names of :data:`LOW`, each for the
shortest time of one picture: ONNX Runtime with all its graph optimisations, OpenVINO with one
stream and its latency hint. tvm-edge runs an exported artifact on TVM's runtime tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.onnx_runtime import Run, onnxruntime_function
from benchmarks.cpu.converted_peers import CONVERTED, LOW_CONVERTED

__all__ = [
    "ENVIRONMENT",
    "LOW",
    "RUNTIMES",
    "compile_network",
    "load_runtime",
    "openvino_model",
    "tvm_edge_model",
]

RUNTIMES = ("tvm-edge", "onnxruntime", "openvino")
"""Those that read ONNX files."""

LOW = ("openvino-f16", "openvino-bf16", *LOW_CONVERTED)
"""Runtimes in a lower precision: OpenVINO's hint, ncnn's float16, MNN's ``low``."""

ENVIRONMENT: Mapping[str, Mapping[str, str]] = {"tvm-edge": {"TVM_USE_RUNTIME_LIB": "1"}}
"""Environment of a process that runs a runtime."""


def compile_network(
    name: str, mode: str, target: str, threads: str, precision: str, folder: Path
) -> dict[str, Any]:
    """A job: compile the network with tvm-edge for so many threads and write the artifact.

    In the mode ``records`` with the tuning records that ship; in the mode ``measured`` it is tuned
    before, at the level ``fast``, with all cores.
    """
    import tvm_edge

    path = folder / f"{name}.onnx"
    start = perf_counter()
    # Not the user's own, which may have anything.
    records = folder / "records"
    records.mkdir()
    if mode == "measured":
        tvm_edge.tune(str(path), target, level="fast", tuning_logs=records)
    measured = perf_counter()
    model = tvm_edge.compile(
        path,
        target,
        num_threads=int(threads),
        precision=precision,
        tuning_logs=False if mode == "heuristic" else records,
    )
    seconds = perf_counter() - measured
    model.export(folder / f"{name}.tvme")
    return {
        "compile_seconds": seconds,
        "search_seconds": measured - start,
        "convolutions": model.report.records.tuned if model.report.records else 0,
        "kernels": len(model.report.kernels),
        "weights": model.report.memory.weights if model.report.memory else 0,
        "precision": model.report.precision.line() if model.report.precision else precision,
    }


def load_runtime(runtime: str, name: str, folder: Path, threads: int) -> Run:
    """A function that runs the network once, from NumPy arrays to NumPy arrays."""
    if runtime == "tvm-edge":
        run: Run = tvm_edge_model(name, folder, threads).run
        return run
    if runtime == "onnxruntime":
        return onnxruntime_function(folder / f"{name}.onnx", threads)
    if runtime in CONVERTED:
        return CONVERTED[runtime](name, threads, folder)
    model = openvino_model(name, folder, threads, hint=runtime.partition("-")[2] or "f32")
    tensors = {output.get_any_name(): output for output in model.outputs}

    def run_openvino(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = model(inputs, share_inputs=True)
        return {name: results[tensor] for name, tensor in tensors.items()}

    return run_openvino


def tvm_edge_model(name: str, folder: Path, threads: int) -> Any:
    """The artifact that `compile_network` wrote, loaded."""
    import tvm_edge

    return tvm_edge.load(folder / f"{name}.tvme", num_threads=threads)


def openvino_model(
    name: str, folder: Path, threads: int, *, profile: bool = False, hint: str = "f32"
) -> Any:
    """A compiled model in a precision, with its counters on if `profile`."""
    import openvino

    return openvino.Core().compile_model(
        folder / f"{name}.onnx",
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": hint,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERF_COUNT": profile,
        },
    )
