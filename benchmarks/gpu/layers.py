"""Convolution layers on a GPU beside cuDNN.

One row per layer of :data:`benchmarks.gpu.workloads.LAYERS`, with its bias and ReLU. A model has
six copies of the layer, each with filters of its own, that read one image: a sixth of its time,
recorded as a CUDA graph, is the layer's, its launches among others and its filters not in a cache
that is smaller than six of them. ``cuDNN`` is PyTorch with the same nodes, algorithms chosen by
measurement, tf32 off, in a CUDA graph. Outputs are compared with ONNX Runtime's before.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Parser, chosen_numbers, save_json
from benchmarks.common.processes import Job, run_child
from benchmarks.common.text import spread
from benchmarks.common.timing import machine_us, torch_us
from benchmarks.gpu.workloads import LAYERS, Layer, layer_model

_COPIES = 6
_CALLS = 20  # between two events
_TOLERANCE = 1e-4  # of the largest value


# ------------------------------------------------------------------ what the child processes do


def _input(layer: Layer) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(layer.shapes["x"]).astype("float32")


def _expected(layer: Layer) -> Mapping[str, np.ndarray]:
    return onnxruntime_function(layer_model(layer, _COPIES))({"x": _input(layer)})


def _check(actual: np.ndarray, expected: np.ndarray) -> None:
    error = relative_error(actual, expected)
    if not error <= _TOLERANCE:
        raise ValueError(f"the result is wrong by {error:.1e} of the largest value")


def _compile(index: str, target: str, folder: Path) -> dict[str, Any]:
    """Compile the model, write the artifact, compare its results with ONNX Runtime's."""
    import tvm_edge

    layer = LAYERS[int(index)]
    built = tvm_edge.compile(
        layer_model(layer, _COPIES),
        target,
        fallback="none",
        parallel_fusion=False,
        tuning_logs=False,
    )
    built.export(folder / f"{index}.{target}.tvme")
    results = built.run({"x": _input(layer)})
    for name, expected in _expected(layer).items():
        _check(results[name], expected)
    return {"rules": [kernel.rule for kernel in built.report.kernels]}


def _ours(target: str, folder: Path) -> dict[str, Any]:
    """Microseconds of each layer that was compiled, by its number."""
    import tvm

    device, times = tvm.device(target, 0), {}
    for i, layer in enumerate(LAYERS):
        path = folder / f"{i}.{target}.tvme"
        if path.exists():
            given = {"x": tvm.runtime.tensor(_input(layer), device)}
            times[str(i)] = machine_us(path, target, given, _CALLS) / _COPIES
    return times


def _cudnn(*given: Any) -> dict[str, Any]:
    """Time PyTorch's cuDNN kernels for the layers of these numbers."""
    *numbers, _ = given
    import torch

    from benchmarks.gpu.pytorch import graphed, network

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    times = {}
    for i, layer in ((int(n), LAYERS[int(n)]) for n in numbers):
        run = network(layer_model(layer, _COPIES), "cuda")
        data = torch.from_numpy(_input(layer)).cuda()
        with torch.inference_mode():
            results = run(data)
        for result, expected in zip(results, _expected(layer).values(), strict=True):
            _check(result.cpu().numpy(), expected)
        times[str(i)] = torch_us(graphed(run, data).replay, _CALLS) / _COPIES
    return times


JOBS: dict[str, Job] = {"compile": _compile, "ours": _ours, "cudnn": _cudnn}


# ----------------------------------------------------------------------------------- the parent


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("gpu_layers", __doc__)
    parser.shared(layers=None, rounds=3, jobs=2, json=None)
    options = parser.parse_args(arguments)
    numbers = chosen_numbers(parser, "--layers", options.layers, len(LAYERS))
    found: list[dict[str, Any]] = [{"layer": str(layer), "us": {}} for layer in LAYERS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = [(i, target) for i in numbers for target in ("cuda", "opencl")]
        with ThreadPoolExecutor(options.jobs) as pool:
            built = list(pool.map(lambda job: run_child(__name__, "compile", *job, folder), both))
        for (i, target), result in zip(both, built, strict=True):
            found[i][target] = result
            if "failed" in result:
                print(f"{LAYERS[i]}, {target}: {result['failed']}", flush=True)
        for _ in range(options.rounds):
            for key, job in (
                ("cuda", ("ours", "cuda")),
                ("opencl", ("ours", "opencl")),
                ("cuDNN", ("cudnn", *map(str, numbers))),
            ):
                result = run_child(__name__, *job, folder)
                if "failed" in result:
                    print(f"{key}: {result['failed']}", flush=True)
                    continue
                for i, us in result.items():
                    found[int(i)]["us"].setdefault(key, []).append(us)
    machine = describe_machine()
    print(json.dumps(machine))
    found = [found[i] for i in numbers]
    print("\n".join(_lines(found)))
    save_json(options.json, {"machine": machine, "layers": found})


def _lines(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| layer | rules | CUDA, µs | OpenCL, µs | cuDNN, µs | cuDNN / CUDA | cuDNN / OpenCL |",
        "|---" * 7 + "|",
    ]
    ratios: dict[str, list[float]] = {"cuda": [], "opencl": []}
    for row in found:
        middle = {key: median(values) for key, values in row["us"].items()}
        cells = []
        for target, values in ratios.items():
            if target in middle and "cuDNN" in middle:
                values.append(middle["cuDNN"] / middle[target])
                cells.append(f"**{values[-1]:.2f}**")
            else:
                cells.append("–")
        rules = " + ".join(dict.fromkeys(row["cuda"].get("rules", ["failed"])))
        times = [spread(row["us"].get(key, []), ".1f") for key in ("cuda", "opencl", "cuDNN")]
        lines.append("| " + " | ".join([row["layer"], rules, *times, *cells]) + " |")
    lines.append("")
    for target, values in ratios.items():
        if values:
            mean = geometric_mean(values)
            lines.append(
                f"- cuDNN / {target}: geometric mean **{mean:.2f}**, least {min(values):.2f}"
            )
    return lines
