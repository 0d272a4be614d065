"""Single-shot detectors: Liu et al., SSD, ECCV 2016."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tvm_edge.zoo.anchors import ssd_anchors, ssd_shapes
from tvm_edge.zoo.calibration import Scale
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv, conv_bn
from tvm_edge.zoo.networks.mobilenet import TENSORFLOW_STYLE, mobilenet_v1_features

__all__ = ["ssd_mobilenet_v1"]

_CLASSES = 91  # of COCO's label map, with the background as class 0
_BOX_SCALES = (10.0, 10.0, 5.0, 5.0)  # y, x, height, width
_MAX_PER_CLASS = 100
_IOU_THRESHOLD = 0.6
_SCORE_THRESHOLD = 0.5
# Encodings that move a box by about 5 % and stretch it by 10 %.
_ENCODINGS = Scale(deviation=0.5, mean=0.0, spread=0.1)
# About 1 in 1000 scores passes the threshold, most of them in a third of the classes.
_CLASS_LOGITS = Scale(deviation=1.3, mean=-6.0, spread=1.5)


def ssd_mobilenet_v1(g: Graph) -> None:
    """SSD300 on MobileNetV1, as ``ssd_mobilenet_v1_coco`` of TensorFlow's object detection API.

    For P anchors (1917 at 300x300) the outputs are

    - ``boxes`` ``[N, P, 4]``: y1, x1, y2, x2 as fractions of the picture, not clipped to it;
    - ``scores`` ``[N, 90, P]``: sigmoid, without the background;
    - ``selected`` int64 ``[M, 3]``: picture, class and box that NonMaxSuppression keeps;
    - ``detection_boxes`` ``[M, 4]``, ``detection_scores`` ``[M]`` and ``detection_classes`` int64
      ``[M]`` (1 to 90, as in COCO): what ``selected`` points to.

    The score threshold is 0.5. The API's training configuration keeps every score above 1e-8,
    which no deployment does; its cut to the 100 best over all classes is left out.
    """
    maps = _feature_maps(g)
    encodings, logits = [], []
    for index, (x, shapes) in enumerate(zip(maps, ssd_shapes(len(maps)), strict=True)):
        with g.scope(f"head{index}"):
            encodings.append(_predict(x, len(shapes), 4, name="box", scale=_ENCODINGS))
            scale = replace(_CLASS_LOGITS, blocks=len(shapes))
            logits.append(_predict(x, len(shapes), _CLASSES, name="class", scale=scale))
    with g.scope("postprocess"):
        all_encodings = g.op("Concat", *encodings, name="encodings", axis=1).detach()
        all_logits = g.op("Concat", *logits, name="logits", axis=1).detach()
        anchors = ssd_anchors([x.spatial for x in maps], g.data.spatial)
        _select(_decode(all_encodings, anchors), _scores(all_logits), len(anchors))


def _feature_maps(g: Graph) -> list[Tensor]:
    """Add the six maps that anchors lie on: two of the backbone, four of stride 2 on top of it."""
    backbone = mobilenet_v1_features(g)
    x = backbone[13]
    maps = [backbone[11], x]
    for index, channels in enumerate((512, 256, 256, 128)):
        with g.scope(f"extra{index}"):
            x = conv_bn(x, g.channels(channels // 2), 1, name="reduce", **TENSORFLOW_STYLE)
            x = conv_bn(x, g.channels(channels), 3, name="conv", stride=2, **TENSORFLOW_STYLE)
        maps.append(x)
    return maps


def _predict(x: Tensor, anchors: int, size: int, *, name: str, scale: Scale) -> Tensor:
    """Predict `size` numbers per anchor: ``[N, C, H, W]`` to ``[N, H * W * anchors, size]``."""
    g = x.graph
    x = conv(x, anchors * size, 1, name=name, bias=scale)
    x = g.op("Transpose", x, name=f"{name}/nhwc", perm=[0, 2, 3, 1])
    shape = g.constant(np.array([0, -1, size]), f"{name}/reshape.shape")
    return g.op("Reshape", x, shape, name=f"{name}/reshape")


def _decode(encodings: Tensor, anchors: NDArray[np.float32]) -> Tensor:
    """Turn centre-size encodings into corners ``[N, P, 4]`` (SSD, equation 2)."""
    g = encodings.graph
    centres, sizes = anchors[:, :2], anchors[:, 2:]
    with g.scope("decode"):
        scales = g.constant(np.array(_BOX_SCALES), "unscale.scales")
        halves = g.constant(np.array([2, 2]), "split.sizes")
        x = g.op("Div", encodings, scales, name="unscale")
        shift, growth = g.ops("Split", x, halves, name="split", count=2, axis=2)
        shift = g.op("Mul", shift, g.constant(sizes, "shift.sizes"), name="shift")
        centre = g.op("Add", shift, g.constant(centres, "centre.centres"), name="centre")
        growth = g.op("Exp", growth, name="growth")
        half = g.op("Mul", growth, g.constant(sizes / 2, "half.sizes"), name="half")
        low = g.op("Sub", centre, half, name="low")
        high = g.op("Add", centre, half, name="high")
        return g.op("Concat", low, high, name="boxes", axis=2)


def _scores(logits: Tensor) -> Tensor:
    """Turn logits ``[N, P, 91]`` into probabilities ``[N, 90, P]`` without the background."""
    g = logits.graph
    with g.scope("scores"):
        x = g.op("Sigmoid", logits, name="sigmoid")
        starts = g.constant(np.array([1]), "foreground.starts")
        ends = g.constant(np.array([_CLASSES]), "foreground.ends")
        axes = g.constant(np.array([2]), "foreground.axes")
        x = g.op("Slice", x, starts, ends, axes, name="foreground")
        return g.op("Transpose", x, name="scores", perm=[0, 2, 1])


def _select(boxes: Tensor, scores: Tensor, anchors: int) -> None:
    """Suppress overlapping boxes of a class, gather what is left, and name the outputs."""
    g = boxes.graph
    limit = g.constant(np.array([_MAX_PER_CLASS]), "nms.max_output_boxes_per_class")
    iou = g.constant(np.array([_IOU_THRESHOLD]), "nms.iou_threshold")
    score = g.constant(np.array([_SCORE_THRESHOLD]), "nms.score_threshold")
    selected = g.op("NonMaxSuppression", boxes, scores, limit, iou, score, name="nms")
    columns = g.constant(np.array([0, 2]), "picture_and_box.columns")
    picture_and_box = g.op("Gather", selected, columns, name="picture_and_box", axis=1)
    column = g.constant(np.array(1), "class.column")
    kept_class = g.op("Gather", selected, column, name="class", axis=1)
    kept_boxes = g.op("GatherND", boxes, picture_and_box, name="detection_boxes")
    kept_scores = g.op("GatherND", scores, selected, name="detection_scores")
    first = g.constant(np.array(1), "first_class")
    kept_classes = g.op("Add", kept_class, first, name="detection_classes")

    g.output("boxes", boxes, (g.batch, anchors, 4))
    g.output("scores", scores, (g.batch, _CLASSES - 1, anchors))
    g.output("selected", selected, ("detections", 3), np.int64)
    g.output("detection_boxes", kept_boxes, ("detections", 4))
    g.output("detection_scores", kept_scores, ("detections",))
    g.output("detection_classes", kept_classes, ("detections",), np.int64)
