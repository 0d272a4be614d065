"""Accuracy of the detector that ships, compiled in every way.

mAP at an IoU of 0.5 on held-out generated pictures (:mod:`tvm_edge.zoo.shapes`), ONNX Runtime's
beside ours: ``zoo:shapes_ssd`` for this machine's CPU and for each GPU here, wholly on it, with
suppression on the CPU, and in float16 where the device has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm_edge
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import Run, onnxruntime_function
from benchmarks.common.options import Parser, save_json
from tvm_edge.hardware import resolve_target
from tvm_edge.zoo import shapes
from tvm_edge.zoo.average_precision import mean_average_precision
from tvm_edge.zoo.trained import model_path

NETWORK = "shapes_ssd"

_LOWER = ("mixed", "float16", "bfloat16")
"""Precisions of a CPU."""


def accuracy(run: Run, scenes: Sequence[shapes.Scene]) -> float:
    """The mAP of what a model finds in pictures."""
    found = [run({"image": shapes.network_input(scene)}) for scene in scenes]
    return mean_average_precision(
        [(each["boxes"], each["scores"], each["classes"]) for each in found],
        [(scene.boxes, scene.classes) for scene in scenes],
    )


def _ways() -> list[tuple[str, str, dict[str, Any]]]:
    """Ways to compile: a name, a target and options."""
    ways: list[tuple[str, str, dict[str, Any]]] = [("llvm", "llvm", {})]
    if resolve_target("llvm").spec.float16_vectors:
        ways += [(f"llvm, {own}", "llvm", {"precision": own}) for own in _LOWER]
    present = {device.target for device in tvm_edge.devices()}
    for target in ("opencl", "cuda"):
        if target not in present:
            continue
        ways.append((f"{target} alone", target, {"fallback": "none"}))
        beside = {"fallback": ["NonMaxSuppression"]}
        ways.append((f"{target}, suppression on the CPU", target, beside))
        if resolve_target(target).spec.float16:
            for precision in ("mixed", "float16"):
                options = {"fallback": "none", "precision": precision}
                ways.append((f"{target} alone, {precision}", target, options))
    return ways


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("detector", __doc__)
    parser.shared(pictures=500, json=None)
    options = parser.parse_args(arguments)
    scenes = [shapes.draw(index, "held-out") for index in range(options.pictures)]
    reference = accuracy(onnxruntime_function(model_path(NETWORK)), scenes)
    rows = [{"way": "ONNX Runtime", "mAP": reference}]
    print(json.dumps(describe_machine()))
    print(f"{options.pictures} pictures\n")
    print("| | mAP@0.5 | to ONNX Runtime | placement |\n|---|---|---|---|")
    print(f"| ONNX Runtime | {reference:.4f} | – | – |", flush=True)
    for name, target, more in _ways():
        model = tvm_edge.compile(f"zoo:{NETWORK}", target, **more)
        value = accuracy(model.run, scenes)
        line = model.report.placement_line()
        print(f"| {name} | {value:.4f} | {value - reference:+.4f} | {line} |", flush=True)
        rows.append({"way": name, "mAP": value, "placement": line})
    save_json(options.json, {"machine": describe_machine(), "rows": rows})
