"""Naive kernels, what processes of :mod:`benchmarks.vision_detection` do with them.

ICPP'19's "before": :mod:`benchmarks.vision_naive` in the place of ours, by themselves and in whole
networks. Everything else of a model is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vision_boxes import find_detection
from benchmarks.vision_detection_models import beside_the_target, load_arrays
from benchmarks.vision_expected import check
from benchmarks.vision_models import build_kernel, compile_workload, path_of, words_of
from benchmarks.vision_peers import time_kernel
from benchmarks.vision_timing import evaluate, host_us, machine_us
from benchmarks.vision_workloads import Workload, find_workload

__all__ = [
    "NAIVE_SUPPRESSIONS",
    "NETWORKS",
    "SORTING",
    "compile_naive",
    "compile_network",
    "time_naive",
    "time_network",
]

SORTING = (
    "argsort 80×8732",
    "segmented_argsort geometric 10000",
    "cumsum 1×8732",
    "cumsum 80×8732",
)
"""Workloads of the first part that have a naive kernel; rows are sorted as segments."""

NAIVE_SUPPRESSIONS = ("class_nms", "nms clustered 1000", "nms clustered 200")
"""Beginnings of the names of detections that have one: where it takes no seconds."""

NETWORKS = ("ssd_mobilenet_v1", "ssd_resnet50_v1", "yolov3")
"""Of Table 4, by their names in the zoo."""

_KERNEL_ROUNDS = 3
_WARM_UP = 0.1  # seconds

Result = dict[str, Any]


def _compile_naively(source: Any, target: str, fallback: str = "list") -> Any:
    """Compile a model with the naive suppression, as this process then does with all that follow.

    Raises
    ------
    RuntimeError
        The compiler did not take it.
    """
    import tvm_edge
    from benchmarks import vision_naive
    from tvm_edge.ops.detection import nms as operator

    taken = []

    def select_boxes(batch: int, classes: int, boxes: int, spec: Any, **how: Any) -> Any:
        taken.append(spec.kind)
        return vision_naive.select_boxes(batch, classes, boxes, spec, **how)

    operator.nms.select_boxes = select_boxes
    model = tvm_edge.compile(source, target, fallback=fallback)
    if "gpu" not in taken:
        raise RuntimeError("no suppression was compiled for the GPU")
    return model


def _naive(name: str) -> str:
    """What the files of a naive workload are named by."""
    return f"naive {name}"


# ------------------------------------------------------------------------------------------ kernels


def compile_naive(target: str, name: str, folder: Path) -> Result:
    """A job: a model with the naive kernel; of a sort or scan that kernel, and ours too."""
    if name in SORTING:
        workload = find_workload(name)
        path = path_of(_naive(name), f"{target}.so", folder)
        build_kernel(_sorting_kernel(workload, target), target, path)
        if path_of(name, f"{target}.json", folder).exists():  # by the first part
            return {}
        result = compile_workload(target, name, folder)
        return {"failed": result["kernel_failed"]} if "kernel_failed" in result else {}
    model = _compile_naively(path_of(name, "onnx", folder), target)
    model.export(path_of(_naive(name), f"{target}.tvme", folder))
    return {"beside": beside_the_target(model.report, target)}


def _sorting_kernel(workload: Workload, target: str) -> Any:
    from benchmarks import vision_naive
    from tvm_edge.hardware import resolve_target

    spec = resolve_target(target).spec
    if workload.operator != "cumsum":
        segments = len(_offsets(workload)) - 1
        return vision_naive.argsort_segments(workload.elements, segments, spec)
    axis = workload.axis % len(workload.shape)
    before, after = math.prod(workload.shape[:axis]), math.prod(workload.shape[axis + 1 :])
    return vision_naive.scan_lines(before, workload.shape[axis], after, spec)


def _offsets(workload: Workload) -> np.ndarray:
    """Of the segments, or of rows as segments."""
    if workload.lengths:
        return workload.offsets
    return np.arange(0, workload.elements + 1, workload.shape[-1], dtype="int32")


def time_naive(target: str, names: str, folder: Path) -> Result:
    """A job: time naive kernels, and our sorts and scans beside them.

    Parameters
    ----------
    target : {"cuda", "opencl"}
    names : str
        Of workloads, with ``;`` between them.
    folder : Path

    Returns
    -------
    dict
        ``results``: by name ``event_us`` of a model or a sort or scan's ``kernel_us``, and
        ``own_us`` of our kernel.
    """
    results: dict[str, Result] = {}
    for name in names.split(";"):
        timer = _time_sorting if name in SORTING else _time_suppression
        try:
            results[name] = timer(target, name, folder)
        except Exception as err:  # a driver's: of any type; the others go on
            results[name] = {"failed": words_of(err)}
    return {"results": results}


def _time_suppression(target: str, name: str, folder: Path) -> Result:
    import tvm

    import tvm_edge

    workload, path = find_detection(name), path_of(_naive(name), f"{target}.tvme", folder)
    model = tvm_edge.load(path)
    result = check(workload, model.run(workload.inputs), load_arrays(workload, folder))
    if result["right"]:
        device = tvm.device(target, 0)
        inputs = {s.name: tvm.runtime.tensor(workload.inputs[s.name], device) for s in model.inputs}
        result["event_us"] = machine_us(path, target, inputs, calls=1)
    return result


def _time_sorting(target: str, name: str, folder: Path) -> Result:
    import tvm

    device, workload = tvm.device(target, 0), find_workload(name)
    scan = workload.operator == "cumsum"
    arrays = [workload.data.reshape(-1), *([] if scan else [_offsets(workload)])]
    dtypes = ["float32"] if scan else ["int32", "int32"]
    outputs = [tvm.runtime.empty((workload.elements,), dtype, device) for dtype in dtypes]
    module = tvm.runtime.load_module(str(path_of(_naive(name), f"{target}.so", folder)))
    evaluator = module.time_evaluator("kernel", device, number=1, repeat=_KERNEL_ROUNDS)
    inputs = [tvm.runtime.tensor(array, device) for array in arrays]
    result: Result = {"kernel_us": evaluate(evaluator, *inputs, *outputs)}
    found = outputs[0].numpy()
    if scan:
        checked = workload.check(values=found)
    else:
        # Of rows, positions are within the row.
        checked = workload.check(found if workload.lengths else found % workload.shape[-1])
    given = {key: tvm.runtime.tensor(array, device) for key, array in workload.inputs.items()}
    own = time_kernel(target, workload, given, folder)
    result["own_us"] = own["kernel_us"]
    result["error"] = checked["error"] + own["error"]
    result["right"] = checked["right"] and own["right"]
    return result


# ----------------------------------------------------------------------------------------- networks


def compile_network(target: str, kernels: str, name: str, folder: Path) -> Result:
    """A job: compile a network of the zoo, with `kernels` ``own`` or ``naive``."""
    import tvm_edge

    compiler = _compile_naively if kernels == "naive" else tvm_edge.compile
    model = compiler(f"zoo:{name}", target, fallback="list")
    model.export(path_of(f"{kernels} {name}", f"{target}.tvme", folder))
    return {"beside": beside_the_target(model.report, target)}


def time_network(target: str, kernels: str, name: str, seconds: str, folder: Path) -> Result:
    """A job: a network from and to the device's memory.

    The first process of a network writes its outputs, which those of all others have to equal to
    1e-4 of the largest value, indices exactly.
    """
    import tvm

    import tvm_edge
    from tvm_edge import zoo

    device = tvm.device(target, 0)
    model = tvm_edge.load(path_of(f"{kernels} {name}", f"{target}.tvme", folder))
    arrays: Mapping[str, np.ndarray] = zoo.sample_input(name)
    outputs = model.run(arrays)
    path = path_of(name, f"{target}.outputs.npz", folder)
    if not path.exists():
        np.savez(path, **outputs)
    right = all(_agree(outputs[key], wanted) for key, wanted in np.load(path).items())
    inputs = {key: tvm.runtime.tensor(array, device) for key, array in arrays.items()}

    def run() -> None:
        model.run(inputs, device_outputs=True)
        device.sync()

    host = host_us(run, float(seconds), _WARM_UP)
    rows = int(outputs["selected"].shape[0])
    return {"host_us": host, "right": right, "error": float(not right), "kept": rows}


def _agree(found: np.ndarray, wanted: np.ndarray) -> bool:
    if found.shape != wanted.shape:
        return False
    if wanted.dtype.kind != "f":
        return bool((found == wanted).all())
    return bool(np.abs(found - wanted).max() <= 1e-4 * max(np.abs(wanted).max(), 1e-30))
