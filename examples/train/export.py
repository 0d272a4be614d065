"""Write the trained network as ONNX, with decoding and suppression of boxes; and measure it.

The graph is built node by node, as those of the zoo are: it has nothing of a training framework's
in it, and batch normalisations are folded into the convolutions before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from model import ANCHOR_SIZES, LABELS, Detector, Unit, anchors
from torch import nn

from tvm_edge.zoo import shapes
from tvm_edge.zoo.average_precision import mean_average_precision
from tvm_edge.zoo.detection import Suppression, decode, probabilities, select
from tvm_edge.zoo.graph import Graph, Tensor

HELD_OUT = 500  # pictures for the mAP that a file states
# A low threshold: average precision looks at detections that a demo would not draw.
SUPPRESSION = Suppression(iou=0.45, score=0.05, per_class=20)
# The zoo's names, and those of this model: it has what a user wants and nothing else.
NAMES = {
    "data": "image",
    "boxes": "candidates/boxes",
    "scores": "candidates/scores",
    "detection_boxes": "boxes",
    "detection_scores": "scores",
    "detection_classes": "classes",
}


def export(network: Detector, path: Path, figures: Mapping[str, str]) -> None:
    """Write `network` to `path`.

    Input ``image`` float32 ``[1, 3, 128, 128]`` from 0 to 1. Outputs ``boxes`` ``[n, 4]`` (y1, x1,
    y2, x2 as fractions of the picture), ``scores`` ``[n]``, ``classes`` int64 ``[n]``. Names of the
    classes and `figures` are metadata of the file.
    """
    g = Graph("shapes_ssd", (shapes.SIZE, shapes.SIZE), batch=1, width=1.0, seed=0)
    x = g.data.detach()
    labels, encodings = [], []
    for index, sizes in enumerate(ANCHOR_SIZES):
        for unit in network.stages[index]:
            x = _unit(x, unit)
        neck = _unit(x, network.necks[index])
        with g.scope(f"head{index}"):
            labels.append(_predict(neck, network.labels[index], len(sizes), LABELS, "class"))
            encodings.append(_predict(neck, network.encodings[index], len(sizes), 4, "box"))
    with g.scope("postprocess"):
        boxes = decode(g.op("Concat", *encodings, name="encodings", axis=1), anchors())
        logits = g.op("Concat", *labels, name="logits", axis=1)
        scores = probabilities(logits, len(shapes.CLASSES), activation="Softmax")
        count = len(anchors())
        select(
            boxes,
            scores,
            SUPPRESSION,
            candidates=count,
            classes=len(shapes.CLASSES),
            first_class=0,
        )
    model = g.model("SSD on a MobileNet, trained on generated pictures of shapes.")
    _finish(model, {"classes": ",".join(shapes.CLASSES), **figures})
    onnx.save_model(model, path)


def _unit(x: Tensor, unit: Unit) -> Tensor:
    """Add a convolution with its batch normalisation folded in, and a ReLU."""
    norm, layer = unit.norm, unit.layer
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = unit.conv.weight * factor[:, None, None, None]
    bias = norm.bias - norm.running_mean * factor
    groups, pads = unit.conv.groups, layer.kernel // 2
    x = _conv(x, weight, bias, layer.name, stride=layer.stride, pads=pads, group=groups)
    return x.graph.op("Relu", x, name=f"{layer.name}/relu")


def _conv(
    x: Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    name: str,
    *,
    stride: int = 1,
    pads: int = 1,
    group: int = 1,
) -> Tensor:
    assert bias is not None
    g = x.graph
    parameters = [
        g.constant(value.detach().contiguous().numpy(), f"{name}.{which}")
        for which, value in (("weight", weight), ("bias", bias))
    ]
    kernel = list(weight.shape[2:])
    return g.op(
        "Conv",
        x,
        *parameters,
        name=name,
        kernel_shape=kernel,
        strides=[stride] * 2,
        pads=[pads] * 4,
        group=group,
    )


def _predict(x: Tensor, conv: nn.Conv2d, anchors: int, size: int, name: str) -> Tensor:
    """Predict `size` numbers per anchor: ``[1, cells * anchors, size]``."""
    g = x.graph
    x = _conv(x, conv.weight, conv.bias, name)
    x = g.op("Transpose", x, name=f"{name}/nhwc", perm=[0, 2, 3, 1])
    shape = g.constant(np.array([0, -1, size]), f"{name}/reshape.shape")
    return g.op("Reshape", x, shape, name=f"{name}/reshape")


def _finish(model: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Name what a user sees, leave the other outputs and intermediate shapes out."""
    kept = [value for value in model.graph.output if value.name.startswith("detection_")]
    del model.graph.output[:], model.graph.value_info[:]
    model.graph.output.extend(kept)
    for value in (*model.graph.input, *model.graph.output):
        value.name = NAMES[value.name]
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [NAMES.get(name, name) for name in names]
    model.producer_name = "tvm-edge examples/train"
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)


def measure(path: Path, pictures: int = HELD_OUT) -> float:
    """Return the mAP at IoU 0.5 of a file on held-out pictures, by ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    scenes = [shapes.draw(index, "held-out") for index in range(pictures)]
    found = [
        tuple(session.run(["boxes", "scores", "classes"], {"image": shapes.network_input(scene)}))
        for scene in scenes
    ]
    return mean_average_precision(found, [(scene.boxes, scene.classes) for scene in scenes])
