"""Networks of the zoo, reduced for ``make test`` and at full size for ``make test-full``."""

from __future__ import annotations

from collections.abc import Collection

import onnx
import pytest
from onnx import numpy_helper

from tests.zoo.networks import HUGE
from tvm_edge import zoo

TOLERANCE = 1e-4  # of each tensor's largest value, as DESIGN says
REDUCED = {
    "resnet50_v1": {"image_size": 64, "width": 0.25},
    "resnet50_v2": {"image_size": 64, "width": 0.25},
    "mobilenet_v2": {"image_size": 64, "width": 0.5},
    "squeezenet1_0": {"image_size": 64, "width": 0.5},
    "mobilenet_v1": {"image_size": 64, "width": 0.5},
    "inception_v3": {"image_size": 75, "width": 0.25},
    "densenet121": {"image_size": 64, "width": 0.25},
    "vgg16": {"image_size": 64, "width": 0.25},
    "shufflenet_v2": {"image_size": 64, "width": 0.5},
    "googlenet": {"image_size": 64, "width": 0.5},
    "deeplab_v3": {"image_size": 64, "width": 0.5},
    "yolov1": {"image_size": 256, "width": 0.25},
    "yolov1_large": {"image_size": 256, "width": 0.25},
    "yolov1_medium": {"image_size": 256, "width": 0.25},
    "yolov1_small": {"image_size": 256, "width": 0.25},
    "nasnet_mobile": {"image_size": 64, "width": 0.25},
    "vgg19": {"image_size": 64, "width": 0.25},
    "ssd_mobilenet_v1": {"image_size": 128, "width": 0.5},
    "ssd_mobilenet_v1_512": {"image_size": 192, "width": 0.25},
    "ssd_resnet50_v1": {"image_size": 192, "width": 0.25},
    "yolov3": {"image_size": 128, "width": 0.125},
    "faster_rcnn_head": {"image_size": 128, "width": 0.25},
}


def networks(quick: Collection[str], huge: Collection[str] = ()) -> list[object]:
    """The `quick` networks reduced, and every one at full size for ``make test-full``.

    Huge ones are there only if in `huge`.
    """
    reduced = [
        pytest.param(name, REDUCED[name], id=f"{name}-reduced")
        for name in zoo.names()
        if name in quick
    ]
    full = [
        pytest.param(name, {}, id=name, marks=pytest.mark.full)
        for name in zoo.names()
        if name not in HUGE or name in huge
    ]
    return reduced + full


def with_intermediates(model: onnx.ModelProto, count: int) -> tuple[onnx.ModelProto, list[str]]:
    """`model` with `count` float tensors from evenly spaced depths as further outputs."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    known = {v.name: v for v in model.graph.value_info}
    inside = [
        known[node.output[0]]
        for node in model.graph.node
        if node.output[0] in known
        and node.output[0] not in outputs
        and known[node.output[0]].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        and all(d.HasField("dim_value") for d in known[node.output[0]].type.tensor_type.shape.dim)
    ]
    picked = [inside[round(i * (len(inside) - 1) / (count - 1))] for i in range(count)]
    exposed.graph.output.extend(picked)
    return exposed, [value.name for value in picked]


def score_threshold(model: onnx.ModelProto) -> float:
    """Attributes of the model's last NonMaxSuppression."""
    nms = next(n for n in reversed(model.graph.node) if n.op_type == "NonMaxSuppression")
    tensor = next(t for t in model.graph.initializer if t.name == nms.input[4])
    return float(numpy_helper.to_array(tensor).item())
