"""ONNX models and Relax modules of one operator of detection."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

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
from benchmarks.vision.detection_reference import expected_outputs
from benchmarks.vision.sorting_models import path_of

__all__ = [
    "beside_the_target",
    "by_order",
    "compile_detection",
    "load_arrays",
    "prepare_detection",
]

_COMPILE_SECONDS = 120  # after which the process is ended, by signal 14
_OPSET = 16

_COMPOSITES = frozenset({"decode", "multibox"})
"""Operators that tvm-edge gets as a Relax module with one of its own."""

Result = dict[str, Any]


def load_arrays(workload: Detection, folder: Path) -> dict[str, np.ndarray]:
    """The expected outputs that `prepare_detection` wrote."""
    return dict(np.load(path_of(workload.name, "expected.npz", folder)))


def prepare_detection(name: str, folder: Path) -> Result:
    """A job: write the ONNX model and the expected outputs."""
    import onnx

    workload = find_detection(name)
    if isinstance(workload, Suppression):
        onnx.save(_suppression(workload), path_of(workload.name, "onnx", folder))
    elif workload.operator != "multibox":  # which ONNX has not
        onnx.save(_layer(workload), path_of(workload.name, "onnx", folder))
    expected = expected_outputs(workload)
    np.savez(path_of(workload.name, "expected.npz", folder), **expected)
    return {"shapes": [list(array.shape) for array in expected.values()]}


def _suppression(workload: Suppression) -> Any:
    shapes = {name: array.shape for name, array in workload.inputs.items()}
    limits = (workload.limit, workload.iou, workload.score)
    return _suppression_model(shapes["boxes"], shapes["scores"], *limits)


def _suppression_model(
    boxes: tuple[int, ...],
    scores: tuple[int, ...],
    most: int,
    iou: float,
    score: float | None,
) -> Any:
    """One NonMaxSuppression of inputs ``boxes`` and ``scores``, with their shapes."""
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "most": np.array([most], "int64"),
        "iou": np.array([iou], "float32"),
        **({} if score is None else {"score": np.array([score], "float32")}),
    }
    return _model(
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", *constants], ["selected"])],
        {"boxes": (boxes, TensorProto.FLOAT), "scores": (scores, TensorProto.FLOAT)},
        {"selected": (("rows", 3), TensorProto.INT64)},
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )


def _layer(workload: Layer) -> Any:
    from onnx import helper

    nodes, constants = _layer_nodes(workload)
    types = {"f": helper.np_dtype_to_tensor_dtype(np.dtype("float32"))}
    types["i"] = helper.np_dtype_to_tensor_dtype(np.dtype("int64"))
    inputs = {name: (a.shape, types[a.dtype.kind]) for name, a in workload.inputs.items()}
    shape = {
        "roi_align": (*workload.size[:2], POOLED, POOLED),
        "roi_pool": (*workload.size[:2], POOLED, POOLED),
        "resize": (1, *workload.size[:1], *(2 * dim for dim in workload.size[1:])),
        "grid_sample": (1, *workload.size),
        "nonzero": (1, "found"),
        "decode": (1, *workload.size, 4),
    }[workload.operator]
    kind = types["i" if workload.operator == "nonzero" else "f"]
    return _model(nodes, inputs, {"result": (shape, kind)}, constants)


def _layer_nodes(workload: Layer) -> tuple[list[Any], list[Any]]:
    """Nodes and constants."""
    from onnx import helper, numpy_helper

    def constant(name: str, value: Any, dtype: str = "float32") -> Any:
        return numpy_helper.from_array(np.array(value, dtype), name)

    node = helper.make_node
    operator, result = workload.operator, ["result"]
    if operator == "roi_align":
        how: dict[str, Any] = {
            "output_height": POOLED,
            "output_width": POOLED,
            "sampling_ratio": SAMPLES,
            "spatial_scale": 1 / STRIDE,
            "coordinate_transformation_mode": "half_pixel",
        }
        return [node("RoiAlign", ["data", "regions", "pictures"], result, **how)], []
    if operator == "roi_pool":
        how = {"pooled_shape": [POOLED, POOLED], "spatial_scale": 1 / STRIDE}
        return [node("MaxRoiPool", ["data", "regions"], result, **how)], []
    if operator == "resize":
        inputs = ["data", "", "scales"]
        made = [node("Resize", inputs, result, mode="linear")]
        return made, [constant("scales", [1, 1, 2, 2])]
    if operator == "grid_sample":
        return [node("GridSample", ["data", "grid"], result)], []
    if operator == "nonzero":
        return [node("NonZero", ["data"], result)], []
    constants = [
        constant("halves", [2, 2], "int64"),
        constant("tenth", 0.1),
        constant("fifth", 0.2),
        constant("two", 2),
    ]
    nodes = [
        node("Split", ["encodings", "halves"], ["shift", "growth"], axis=2),
        node("Split", ["anchors", "halves"], ["centre", "size"], axis=2),
        node("Mul", ["shift", "tenth"], ["shift_scaled"]),
        node("Mul", ["shift_scaled", "size"], ["moved"]),
        node("Add", ["moved", "centre"], ["at"]),
        node("Mul", ["growth", "fifth"], ["growth_scaled"]),
        node("Exp", ["growth_scaled"], ["factor"]),
        node("Mul", ["factor", "size"], ["whole"]),
        node("Div", ["whole", "two"], ["half"]),
        node("Sub", ["at", "half"], ["low"]),
        node("Add", ["at", "half"], ["high"]),
        node("Concat", ["low", "high"], result, axis=2),
    ]
    return nodes, constants


def _model(
    nodes: list[Any],
    inputs: Mapping[str, tuple[tuple[Any, ...], int]],
    outputs: Mapping[str, tuple[tuple[Any, ...], int]],
    constants: list[Any],
) -> Any:
    from onnx import helper

    def infos(types: Mapping[str, tuple[tuple[Any, ...], int]]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (shape, kind) in types.items()
        ]

    graph = helper.make_graph(nodes, "one_operator", infos(inputs), infos(outputs), constants)
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def compile_detection(target: str, name: str, folder: Path) -> Result:
    """A job: compile a workload's model with tvm-edge."""
    import tvm_edge

    signal.alarm(_COMPILE_SECONDS)
    workload = find_detection(name)
    composite = workload.operator in _COMPOSITES
    source = _relax_module(workload) if composite else path_of(workload.name, "onnx", folder)
    start = perf_counter()
    # Not by cost, which leaves everything to the CPU where it is the OpenCL device.
    model = tvm_edge.compile(source, target, fallback="list")
    seconds = perf_counter() - start
    model.export(path_of(workload.name, f"{target}.tvme", folder))
    return {
        "compile_seconds": seconds,
        "kernels": len(model.report.kernels),
        "beside": beside_the_target(model.report, target),
    }


def _relax_module(workload: Detection) -> Any:
    """One call of a composite operator."""
    from tvm import relax

    from tvm_edge import ops

    types = {name: relax.TensorType(a.shape, str(a.dtype)) for name, a in workload.inputs.items()}
    params = [relax.Var(name, ty) for name, ty in types.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            if workload.operator == "decode":
                call = ops.ssd_decode(*params)
            else:
                call = ops.multibox_transform_loc(*params, threshold=MULTIBOX_THRESHOLD)
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    return builder.get()


def by_order(workload: Detection, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """tvm-edge's outputs by the names of the expected ones: Relax has none."""
    if workload.operator not in _COMPOSITES:
        return dict(outputs)
    names = ("rows", "counts") if workload.operator == "multibox" else ("result",)
    return dict(zip(names, outputs.values(), strict=True))


def beside_the_target(report: Any, target: str) -> list[str]:
    """Types of the operators that run on another device, which is the CPU."""
    return sorted(
        {p.op_type for p in report.placements if p.device and not p.device.startswith(target)}
    )
