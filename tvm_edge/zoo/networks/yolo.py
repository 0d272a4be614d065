"""YOLOv3: Redmon and Farhadi, YOLOv3: An Incremental Improvement, arXiv:1804.02767."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tvm_edge.zoo.anchors import Shapes, ssd_anchors
from tvm_edge.zoo.calibration import RESIDUAL, Scale
from tvm_edge.zoo.detection import Led, Suppression, corners, predict, select
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv_bn, leaky_relu

__all__ = ["yolov3"]

_CLASSES = 80  # of COCO, without the gaps of its label map
_SLOPE = 0.1  # of the leaky ReLU, below 0
# Blocks of each stage of Darknet-53, and channels of its output: table 1.
_STAGES = ((1, 64), (2, 128), (8, 256), (8, 512), (4, 1024))
# Height and width in pixels of a 416x416 picture, per scale from stride 32 to 8: section 2.3.
_ANCHORS = (
    ((90, 116), (198, 156), (326, 373)),
    ((61, 30), (45, 62), (119, 59)),
    ((13, 10), (30, 16), (23, 33)),
)
_ANCHOR_PICTURE = 416
# As after a ReLU; a positive mean keeps most of the sum over a picture on the steep side.
_LEAKY = Scale(deviation=1.0, mean=0.7, spread=0.2)
_CENTRE = Scale(deviation=1.0, mean=0.0, spread=0.3)
_GROWTH = Scale(deviation=0.3, mean=0.0, spread=0.1)
_OBJECTNESS = Scale(deviation=1.8, mean=-3.0, spread=0.0)
# With the objectness, some 4 in 10,000 scores pass the threshold.
_LOGITS = Led(
    deviation=1.5,
    mean=-5.0,
    spread=2.0,
    lead=(_CENTRE, _CENTRE, _GROWTH, _GROWTH, _OBJECTNESS),
)


def yolov3(g: Graph) -> None:
    """YOLOv3 on Darknet-53, as ``yolov3.cfg`` of Darknet.

    The outputs are those of :func:`tvm_edge.zoo.detection.select`, for the 80 classes of COCO,
    counted from 0. At 416x416 there are 10647 boxes: three per cell of 13x13, 26x26 and 52x52
    maps, coarsest first. ``scores`` is the sigmoid of the objectness times the sigmoid of the
    class, as section 2.2 has it.

    Predictions are in the order y, x, height, width; Darknet's is x, y, width, height. A size that
    32 does not divide is allowed: an upsampled map takes the size of the one it is joined to.
    Thresholds are those of ``darknet detect``: a score of 0.5 and an IoU of 0.45.
    """
    with g.scope("backbone"):
        *_, fine, middle, x = _darknet53(g)
    predictions, shapes = [], _shapes()
    maps: list[Tensor] = []
    for index, (channels, finer) in enumerate(((512, middle), (256, fine), (128, None))):
        with g.scope(f"head{index}"):
            for step in range(5):
                x = _conv(x, channels * (1 + step % 2), 3 if step % 2 else 1, name=f"conv{step}")
            y = _conv(x, 2 * channels, 3, name="conv5")
            scale = replace(_LOGITS, blocks=len(shapes[index]))
            size = len(_LOGITS.lead) + _CLASSES
            predictions.append(predict(y, len(shapes[index]), size, name="predict", scale=scale))
            maps.append(y)
            if finer is not None:
                x = _conv(x, channels // 2, 1, name="reduce")
                x = _join(x, finer)
    with g.scope("postprocess"):
        spatial = [y.spatial for y in maps]
        every = g.op("Concat", *predictions, name="predictions", axis=1).detach()
        anchors = ssd_anchors(spatial, g.data.spatial, shapes)
        boxes, scores = _decode(every, spatial, anchors)
        how = Suppression(iou=0.45, score=0.5)
        select(boxes, scores, how, candidates=len(anchors), classes=_CLASSES, first_class=0)


def _shapes() -> list[Shapes]:
    """The published anchors as scale and aspect ratio."""
    return [
        [(float(np.sqrt(h * w)) / _ANCHOR_PICTURE, w / h) for h, w in of_cell]
        for of_cell in _ANCHORS
    ]


def _darknet53(g: Graph) -> list[Tensor]:
    """Add Darknet-53 up to its pool, and return the output of each stage."""
    outputs = []
    x = _conv(g.data, 32, 3, name="conv")
    for stage, (blocks, channels) in enumerate(_STAGES, start=1):
        with g.scope(f"stage{stage}"):
            x = _conv(x, channels, 3, name="down", stride=2)
            for block in range(blocks):
                with g.scope(f"block{block}"):
                    y = _conv(x, channels // 2, 1, name="conv1")
                    y = _conv(y, channels, 3, name="conv2", scale=RESIDUAL)
                    x = g.op("Add", x, y, name="add")
        outputs.append(x)
    return outputs


def _conv(
    x: Tensor, channels: int, kernel: int, *, name: str, stride: int = 1, scale: Scale = _LEAKY
) -> Tensor:
    """Convolution, batch normalisation and leaky ReLU."""
    x = conv_bn(
        x,
        x.graph.channels(channels),
        kernel,
        name=name,
        stride=stride,
        pads=kernel // 2,
        activation=None,
        scale=scale,
    )
    return leaky_relu(x, name=f"{name}/leaky", alpha=_SLOPE)


def _join(x: Tensor, finer: Tensor) -> Tensor:
    """Upsample to the size of `finer` by repeating pixels, and append `finer`."""
    g = x.graph
    sizes = g.constant(np.array([g.batch, x.channels, *finer.spatial]), "upsample.sizes")
    x = g.op(
        "Resize",
        x,
        None,
        None,
        sizes,
        name="upsample",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return g.op("Concat", x, finer, name="route", axis=1)


def _decode(
    predictions: Tensor, maps: Sequence[tuple[int, int]], anchors: NDArray[np.float32]
) -> tuple[Tensor, Tensor]:
    """Turn predictions ``[N, P, 85]`` into boxes ``[N, P, 4]`` and scores ``[N, 80, P]``.

    A centre is a sigmoid within its cell, a size an exponential times its anchor's.
    """
    g = predictions.graph
    per_cell = len(anchors) // sum(h * w for h, w in maps)
    cells = np.concatenate([np.tile([1 / h, 1 / w], (h * w * per_cell, 1)) for h, w in maps])
    corner = anchors[:, :2] - cells / 2
    with g.scope("decode"):
        parts = g.constant(np.array([2, 2, 1, _CLASSES]), "split.sizes")
        shift, growth, objectness, logits = g.ops(
            "Split", predictions, parts, name="split", count=4, axis=2
        )
        shift = g.op("Sigmoid", shift, name="shift")
        shift = g.op("Mul", shift, g.constant(cells, "cell.sizes"), name="cell")
        centre = g.op("Add", shift, g.constant(corner, "centre.corners"), name="centre")
        growth = g.op("Exp", growth, name="growth")
        half = g.op("Mul", growth, g.constant(anchors[:, 2:] / 2, "half.sizes"), name="half")
        boxes = corners(centre, half)
    with g.scope("scores"):
        objectness = g.op("Sigmoid", objectness, name="objectness")
        classes = g.op("Sigmoid", logits, name="classes")
        x = g.op("Mul", classes, objectness, name="product")
        return boxes, g.op("Transpose", x, name="scores", perm=[0, 2, 1])
