"""YOLO: Redmon et al., You Only Look Once, CVPR 2016."""

from __future__ import annotations

import numpy as np

from tvm_edge.zoo.calibration import RELU, Scale
from tvm_edge.zoo.detection import Led, Suppression, corners, select
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv, gemm, leaky_relu, max_pool

__all__ = ["yolov1", "yolov1_large", "yolov1_medium", "yolov1_small"]

# Output channels and kernel of the convolutions between two pools: figure 3.
_STAGES = (
    ((192, 3),),
    ((128, 1), (256, 3), (256, 1), (512, 3)),
    (*((256, 1), (512, 3)) * 4, (512, 1), (1024, 3)),
    (*((512, 1), (1024, 3)) * 2, (1024, 3)),
)
_BOXES = 2  # of a cell
_CLASSES = 20  # of Pascal VOC
_SLOPE = 0.1

# What a box is told by: its centre as a fraction of the cell, the root of its size as a fraction of
# the picture, and a confidence.
_CENTRE = Scale(deviation=0.2, mean=0.5, spread=0.1)
_ROOT_SIZE = Scale(deviation=0.05, mean=0.5, spread=0.04)
_CONFIDENCE = Scale(deviation=0.15, mean=0.4, spread=0.04)
_BOX = (_CENTRE, _CENTRE, _ROOT_SIZE, _ROOT_SIZE, _CONFIDENCE)
_CLASS = {"deviation": 0.14, "mean": 0.0, "spread": 0.07}
_SUPPRESSION = Suppression(iou=0.5, score=0.2)


def yolov1(g: Graph) -> None:
    """YOLO with 24 convolutions and two fully connected layers (section 2.1 and figure 3).

    The picture is divided into cells, 7x7 at the published size; other sizes have as many as the
    last map, and weights follow. For P boxes, two of each cell, the outputs are those of
    :func:`tvm_edge.zoo.detection.select`: ``boxes`` ``[N, P, 4]``, ``scores`` ``[N, 20, P]`` (class
    probability times confidence, both linear as in the paper) and what is kept of them at Darknet's
    thresholds, classes counted from 0.
    """
    _yolo(g)


def yolov1_medium(g: Graph) -> None:
    """Half the channels of the last convolution and half the first fully connected layer.

    As *Medium* of Rallapalli et al., Are Very Deep Neural Networks Feasible on Mobile Devices?,
    section 3; outputs as of :func:`yolov1`.
    """
    _yolo(g, last=512, hidden=2048)


def yolov1_small(g: Graph) -> None:
    """A quarter of both, *Small* of the same paper."""
    _yolo(g, last=256, hidden=1024)


def yolov1_large(g: Graph) -> None:
    """A first fully connected layer larger by 20 %, *Large* of the same paper, section 4."""
    _yolo(g, hidden=4915)


def _yolo(g: Graph, *, last: int = 1024, hidden: int = 4096) -> None:
    x = _conv(g.data, 64, 7, name="conv1", stride=2)
    index = 1
    for stage, layers in enumerate(_STAGES, start=1):
        x = max_pool(x, 2, name=f"pool{stage}", stride=2)
        for channels, kernel in layers:
            index += 1
            x = _conv(x, channels, kernel, name=f"conv{index}")
    x = _conv(x, 1024, 3, name="conv22", stride=2)
    x = _conv(x, 1024, 3, name="conv23")
    x = _conv(x, last, 3, name="conv24")
    height, width = x.spatial
    x = g.op("Flatten", x, name="flatten", axis=1)
    x = gemm(x, g.channels(hidden), name="fc1", scale=RELU)
    x = leaky_relu(x, name="fc1/leaky", alpha=_SLOPE)
    cells = height * width
    scale = Led(**_CLASS, blocks=cells, lead=_BOX * _BOXES)
    x = gemm(x, cells * (5 * _BOXES + _CLASSES), name="fc2", scale=scale).detach()
    with g.scope("postprocess"):
        boxes, scores = _decode(x, (height, width))
        candidates = cells * _BOXES
        select(boxes, scores, _SUPPRESSION, candidates=candidates, classes=_CLASSES, first_class=0)


def _conv(x: Tensor, channels: int, kernel: int, *, name: str, stride: int = 1) -> Tensor:
    x = conv(
        x,
        x.graph.channels(channels),
        kernel,
        name=name,
        stride=stride,
        pads=kernel // 2,
        bias=RELU,
    )
    return leaky_relu(x, name=f"{name}/leaky", alpha=_SLOPE)


def _decode(x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Boxes ``[N, P, 4]`` and scores ``[N, 20, P]`` of ``[N, cells * 30]``.

    A cell holds x, y, width, height and confidence of two boxes, then 20 class probabilities.
    """
    g, cells = x.graph, grid[0] * grid[1]
    x = _reshape(x, (cells, 5 * _BOXES + _CLASSES), name="cells")
    parts = g.constant(np.array([5 * _BOXES, _CLASSES]), "split.sizes")
    each, classes = g.ops("Split", x, parts, name="split", count=2, axis=2)
    with g.scope("boxes"):
        each = _reshape(each, (cells * _BOXES, 5), name="per_box")
        order = g.constant(np.array([1, 0, 3, 2, 4]), "rows_first.order")
        each = g.op("Gather", each, order, name="rows_first", axis=2)
        parts = g.constant(np.array([2, 2, 1]), "split.sizes")
        centre, root, confidence = g.ops("Split", each, parts, name="split", count=3, axis=2)
        corners_of_cells = np.argwhere(np.ones(grid)).repeat(_BOXES, axis=0).astype(np.float32)
        corner = g.constant(corners_of_cells, "in_grid.cells")
        centre = g.op("Add", centre, corner, name="in_grid")
        lengths = g.constant(np.array(grid, np.float32), "centre.grid")
        centre = g.op("Div", centre, lengths, name="centre")
        size = g.op("Mul", root, root, name="size")
        half = g.op("Mul", size, g.constant(0.5, "half.factor"), name="half")
        boxes = corners(centre, half)
    with g.scope("scores"):
        confidence = _reshape(confidence, (cells, _BOXES, 1), name="confidence")
        classes = _reshape(classes, (cells, 1, _CLASSES), name="classes")
        scores = g.op("Mul", confidence, classes, name="score")
        scores = _reshape(scores, (cells * _BOXES, _CLASSES), name="per_box")
        return boxes, g.op("Transpose", scores, name="scores", perm=[0, 2, 1])


def _reshape(x: Tensor, shape: tuple[int, ...], *, name: str) -> Tensor:
    """Give every picture `shape`."""
    g = x.graph
    return g.op("Reshape", x, g.constant(np.array([-1, *shape]), f"{name}.shape"), name=name)
