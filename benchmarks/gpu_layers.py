"""Convolution layers on a GPU against cuDNN: ``python -m benchmarks.gpu_layers``.

One row per layer of :data:`benchmarks.gpu_workloads.LAYERS`, with its bias and ReLU. A model has
six copies of the layer, each with filters of its own, that read one image: a sixth of its time,
recorded as a CUDA graph, is the layer's, its launches among others and its filters not in a cache
that is smaller than six of them. ``cuDNN`` is PyTorch with the same nodes, algorithms chosen by
measurement, tf32 off, in a CUDA graph. Outputs are compared with ONNX Runtime's before.

``--rounds``, ``--jobs`` and ``--json`` as in :mod:`benchmarks.gpu`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from benchmarks.chosen import chosen_numbers
from benchmarks.gpu_workloads import LAYERS, Layer, layer_model
from benchmarks.machine import describe_machine
from benchmarks.processes import Job, is_child, run_child, serve
from benchmarks.vision_timing import machine_us, torch_us

_MODULE = "benchmarks.gpu_layers"
_COPIES = 6
_CALLS = 20  # between two events
_TOLERANCE = 1e-4  # of the largest value


# ------------------------------------------------------------------ what the child processes do


def _input(layer: Layer) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(layer.shapes["x"]).astype("float32")


def _expected(layer: Layer) -> dict[str, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(layer_model(layer, _COPIES).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": _input(layer)}), strict=True))


def _check(actual: np.ndarray, expected: np.ndarray) -> None:
    error = float(np.abs(actual - expected).max() / np.abs(expected).max())
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
    """The same of PyTorch's, for the layers of these numbers."""
    *numbers, _ = given
    import torch

    from benchmarks.gpu_torch import graphed, network

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


_JOBS: dict[str, Job] = {"compile": _compile, "ours": _ours, "cudnn": _cudnn}


# ----------------------------------------------------------------------------------- the parent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--layers", type=int, nargs="+", help="their numbers; default all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    numbers = chosen_numbers(parser, "--layers", options.layers, len(LAYERS))
    found: list[dict[str, Any]] = [{"layer": str(layer), "us": {}} for layer in LAYERS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = [(i, target) for i in numbers for target in ("cuda", "opencl")]
        with ThreadPoolExecutor(options.jobs) as pool:
            built = list(pool.map(lambda job: run_child(_MODULE, "compile", *job, folder), both))
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
                result = run_child(_MODULE, *job, folder)
                if "failed" in result:
                    print(f"{key}: {result['failed']}", flush=True)
                    continue
                for i, us in result.items():
                    found[int(i)]["us"].setdefault(key, []).append(us)
    machine = describe_machine()
    print(json.dumps(machine))
    found = [found[i] for i in numbers]
    print("\n".join(_lines(found)))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, "layers": found}))


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
        times = [
            f"{middle[key]:.1f} [{min(row['us'][key]):.1f}–{max(row['us'][key]):.1f}]"
            if key in middle
            else "–"
            for key in ("cuda", "opencl", "cuDNN")
        ]
        lines.append("| " + " | ".join([row["layer"], rules, *times, *cells]) + " |")
    lines.append("")
    for target, values in ratios.items():
        if values:
            mean = geometric_mean(values)
            lines.append(
                f"- cuDNN / {target}: geometric mean **{mean:.2f}**, least {min(values):.2f}"
            )
    return lines


if __name__ == "__main__":
    if is_child():
        serve(_JOBS)
    else:
        main()
