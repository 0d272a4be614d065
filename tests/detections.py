"""Compare two lists of detections, one to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Comparison", "compare_detections", "iou"]

SCORE_TOLERANCE = 1e-4
LEAST_IOU = 0.99


@dataclass(frozen=True)
class Comparison:
    """How two lists of detections relate.

    Attributes
    ----------
    matched : int
        Pairs of equal class, IoU of at least 0.99 and scores within 1e-4.
    excused : int
        Detections of one side only whose score is within tolerance of the threshold or of another
        candidate's: there, rounding decides.
    unmatched : int
        Detections of one side only without an excuse.
    """

    matched: int
    excused: int
    unmatched: int


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes ``y1, x1, y2, x2``, every `a` with every `b`."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    area_a = (a[:, 2:] - a[:, :2]).prod(-1)
    area_b = (b[:, 2:] - b[:, :2]).prod(-1)
    return shared / np.maximum(area_a[:, None] + area_b[None] - shared, 1e-12)


def compare_detections(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], *, score_threshold: float
) -> Comparison:
    """Match detections greedily by IoU within their class.

    Parameters
    ----------
    ours, theirs : dict
        ``detection_boxes`` (n, 4), ``detection_scores`` (n,), ``detection_classes`` (n,), and
        ``scores`` (batch, classes, boxes), the candidates.
    score_threshold : float
        Of the suppression.
    """
    overlap = iou(ours["detection_boxes"], theirs["detection_boxes"])
    same = ours["detection_classes"][:, None] == theirs["detection_classes"][None]
    near = (
        np.abs(ours["detection_scores"][:, None] - theirs["detection_scores"][None])
        <= SCORE_TOLERANCE
    )
    fits = np.where(same & near & (overlap >= LEAST_IOU), overlap, 0.0)
    matched = 0
    free_ours = set(range(len(ours["detection_scores"])))
    free_theirs = set(range(len(theirs["detection_scores"])))
    for flat in np.argsort(-fits, axis=None):
        i, j = np.unravel_index(flat, fits.shape)
        if fits[i, j] == 0.0:
            break
        if int(i) in free_ours and int(j) in free_theirs:
            free_ours.discard(int(i))
            free_theirs.discard(int(j))
            matched += 1
    excused = unmatched = 0
    for side, free in ((ours, free_ours), (theirs, free_theirs)):
        candidates = np.sort(side["scores"].ravel())
        for index in free:
            score = side["detection_scores"][index]
            at_threshold = abs(score - score_threshold) <= SCORE_TOLERANCE
            low, high = np.searchsorted(
                candidates, [score - SCORE_TOLERANCE, score + SCORE_TOLERANCE]
            )
            tie = high - low > 1  # another candidate besides itself
            if at_threshold or tie:
                excused += 1
            else:
                unmatched += 1
    return Comparison(matched, excused, unmatched)
