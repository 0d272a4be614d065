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

from benchmarks.gpu_workloads import LAYERS, layer_model
from benchmarks.machine import describe_machine
from benchmarks.processes import Job, is_child, run_child, serve
from benchmarks.vision_timing import machine_us, torch_us

_MODULE = "benchmarks.gpu_layers"
_COPIES = 6
_CALLS = 20  # between two events
_TOLERANCE = 1e-4  # of the largest value


# ------------------------------------------------------------------ what the child processes do


def _input(index: str) -> np.ndarray:
    shape = LAYERS[int(index)].shapes["x"]
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def _compile(index: str, target: str, folder: Path) -> dict[str, Any]:
    """Compile the model and write the artifact."""
    import tvm_edge

    built = tvm_edge.compile(layer_model(LAYERS[int(index)], _COPIES), target, fallback="none")
    built.export(folder / f"{index}.{target}.tvme")
    return {"rules": [kernel.rule for kernel in built.report.kernels]}


def _ours(index: str, target: str, folder: Path) -> dict[str, Any]:
    import onnxruntime
    import tvm

    import tvm_edge

    path, image = folder / f"{index}.{target}.tvme", _input(index)
    model = layer_model(LAYERS[int(index)], _COPIES)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    results = tvm_edge.load(path).run({"x": image})
    for name, expected in zip(names, session.run(None, {"x": image}), strict=True):
        _check(results[name], expected)
    given = {"x": tvm.runtime.tensor(image, tvm.device(target, 0))}
    return {"us": machine_us(path, target, given, _CALLS) / _COPIES}


def _cudnn(index: str, folder: Path) -> dict[str, Any]:
    del folder
    import onnxruntime
    import torch

    from benchmarks.gpu_torch import graphed, network

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    model, image = layer_model(LAYERS[int(index)], _COPIES), _input(index)
    run, data = network(model, "cuda"), torch.from_numpy(image).cuda()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with torch.inference_mode():
        for result, expected in zip(run(data), session.run(None, {"x": image}), strict=True):
            _check(result.cpu().numpy(), expected)
    return {"us": torch_us(graphed(run, data).replay, _CALLS) / _COPIES}


def _check(actual: np.ndarray, expected: np.ndarray) -> None:
    error = float(np.abs(actual - expected).max() / np.abs(expected).max())
    if not error <= _TOLERANCE:
        raise ValueError(f"the result is wrong by {error:.1e} of the largest value")


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
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[dict[str, Any]] = [{"layer": str(layer), "us": {}} for layer in LAYERS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = [(i, target) for i in range(len(LAYERS)) for target in ("cuda", "opencl")]
        with ThreadPoolExecutor(options.jobs) as pool:
            built = list(pool.map(lambda job: run_child(_MODULE, "compile", *job, folder), both))
        for (i, target), result in zip(both, built, strict=True):
            found[i][target] = result
        for _ in range(options.rounds):
            for i, row in enumerate(found):
                for key, job in (
                    ("cuda", ("ours", i, "cuda")),
                    ("opencl", ("ours", i, "opencl")),
                    ("cuDNN", ("cudnn", i)),
                ):
                    result = run_child(_MODULE, *job, folder)
                    if "failed" in result:
                        print(f"{row['layer']}, {key}: {result['failed']}", flush=True)
                    else:
                        row["us"].setdefault(key, []).append(result["us"])
    machine = describe_machine()
    print(json.dumps(machine))
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
