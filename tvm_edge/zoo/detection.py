"""Parts of detectors after their features: predictors, box decoding, suppression, outputs.

Boxes are y1, x1, y2, x2 as fractions of the picture, not clipped to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tvm_edge.zoo.calibration import Scale
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv

__all__ = [
    "BOX_SCALES",
    "ENCODINGS",
    "Led",
    "Suppression",
    "corners",
    "decode",
    "predict",
    "probabilities",
    "select",
    "suppress",
]

BOX_SCALES = (10.0, 10.0, 5.0, 5.0)
"""Factors of y, x, height and width in SSD's encoding: one over its deviations."""

# Encodings that move a box by about 5 % and stretch it by 10 %.
ENCODINGS = Scale(deviation=0.5, mean=0.0, spread=0.1)


@dataclass(frozen=True)
class Led(Scale):
    """A :class:`Scale` for class logits, with other numbers before them in each block.

    Attributes
    ----------
    lead : tuple[Scale, ...]
        Of those numbers, one each: a background's logit, a box, an objectness.
    """

    lead: tuple[Scale, ...] = ()

    def sample(
        self, channels: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draw as :class:`Scale` does; then what leads, alike in every block."""
        gamma, beta = super().sample(channels, rng)
        block = channels // self.blocks
        for index, scale in enumerate(self.lead):
            (gamma[index::block],), (beta[index::block],) = scale.sample(1, rng)
        return gamma, beta


@dataclass(frozen=True)
class Suppression:
    """Constants of a NonMaxSuppression.

    Attributes
    ----------
    iou, score : float
        Thresholds.
    per_class : int
        Boxes kept of a class in a picture, at most.
    """

    iou: float
    score: float
    per_class: int = 100


def predict(
    x: Tensor, anchors: int, size: int, *, name: str, scale: Scale, kernel: int = 1
) -> Tensor:
    """Predict `size` numbers per anchor: ``[N, C, H, W]`` to ``[N, H * W * anchors, size]``."""
    g = x.graph
    x = conv(x, anchors * size, kernel, name=name, pads=kernel // 2, bias=scale)
    x = g.op("Transpose", x, name=f"{name}/nhwc", perm=[0, 2, 3, 1])
    shape = g.constant(np.array([0, -1, size]), f"{name}/reshape.shape")
    return g.op("Reshape", x, shape, name=f"{name}/reshape")


def decode(encodings: Tensor, anchors: NDArray[np.float32] | tuple[Tensor, Tensor]) -> Tensor:
    """Turn centre-size encodings into boxes ``[..., 4]`` (SSD, equation 2).

    Parameters
    ----------
    encodings : Tensor
        ``[..., P, 4]``, scaled by :data:`BOX_SCALES`.
    anchors : NDArray or tuple[Tensor, Tensor]
        ``[P, 4]``: centre y, centre x, height, width as fractions of the picture. Or, where the
        network computes what boxes are relative to, centres and sizes ``[..., P, 2]``.
    """
    g = encodings.graph
    with g.scope("decode"):
        scales = g.constant(np.array(BOX_SCALES), "unscale.scales")
        halves = g.constant(np.array([2, 2]), "split.sizes")
        x = g.op("Div", encodings, scales, name="unscale")
        shift, growth = g.ops("Split", x, halves, name="split", count=2, axis=-1)
        if isinstance(anchors, tuple):
            centres, sizes = anchors
            half_sizes = g.op("Mul", sizes, g.constant(0.5, "half.factor"), name="half_sizes")
        else:
            centres = g.constant(anchors[:, :2], "centre.centres")
            sizes = g.constant(anchors[:, 2:], "shift.sizes")
            half_sizes = g.constant(anchors[:, 2:] / 2, "half.sizes")
        shift = g.op("Mul", shift, sizes, name="shift")
        centre = g.op("Add", shift, centres, name="centre")
        growth = g.op("Exp", growth, name="growth")
        return corners(centre, g.op("Mul", growth, half_sizes, name="half"))


def corners(centre: Tensor, half: Tensor) -> Tensor:
    """Turn centres and half sizes ``[..., 2]`` into boxes ``[..., 4]``."""
    g = centre.graph
    low = g.op("Sub", centre, half, name="low")
    high = g.op("Add", centre, half, name="high")
    return g.op("Concat", low, high, name="boxes", axis=-1)


def probabilities(
    logits: Tensor, classes: int, *, activation: Literal["Sigmoid", "Softmax"] = "Sigmoid"
) -> Tensor:
    """Turn logits ``[N, P, 1 + classes]`` into scores ``[N, classes, P]``, no background."""
    g = logits.graph
    attributes = {"axis": 2} if activation == "Softmax" else {}
    with g.scope("scores"):
        x = g.op(activation, logits, name=activation.lower(), **attributes)
        starts = g.constant(np.array([1]), "foreground.starts")
        ends = g.constant(np.array([classes + 1]), "foreground.ends")
        axes = g.constant(np.array([2]), "foreground.axes")
        x = g.op("Slice", x, starts, ends, axes, name="foreground")
        return g.op("Transpose", x, name="scores", perm=[0, 2, 1])


def suppress(boxes: Tensor, scores: Tensor, how: Suppression) -> Tensor:
    """Suppress overlapping boxes of a class: int64 ``[M, 3]`` of picture, class and box."""
    g = boxes.graph
    limit = g.constant(np.array([how.per_class]), "nms.max_output_boxes_per_class")
    iou = g.constant(np.array([how.iou]), "nms.iou_threshold")
    score = g.constant(np.array([how.score]), "nms.score_threshold")
    return g.op("NonMaxSuppression", boxes, scores, limit, iou, score, name="nms")


def select(
    boxes: Tensor,
    scores: Tensor,
    how: Suppression,
    *,
    candidates: int,
    classes: int,
    first_class: int = 1,
    own_boxes: bool = False,
) -> None:
    """Suppress overlapping boxes of a class, gather what is left, and name the outputs.

    For P `candidates` and C `classes` the outputs are

    - ``boxes`` ``[N, P, 4]`` and ``scores`` ``[N, C, P]``, as given;
    - ``selected`` int64 ``[M, 3]``: picture, class and box that NonMaxSuppression keeps;
    - ``detection_boxes`` ``[M, 4]``, ``detection_scores`` ``[M]`` and ``detection_classes`` int64
      ``[M]``: what ``selected`` points to, classes counted from `first_class`.

    If `own_boxes`, a class has its own boxes and counts as a picture: ``boxes`` is
    ``[N * C, P, 4]``, ``scores`` ``[N * C, 1, P]``, and the first column of ``selected`` is
    picture * C + class.
    """
    g: Graph = boxes.graph
    selected = suppress(boxes, scores, how)
    columns = g.constant(np.array([0, 2]), "picture_and_box.columns")
    picture_and_box = g.op("Gather", selected, columns, name="picture_and_box", axis=1)
    column = g.constant(np.array(0 if own_boxes else 1), "class.column")
    kept_class = g.op("Gather", selected, column, name="class", axis=1)
    if own_boxes and g.batch > 1:
        count = g.constant(np.array(classes), "class_of_picture.classes")
        kept_class = g.op("Mod", kept_class, count, name="class_of_picture")
    kept_boxes = g.op("GatherND", boxes, picture_and_box, name="detection_boxes")
    kept_scores = g.op("GatherND", scores, selected, name="detection_scores")
    if first_class:
        first = g.constant(np.array(first_class), "first_class")
        kept_class = g.op("Add", kept_class, first, name="detection_classes")

    lists = (g.batch * classes, 1) if own_boxes else (g.batch, classes)
    g.output("boxes", boxes, (lists[0], candidates, 4))
    g.output("scores", scores, (*lists, candidates))
    g.output("selected", selected, ("detections", 3), np.int64)
    g.output("detection_boxes", kept_boxes, ("detections", 4))
    g.output("detection_scores", kept_scores, ("detections",))
    g.output("detection_classes", kept_class, ("detections",), np.int64)
