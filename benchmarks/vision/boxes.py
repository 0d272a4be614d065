"""Workloads of detection: boxes and scores, feature maps, anchors.

Written before anything was tuned. Data is float32 from a generator that is seeded by the workload's
name. Boxes are two corners y1, x1, y2, x2 in pixels of a square picture.

- ``clustered``, as an SSD head gives them: half of the boxes in groups of 20, each around an object
  whose centre lies anywhere and whose sides are log-uniform from 20 to 250 pixels of 512; centres
  are off by a normal 8 % of the side and sides by a log-normal 10 %. The scores of a group fall by
  4 % from box to box, from a best one between 0.4 and 1. The other half is background: small boxes,
  10 to 100 pixels, anywhere, with scores below 0.4, most of them far below. In random order.
- ``disjoint``: a grid of boxes that do not touch, random scores, in random order.
- ``uniform``: boxes of side 0 to 200 anywhere in a square of 400, random scores.

Of many classes: clustered boxes; scores above the threshold are those of whole groups, each in one
class, as many as such a head leaves: of ``ssd_mobilenet_v1`` 1 in 1000 above 0.5, of SSD300 on VOC
1 in 200 above 0.01, of YOLOv3 4 in 10,000 above 0.5.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

__all__ = ["DETECTIONS", "Detection", "Layer", "Suppression", "find_detection", "small_detections"]

Arrays = dict[str, np.ndarray]

_PICTURE = 512
_GROUP = 20
_FEW_BOXES, _FEW_CLASSES = 200, 5
STRIDE = 16
"""Pixels of the picture for one of the feature map that regions lie on."""
POOLED, SAMPLES = 7, 2
"""Cells of a region along a side, and samples of a cell along a side."""
MULTIBOX_THRESHOLD = 0.01


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


@dataclass(frozen=True)
class Suppression:
    """Non-maximum suppression as ONNX has it.

    Attributes
    ----------
    network : str
        Whose size it is; empty of a round number.
    boxes, classes : int
    layout : {"clustered", "disjoint", "uniform"}
    iou : float
    score : float, optional
        Threshold; by default every box takes part.
    part : float
        Of many classes the part of the scores that is above the threshold.
    most : int
        Boxes of a class; 0 means all.
    """

    network: str
    boxes: int
    layout: str = "clustered"
    classes: int = 1
    iou: float = 0.5
    score: float | None = None
    part: float = 1.0
    most: int = 0

    @property
    def operator(self) -> str:
        """``nms`` of one class, ``class_nms`` of many."""
        return "nms" if self.classes == 1 else "class_nms"

    @property
    def name(self) -> str:
        """For tables and command lines."""
        size = f"{self.classes}×{self.boxes}" if self.classes > 1 else str(self.boxes)
        return f"{self.operator} {self.layout} {size} {self.network}".strip()

    @property
    def limit(self) -> int:
        """Most boxes of a class."""
        return self.most or self.boxes

    def small(self) -> Suppression:
        """Return a copy with few boxes and classes, to check results quickly."""
        boxes, classes = min(self.boxes, _FEW_BOXES), min(self.classes, _FEW_CLASSES)
        return replace(self, boxes=boxes, classes=classes, part=max(self.part, 0.05))

    @cached_property
    def inputs(self) -> Arrays:
        """``boxes`` ``(1, boxes, 4)`` and ``scores`` ``(1, classes, boxes)``."""
        generator = _generator(self.name)
        boxes, group, scores = _LAYOUTS[self.layout](generator, self.boxes)
        if self.classes > 1:
            assert self.score is not None
            scores = _class_scores(generator, group, self.classes, self.part, self.score)
        return {
            "boxes": boxes[None].astype("float32"),
            "scores": scores.reshape(1, self.classes, self.boxes).astype("float32"),
        }


def _corners(centre: np.ndarray, size: np.ndarray) -> np.ndarray:
    return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def _clustered(generator: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """Boxes, the group of each (-1: background), scores."""
    groups = max(1, count // (2 * _GROUP))
    member = np.arange(groups * _GROUP) % _GROUP
    group = np.repeat(np.arange(groups), _GROUP)
    centre = generator.uniform(0, _PICTURE, (groups, 2))[group]
    size = np.exp(generator.uniform(np.log(20), np.log(250), (groups, 2)))[group]
    centre = centre + generator.normal(0, 0.08, centre.shape) * size
    size = size * np.exp(generator.normal(0, 0.1, size.shape))
    scores = generator.uniform(0.4, 1, groups)[group] * 0.96**member
    rest = count - len(group)
    background = _corners(
        generator.uniform(0, _PICTURE, (rest, 2)),
        np.exp(generator.uniform(np.log(10), np.log(100), (rest, 2))),
    )
    boxes = np.concatenate([_corners(centre, size), background])
    group = np.concatenate([group, np.full(rest, -1)])
    scores = np.concatenate([scores, 0.4 * generator.uniform(0, 1, rest) ** 3])
    order = generator.permutation(count)
    return boxes[order], group[order], scores[order]


def _disjoint(generator: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    side = int(np.ceil(np.sqrt(count)))
    cell = generator.permutation(side * side)[:count]
    low = np.stack([cell // side, cell % side], axis=1) * 10.0
    return np.concatenate([low, low + 8], axis=1), np.full(count, -1), generator.random(count)


def _uniform(generator: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    size = generator.uniform(0, 200, (count, 2))
    low = generator.uniform(0, 1, (count, 2)) * (400 - size)
    return np.concatenate([low, low + size], axis=1), np.full(count, -1), generator.random(count)


_LAYOUTS: Mapping[str, Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]] = {
    "clustered": _clustered,
    "disjoint": _disjoint,
    "uniform": _uniform,
}


def _class_scores(
    generator: np.random.Generator, group: np.ndarray, classes: int, part: float, threshold: float
) -> np.ndarray:
    """Scores of every class and box; a group may be of several classes."""
    scores = threshold * generator.uniform(0, 1, (classes, len(group))) ** 3
    objects = max(1, round(part * scores.size / _GROUP))
    for which, kind in zip(
        generator.integers(0, group.max() + 1, objects),
        generator.integers(0, classes, objects),
        strict=True,
    ):
        members = np.flatnonzero(group == which)
        best = generator.uniform(0.1, 1)
        scores[kind, members] = threshold + (1 - threshold) * best * 0.96 ** np.arange(len(members))
    return scores


@dataclass(frozen=True)
class Layer:
    """One of the other operators.

    Attributes
    ----------
    operator : str
        - ``roi_align``, ``roi_pool``: regions of 800x800 pixels on a map of stride 16, pooled to
          7x7, RoiAlign with two samples a side and half-pixel coordinates; `size` is regions,
          channels, height, width;
        - ``resize``: twice the size, linear, half-pixel; channels, height, width;
        - ``grid_sample``: bilinear, zeros outside, as many random points as the map has, a
          twentieth of each coordinate outside it; channels, height, width;
        - ``nonzero``: a tenth is not zero; elements;
        - ``decode``: SSD's encodings and anchors to corners; boxes;
        - ``multibox``: MXNet's MultiBoxDetection before its suppression: class, score and
          corners of the anchors whose best class is above 0.01, a tenth; classes with the
          background, anchors.
    size : tuple of int
    """

    operator: str
    size: tuple[int, ...]

    @property
    def name(self) -> str:
        """For tables and command lines."""
        return f"{self.operator} {'×'.join(map(str, self.size))}"

    def small(self) -> Layer:
        """Return a copy of a small size, to check results quickly."""
        return replace(self, size=tuple(min(dim, 20) for dim in self.size))

    @cached_property
    def inputs(self) -> Arrays:
        """Arrays by the names of the model's inputs."""
        return _INPUTS[self.operator](_generator(self.name), self.size)


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape, dtype=np.float32)


def _regions(generator: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """``(regions, 4)``: x1, y1, x2, y2 in the picture; sides log-uniform from 16 to 400 pixels."""
    count, _, *spatial = size
    picture = np.array(spatial[::-1]) * STRIDE
    side = np.exp(generator.uniform(np.log(16), np.log(400), (count, 2)))
    side = np.minimum(side, picture)
    low = generator.uniform(0, 1, (count, 2)) * (picture - side)
    return np.concatenate([low, low + side], axis=1).astype("float32")


def _roi_align_inputs(generator: np.random.Generator, size: tuple[int, ...]) -> Arrays:
    return {
        "data": _normal(generator, 1, *size[1:]),
        "regions": _regions(generator, size),
        "pictures": np.zeros(size[0], "int64"),
    }


def _roi_pool_inputs(generator: np.random.Generator, size: tuple[int, ...]) -> Arrays:
    data, regions = _normal(generator, 1, *size[1:]), _regions(generator, size)
    return {"data": data, "regions": np.pad(regions, [(0, 0), (1, 0)])}


def _grid_inputs(generator: np.random.Generator, size: tuple[int, ...]) -> Arrays:
    grid = generator.uniform(-1.05, 1.05, (1, *size[1:], 2)).astype("float32")
    return {"data": _normal(generator, 1, *size), "grid": grid}


def _nonzero_inputs(generator: np.random.Generator, size: tuple[int, ...]) -> Arrays:
    drawn = _normal(generator, *size)
    return {"data": np.where(generator.random(size) < 0.1, drawn, np.float32(0))}


def _decode_inputs(generator: np.random.Generator, size: tuple[int, ...]) -> Arrays:
    centre = generator.uniform(0, 1, (*size, 2))
    anchors = np.concatenate([centre, generator.uniform(0.05, 0.9, (*size, 2))], axis=1)
    return {
        "encodings": _normal(generator, 1, *size, 4),
        "anchors": anchors[None].astype("float32"),
    }


def _multibox_inputs(generator: np.random.Generator, size: tuple[int, ...]) -> Arrays:
    """Nine of ten anchors show background with more than 0.99."""
    classes, count = size
    background = np.where(generator.random(count) < 0.1, 0.5, 1 - 1e-3 * generator.random(count))
    parts = generator.dirichlet(np.full(classes - 1, 0.2), count).T
    probabilities = np.concatenate([background[None], parts * (1 - background)])
    corners = _corners(
        generator.uniform(0, 1, (count, 2)), generator.uniform(0.05, 0.9, (count, 2))
    )
    return {
        "probabilities": probabilities[None].astype("float32"),
        "encodings": _normal(generator, 1, count * 4),
        "anchors": corners[None].astype("float32"),
    }


_INPUTS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Arrays]] = {
    "roi_align": _roi_align_inputs,
    "roi_pool": _roi_pool_inputs,
    "resize": lambda generator, size: {"data": _normal(generator, 1, *size)},
    "grid_sample": _grid_inputs,
    "nonzero": _nonzero_inputs,
    "decode": _decode_inputs,
    "multibox": _multibox_inputs,
}

Detection = Suppression | Layer


def _listed() -> tuple[Detection, ...]:
    sizes = {
        "Faster R-CNN RPN": 6000,
        "SSD300": 8732,
        "YOLOv3 416": 10_647,
        "SSD512": 24_564,
    }
    everywhere = {"": 1000} | sizes
    return (
        *(Suppression(n, c, layout) for layout in _LAYOUTS_BARRED for n, c in everywhere.items()),
        *(Suppression(n, everywhere[n], "uniform") for n in ("", "SSD300", "SSD512")),
        Suppression("ssd_mobilenet_v1", 1917, classes=90, score=0.5, part=1e-3, most=100),
        Suppression("SSD300 VOC", 8732, classes=20, score=0.01, part=5e-3, most=100),
        Suppression("YOLOv3 416", 10_647, classes=80, score=0.5, part=4e-4, most=100),
        Layer("roi_align", (1000, 256, 50, 50)),
        Layer("roi_pool", (1000, 256, 50, 50)),
        Layer("resize", (256, 50, 50)),
        Layer("grid_sample", (64, 100, 100)),
        Layer("nonzero", (1_000_000,)),
        Layer("decode", (8732,)),
        Layer("multibox", (21, 8732)),
    )


_LAYOUTS_BARRED = ("clustered", "disjoint")

DETECTIONS = _listed()
"""Workloads of :mod:`benchmarks.vision.detection`."""


def small_detections() -> tuple[Detection, ...]:
    """Small workloads, to try the benchmark."""
    return tuple(workload.small() for workload in DETECTIONS)


def find_detection(name: str) -> Detection:
    """Find a workload by its name.

    Raises
    ------
    KeyError
    """
    return {w.name: w for w in (*DETECTIONS, *small_detections())}[name]
