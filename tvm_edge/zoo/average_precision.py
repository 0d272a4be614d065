"""Mean average precision of a detector: how good it is, as one number.

Everingham et al., The Pascal Visual Object Classes Challenge, IJCV 2010, section 4.2, by the area
under the whole precision-recall curve (VOC from 2010 on), here without its "difficult" objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Detections", "Truth", "average_precision", "box_iou", "mean_average_precision"]

Detections: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Findings in a picture: boxes ``[n, 4]`` (y1, x1, y2, x2), scores ``[n]`` and classes ``[n]``."""

Truth: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Objects of a picture: boxes ``[objects, 4]`` and classes ``[objects]``."""


def mean_average_precision(
    detections: Sequence[Detections], truth: Sequence[Truth], *, iou: float = 0.5
) -> float:
    """Return the mean over classes of :func:`average_precision`.

    Parameters
    ----------
    detections, truth : Sequence
        Of the same pictures in the same order.
    iou : float
        Least intersection over union at which a detection has found an object.

    Returns
    -------
    float
        From 0 to 1. Classes without an object in `truth` do not count.
    """
    classes = np.unique(np.concatenate([labels for _, labels in truth]))
    return float(np.mean([average_precision(detections, truth, int(c), iou=iou) for c in classes]))


def average_precision(
    detections: Sequence[Detections], truth: Sequence[Truth], label: int, *, iou: float = 0.5
) -> float:
    """Return the area under the precision-recall curve of the class `label`.

    In order of their scores, the best first, detections of all pictures are right if the object of
    their class that they overlap most is overlapped by at least `iou` and was not found before.
    Precision at a recall is the best at that recall or above. Equal scores keep their order.
    """
    scores, right = [], []
    for found, (true_boxes, true_classes) in zip(detections, truth, strict=True):
        boxes, all_scores, classes = found
        own = np.flatnonzero(classes == label)
        own = own[np.argsort(-all_scores[own], kind="stable")]
        scores.append(all_scores[own])
        overlap = box_iou(boxes[own], true_boxes[true_classes == label])
        right.append(_found(overlap, iou))
    objects = sum(int((classes == label).sum()) for _, classes in truth)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hits = np.concatenate(right)[order]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    # Recall grows by one object at each hit.
    return float(best_from_here[hits].sum() / objects)


def _found(overlap: NDArray[Any], threshold: float) -> NDArray[np.bool_]:
    """Mask of one picture's detections, the best first, that find an object: ``[n]``."""
    right = np.zeros(len(overlap), bool)
    free = np.ones(overlap.shape[1], bool)
    for index, row in enumerate(overlap if overlap.size else ()):
        nearest = int(row.argmax())
        right[index] = row[nearest] >= threshold and free[nearest]
        free[nearest] &= not right[index]
    return right


def box_iou(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Intersection over union of every box of `a` with every box of `b`: ``[len(a), len(b)]``."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    area_a = (a[:, 2:] - a[:, :2]).prod(-1)
    area_b = (b[:, 2:] - b[:, :2]).prod(-1)
    overlap: NDArray[Any] = shared / np.maximum(area_a[:, None] + area_b[None] - shared, 1e-12)
    return overlap
