"""Processes of :mod:`benchmarks.vision.detection`: each holds one runtime.

Results are checked before anything is timed. Times are those of
:mod:`benchmarks.vision.sorting_peers`: ``host_us``, ``device_us``, ``event_us``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.onnx_runtime import onnxruntime_session
from benchmarks.common.processes import Job
from benchmarks.common.timing import CALLS, EVENT_ROUNDS, host_us, machine_us, torch_us
from benchmarks.vision.boxes import (
    MULTIBOX_THRESHOLD,
    POOLED,
    SAMPLES,
    STRIDE,
    Detection,
    Layer,
    Suppression,
    find_detection,
)
from benchmarks.vision.detection_models import (
    beside_the_target,
    by_order,
    compile_detection,
    load_arrays,
    prepare_detection,
)
from benchmarks.vision.detection_reference import check
from benchmarks.vision.sorting_models import path_of, words_of

__all__ = ["JOBS"]


_LEAST_RUNS, _MOST_RUNS = 5, 5000
_WARM_UP = 0.1  # seconds, at most

Result = dict[str, Any]
Timer = Callable[[Detection, float, Path], Result]


def _checked(
    workload: Detection, outputs: Mapping[str, np.ndarray], folder: Path
) -> tuple[Result, bool]:
    """Facts before the clock starts, and whether it is to be started."""
    result = check(workload, outputs, load_arrays(workload, folder))
    return result, result["right"]


def _calls(host: float, seconds: float) -> int:
    """Between two events, so that all rounds take about `seconds`."""
    return int(min(max(seconds * 1e6 / host / EVENT_ROUNDS, 2), CALLS))


# ------------------------------------------------------------------------------------------- CPU


def _time_cpu(runtime: str, name: str, threads: str, seconds: str, folder: Path) -> Result:
    """A job: time one workload, from NumPy arrays to NumPy arrays."""
    workload, limit = find_detection(name), float(seconds)
    timer = {"onnxruntime": _time_onnxruntime, "tvm-edge": _time_llvm}[runtime]
    return timer(workload, int(threads), limit, folder)


def _time_onnxruntime(workload: Detection, threads: int, seconds: float, folder: Path) -> Result:
    session = onnxruntime_session(path_of(workload.name, "onnx", folder), threads)
    names = [output.name for output in session.get_outputs()]
    inputs = workload.inputs
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    result, right = _checked(workload, outputs, folder)
    if right:
        result["host_us"] = host_us(
            lambda: session.run(names, inputs), seconds, min(_WARM_UP, seconds)
        )
    return result


def _time_llvm(workload: Detection, threads: int, seconds: float, folder: Path) -> Result:
    import tvm_edge

    model = tvm_edge.load(path_of(workload.name, "llvm.tvme", folder), num_threads=threads)
    inputs = workload.inputs
    result, right = _checked(workload, by_order(workload, model.run(inputs)), folder)
    if right:
        host = host_us(lambda: model.run(inputs), seconds, min(_WARM_UP, seconds))
        repeat = int(min(max(seconds * 1e6 / host, _LEAST_RUNS), _MOST_RUNS))
        device = model.benchmark(inputs, repeat=repeat).device.median * 1e3
        result |= {"host_us": host, "device_us": device}
    return result


# ------------------------------------------------------------------------------------------- GPU


def _time_gpu(runtime: str, seconds: str, folder: Path) -> Result:
    """A job: time the workloads that ``detections.json`` names for a runtime."""
    timers: dict[str, Timer] = {
        "cuda": lambda *args: _time_tvm_edge("cuda", *args),
        "opencl": lambda *args: _time_tvm_edge("opencl", *args),
        "torch": _time_torch,
    }
    results: dict[str, Result] = {}
    for name in json.loads((folder / "detections.json").read_text())[runtime]:
        try:
            results[name] = timers[runtime](find_detection(name), float(seconds), folder)
        except Exception as err:  # a runtime's: of any type; the other workloads go on
            results[name] = {"failed": words_of(err)}
    return {"results": results}


def _time_tvm_edge(target: str, workload: Detection, seconds: float, folder: Path) -> Result:
    """The whole model on its device, inputs and outputs too."""
    import tvm

    import tvm_edge

    device = tvm.device(target, 0)
    path = path_of(workload.name, f"{target}.tvme", folder)
    model = tvm_edge.load(path)
    inputs = {
        spec.name: tvm.runtime.tensor(workload.inputs[spec.name], device) for spec in model.inputs
    }
    result, right = _checked(workload, by_order(workload, model.run(inputs)), folder)
    if not right:
        return result

    def run() -> None:
        model.run(inputs, device_outputs=True)
        device.sync()

    result["host_us"] = host_us(run, seconds, min(_WARM_UP, seconds))
    result["beside"] = beside_the_target(model.report, target)
    if result["beside"]:
        return result
    result["event_us"] = machine_us(path, target, inputs, _calls(result["host_us"], seconds))
    return result


def _time_torch(workload: Detection, seconds: float, folder: Path) -> Result:
    """Time PyTorch as a user calls it: torchvision's reduction on the host is part of the call."""
    import torch

    tensors = {name: torch.from_numpy(array).cuda() for name, array in workload.inputs.items()}
    if isinstance(workload, Suppression):
        call, outputs = _torch_suppression(workload, tensors)
    else:
        call = _torch_layer(workload, tensors)

        def outputs() -> dict[str, np.ndarray]:
            found = call()
            if workload.operator == "multibox":
                rows, counts = (tensor.cpu().numpy() for tensor in found)
                return {"rows": rows, "counts": counts}
            turned = workload.operator == "nonzero"  # torch has a row for each
            return {"result": (found.T if turned else found).cpu().numpy()}

    result, right = _checked(workload, outputs(), folder)
    if not right:
        return result

    def run() -> None:
        call()
        torch.cuda.synchronize()

    result["host_us"] = host_us(run, seconds, min(_WARM_UP, seconds))
    result["event_us"] = torch_us(call, _calls(result["host_us"], seconds))
    return result


def _torch_suppression(
    workload: Suppression, tensors: Mapping[str, Any]
) -> tuple[Callable[[], Any], Callable[[], dict[str, np.ndarray]]]:
    """The call, and a function of its result's rows.

    Of many classes: ``batched_nms`` of the scores above the threshold. It knows no limit for a
    class; no class of the workloads comes near it.
    """
    import torchvision

    boxes, scores = tensors["boxes"][0].contiguous(), tensors["scores"][0].contiguous()
    if workload.classes == 1:
        row = scores[0].contiguous()

        def nms() -> Any:
            return torchvision.ops.nms(boxes, row, workload.iou)

        def kept_of_one() -> dict[str, np.ndarray]:
            picked = nms().cpu().numpy()
            zeros = np.zeros_like(picked)
            return {"kept": np.stack([zeros, zeros, picked], axis=1)}

        return nms, kept_of_one

    def batched() -> Any:
        kinds, candidates = (scores > workload.score).nonzero(as_tuple=True)
        picked = torchvision.ops.batched_nms(
            boxes[candidates], scores[kinds, candidates], kinds, workload.iou
        )
        return kinds[picked], candidates[picked]

    def kept_of_many() -> dict[str, np.ndarray]:
        kinds, candidates = (tensor.cpu().numpy() for tensor in batched())
        return {"kept": np.stack([np.zeros_like(kinds), kinds, candidates], axis=1)}

    return batched, kept_of_many


def _torch_layer(workload: Layer, tensors: Mapping[str, Any]) -> Callable[[], Any]:
    import torch
    import torchvision

    operator, size = workload.operator, (POOLED, POOLED)
    if operator == "decode":
        encodings, anchors = tensors["encodings"], tensors["anchors"]

        def decode() -> Any:
            sides = anchors[..., 2:]
            centre = encodings[..., :2] * 0.1 * sides + anchors[..., :2]
            half = torch.exp(encodings[..., 2:] * 0.2) * sides / 2
            return torch.cat([centre - half, centre + half], dim=-1)

        return decode
    if operator == "multibox":
        return _torch_multibox(tensors)
    data = tensors["data"]
    if operator == "roi_align":
        pictures = tensors["pictures"].to(data.dtype)[:, None]
        regions = torch.cat([pictures, tensors["regions"]], dim=1).contiguous()
        return lambda: torchvision.ops.roi_align(
            data, regions, size, 1 / STRIDE, SAMPLES, aligned=True
        )
    if operator == "roi_pool":
        return lambda: torchvision.ops.roi_pool(data, tensors["regions"], size, 1 / STRIDE)
    if operator == "resize":
        return lambda: torch.nn.functional.interpolate(
            data, scale_factor=2, mode="bilinear", align_corners=False
        )
    if operator == "grid_sample":
        return lambda: torch.nn.functional.grid_sample(
            data, tensors["grid"], mode="bilinear", padding_mode="zeros", align_corners=False
        )
    assert operator == "nonzero"
    return lambda: torch.nonzero(data)


def _torch_multibox(tensors: Mapping[str, Any]) -> Callable[[], Any]:
    """Multibox as one would write it: rows after the last are filled without their number."""
    import torch

    probabilities, anchors = tensors["probabilities"][0], tensors["anchors"][0]
    encodings = tensors["encodings"].reshape(-1, 4)
    size = anchors[:, 2:] - anchors[:, :2]
    middle = (anchors[:, 2:] + anchors[:, :2]) / 2

    def multibox() -> Any:
        score, kind = probabilities[1:].max(dim=0)
        centre = encodings[:, :2] * 0.1 * size + middle
        half = torch.exp(encodings[:, 2:] * 0.2) * size / 2
        boxes = torch.cat([centre - half, centre + half], dim=1).clamp(0, 1)
        found = torch.cat([kind[:, None].to(score.dtype), score[:, None], boxes], dim=1)
        taken = score >= MULTIBOX_THRESHOLD
        to = torch.where(taken, taken.cumsum(0) - 1, len(taken))  # the last row takes the rest
        rows = found.new_full((len(taken) + 1, 6), -1.0)
        rows[to] = torch.where(taken[:, None], found, -1.0)
        return rows[None, :-1], taken.sum(dtype=torch.int32)[None]

    return multibox


JOBS: dict[str, Job] = {
    "compile": compile_detection,
    "prepare": prepare_detection,
    "time_cpu": _time_cpu,
    "time_gpu": _time_gpu,
}
