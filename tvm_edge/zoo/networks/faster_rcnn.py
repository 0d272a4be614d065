"""A two-stage detector: Ren et al., Faster R-CNN, NeurIPS 2015."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvm_edge.zoo.anchors import Shapes, ssd_anchors
from tvm_edge.zoo.calibration import LINEAR, RELU, Scale
from tvm_edge.zoo.detection import (
    ENCODINGS,
    Led,
    Suppression,
    decode,
    predict,
    probabilities,
    select,
    suppress,
)
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv, gemm, relu
from tvm_edge.zoo.networks.resnet import resnet50_v1_features

__all__ = ["faster_rcnn_head"]

_CLASSES = 80  # of COCO
_STRIDE = 16  # of ResNet-50's conv4
_PROPOSALS = 100
_ROI_SIZE, _SAMPLES = 7, 2
# Fractions of the shorter side: 128, 256 and 512 pixels of 512.
_ANCHORS: Shapes = [(scale, ratio) for scale in (0.25, 0.5, 1.0) for ratio in (0.5, 1.0, 2.0)]
_OBJECTNESS = Scale(deviation=1.5, mean=-1.0, spread=0.5)
# Some 40 of 100 proposals are objects; a winner has to beat 80 others together.
_BACKGROUND = Scale(deviation=1.0, mean=5.0, spread=0.0)
_LOGITS = Led(deviation=2.5, mean=0.0, spread=1.5, lead=(_BACKGROUND,))


def faster_rcnn_head(g: Graph) -> None:
    """Faster R-CNN with RoiAlign on ResNet-50's conv4, for the 80 classes of COCO.

    A region proposal network of nine anchors per cell (section 3.1), on a 1x1 convolution to 256
    channels; RoiAlign to 7x7 (He et al., Mask R-CNN, ICCV 2017) and two fully connected layers of
    1024, both as in Lin et al., Feature Pyramid Networks, CVPR 2017, of which this is one level;
    a softmax over the classes and a box for each of them. Boxes are encoded as in TensorFlow's
    object detection API. The rest is single-stage suppression, per class.

    For N pictures, C = 80 classes and K = 100 proposals the outputs are

    - ``boxes`` ``[N * C, K, 4]``: y1, x1, y2, x2 as fractions of the picture, not clipped to it;
    - ``scores`` ``[N * C, 1, K]``: softmax, without the background;
    - ``selected`` int64 ``[M, 3]``: picture * C + class, 0 and proposal that the last
      NonMaxSuppression keeps, which takes classes for pictures since each has its own boxes;
    - ``detection_boxes`` ``[M, 4]``, ``detection_scores`` ``[M]`` and ``detection_classes`` int64
      ``[M]``, from 0: what ``selected`` points to.

    The number of proposals is fixed, so that everything after them has a static shape and can run
    on a GPU: suppressed ones sink below all others (their objectness less 1), then the best K are
    taken. Where fewer than K survive, the best of the suppressed fill the list. The paper's cut to
    6000 anchors before the suppression is left out. A picture too small for K anchors has as many
    proposals as anchors.
    """
    with g.scope("backbone"):
        x = resnet50_v1_features(g, stages=3)[3]
    x = conv(x, g.channels(256), 1, name="lateral", bias=LINEAR)
    with g.scope("rpn"):
        proposals = _propose(x)
    count = proposals.calibration.shape[1]
    with g.scope("roi"):
        features = _pool(x, proposals)
        for index in range(2):
            features = gemm(features, g.channels(1024), name=f"fc{index}", scale=RELU)
            features = relu(features, name=f"fc{index}/relu")
        logits = gemm(features, _CLASSES + 1, name="class", scale=_LOGITS).detach()
        encodings = gemm(features, _CLASSES * 4, name="box", scale=ENCODINGS).detach()
    with g.scope("postprocess"):
        _detect(proposals.detach(), logits, encodings, count)


def _propose(x: Tensor) -> Tensor:
    """The regions ``[N, K, 4]`` that most look like an object, within the picture."""
    g = x.graph
    y = conv(x, x.channels, 3, name="conv", pads=1, bias=RELU)
    y = relu(y, name="relu")
    blocks = replace(_OBJECTNESS, blocks=len(_ANCHORS))
    logits = predict(y, len(_ANCHORS), 1, name="objectness", scale=blocks)
    encodings = predict(y, len(_ANCHORS), 4, name="box", scale=ENCODINGS)
    anchors = ssd_anchors([x.spatial], g.data.spatial, [_ANCHORS])
    boxes = decode(encodings, anchors)
    low, high = g.constant(0.0, "clip.min"), g.constant(1.0, "clip.max")
    boxes = g.op("Clip", boxes, low, high, name="clip")

    count = min(_PROPOSALS, len(anchors))
    scores = g.op("Sigmoid", logits.detach(), name="scores")
    scores = g.op("Transpose", scores, name="scores/rows", perm=[0, 2, 1])
    kept = suppress(boxes.detach(), scores, Suppression(iou=0.7, score=0.0, per_class=count))
    kept_scores = g.op("GatherND", scores, kept, name="kept_scores")
    sunk = g.op("Sub", scores, g.constant(1.0, "sink.one"), name="sink")
    ranks = g.op("ScatterND", sunk, kept, kept_scores, name="ranks")
    k = g.constant(np.array([count]), "best.k")
    _, best = g.ops("TopK", ranks, k, name="best", count=2, axis=2)
    best = g.op("Transpose", best, name="best/columns", perm=[0, 2, 1])
    proposals = g.op("GatherND", boxes.detach(), best, name="proposals", batch_dims=1)
    # What follows is calibrated on regions from all over the pictures.
    spread = np.linspace(0, len(anchors) - 1, count).round().astype(int)
    return replace(proposals, value=boxes.calibration[:, spread])


def _pool(x: Tensor, proposals: Tensor) -> Tensor:
    """The features of each region, ``[N * K, C * 7 * 7]``."""
    g = x.graph
    height, width = g.data.spatial
    order = g.constant(np.array([1, 0, 3, 2]), "xy.order")
    regions = g.op("Gather", proposals, order, name="xy", axis=2)
    pixels = g.constant(np.array([width, height] * 2, np.float32), "pixels.size")
    regions = g.op("Mul", regions, pixels, name="pixels")
    rows = g.constant(np.array([-1, 4]), "regions.shape")
    regions = g.op("Reshape", regions, rows, name="regions")
    pictures, count = proposals.calibration.shape[:2]
    picture = g.constant(np.repeat(np.arange(g.batch), count), "align.pictures")
    # Calibration has pictures of its own.
    picture = replace(picture, value=np.repeat(np.arange(pictures), count))
    pooled = g.op(
        "RoiAlign",
        x,
        regions,
        picture,
        name="align",
        coordinate_transformation_mode="half_pixel",
        mode="avg",
        output_height=_ROI_SIZE,
        output_width=_ROI_SIZE,
        sampling_ratio=_SAMPLES,
        spatial_scale=1 / _STRIDE,
    )
    return g.op("Flatten", pooled, name="flatten", axis=1)


def _detect(proposals: Tensor, logits: Tensor, encodings: Tensor, count: int) -> None:
    """Decode a box for each class from each of `count` proposals, and suppress."""
    g = proposals.graph
    by_picture = g.constant(np.array([g.batch, -1, _CLASSES + 1]), "logits.shape")
    scores = probabilities(
        g.op("Reshape", logits, by_picture, name="logits"), _CLASSES, activation="Softmax"
    )
    by_class = g.constant(np.array([g.batch, -1, _CLASSES, 4]), "encodings.shape")
    encodings = g.op("Reshape", encodings, by_class, name="encodings")
    encodings = g.op("Transpose", encodings, name="encodings/classes", perm=[0, 2, 1, 3])
    one = g.constant(np.array([1]), "proposals.axis")
    boxes = decode(encodings, _centres(g.op("Unsqueeze", proposals, one, name="proposals")))

    rows = g.constant(np.array([g.batch * _CLASSES, -1, 4]), "boxes.shape")
    boxes = g.op("Reshape", boxes, rows, name="boxes")
    rows = g.constant(np.array([g.batch * _CLASSES, 1, -1]), "scores.shape")
    scores = g.op("Reshape", scores, rows, name="scores_of_rows")
    how = Suppression(iou=0.5, score=0.5)
    select(boxes, scores, how, candidates=count, classes=_CLASSES, first_class=0, own_boxes=True)


def _centres(corners: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and sizes of boxes ``[..., 4]``."""
    g = corners.graph
    with g.scope("centres"):
        halves = g.constant(np.array([2, 2]), "split.sizes")
        low, high = g.ops("Split", corners, halves, name="split", count=2, axis=-1)
        half = g.constant(0.5, "half.factor")
        sizes = g.op("Sub", high, low, name="sizes")
        total = g.op("Add", low, high, name="sum")
        return g.op("Mul", total, half, name="half"), sizes
