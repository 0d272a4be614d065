"""Accuracy of the detector that ships, compiled in every way: ``python -m benchmarks.detector``.

mAP at an IoU of 0.5 on held-out generated pictures (:mod:`tvm_edge.zoo.shapes`), ONNX Runtime's
beside ours: ``zoo:shapes_ssd`` for this machine's CPU and for each GPU here, wholly on it, with
suppression on the CPU, and in float16 where the GPU has it. ``--pictures N`` (500),
``--json FILE``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import tvm_edge
from benchmarks.machine import describe_machine
from tvm_edge.hardware import resolve_target
from tvm_edge.zoo import shapes
from tvm_edge.zoo.average_precision import mean_average_precision
from tvm_edge.zoo.trained import model_path

NETWORK = "shapes_ssd"

Run = Callable[[dict[str, np.ndarray]], dict[str, Any]]


def accuracy(run: Run, scenes: Sequence[shapes.Scene]) -> float:
    """The mAP of what a model finds in pictures."""
    found = [run({"image": shapes.network_input(scene)}) for scene in scenes]
    return mean_average_precision(
        [(each["boxes"], each["scores"], each["classes"]) for each in found],
        [(scene.boxes, scene.classes) for scene in scenes],
    )


def _ways() -> list[tuple[str, str, dict[str, Any]]]:
    """What is compiled: a name, a target and options."""
    ways: list[tuple[str, str, dict[str, Any]]] = [("llvm", "llvm", {})]
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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detector",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scenes = [shapes.draw(index, "held-out") for index in range(options.pictures)]
    session = onnxruntime.InferenceSession(model_path(NETWORK), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    reference = accuracy(
        lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)), scenes
    )
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
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": describe_machine(), "rows": rows}))


if __name__ == "__main__":
    main()
