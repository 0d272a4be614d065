"""Results of the workloads of :mod:`benchmarks.vision.boxes`, calculated by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.vision.boxes import (
    MULTIBOX_THRESHOLD,
    POOLED,
    SAMPLES,
    STRIDE,
    Detection,
    Suppression,
)

__all__ = ["check", "expected_outputs"]

_TOLERANCE = 1e-4
"""Error allowed of a float result, as a part of its largest value."""
_IOU_ROUNDING = 1e-5
_IOU_ROUNDING_SHIFTED = 1e-3
"""``batched_nms`` keeps classes apart by adding up to 80 widths of the picture to coordinates. They
then are multiples of 1/256 pixel."""

Arrays = Mapping[str, np.ndarray]


def expected_outputs(workload: Detection) -> dict[str, np.ndarray]:
    """Arrays by the names of the ONNX model's outputs."""
    if isinstance(workload, Suppression):
        return {"selected": _suppress(workload)}
    if workload.operator == "multibox":
        return _multibox(workload.inputs)
    return {"result": _LAYERS[workload.operator](workload.inputs)}


def check(workload: Detection, outputs: Arrays, expected: Arrays) -> dict[str, Any]:
    """Compare outputs with :func:`expected_outputs`.

    Parameters
    ----------
    workload : Detection
    outputs : mapping of str to np.ndarray
        ``selected``: rows in ONNX's order, which have to be equal. ``kept``: rows in any order; a
        set that differs is right if it differs by the rounding of an IoU at the threshold.
    expected : mapping of str to np.ndarray

    Returns
    -------
    dict
        ``right``; ``error``, rows that differ, or the largest difference of floats as a part of
        the largest value; ``note`` where rounding is all that differs.
    """
    if "kept" in outputs:
        assert isinstance(workload, Suppression)
        return _check_set(workload, outputs["kept"], expected["selected"])
    checks = [_compare(outputs[name], wanted) for name, wanted in expected.items()]
    return {
        "right": all(one["right"] for one in checks),
        "error": max(one["error"] for one in checks),
    }


def _compare(found: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """Compare one output."""
    if found.shape != wanted.shape:
        return {"right": False, "error": float(abs(found.size - wanted.size))}
    if wanted.dtype.kind == "f":
        error = relative_error(found, wanted)
        return {"right": bool(error <= _TOLERANCE), "error": error}  # NaN is not
    error = float((found != wanted).any(axis=-1).sum())
    return {"right": error == 0, "error": error}


# ------------------------------------------------------------------------------------- suppression


def _suppress(workload: Suppression) -> np.ndarray:
    """Rows of batch, class, box: classes one after the other, each in descending score."""
    boxes, scores = workload.inputs["boxes"][0], workload.inputs["scores"][0]
    rows = []
    for kind, row in enumerate(scores):
        picked = _greedy(workload, boxes, row)
        rows.append(np.stack([np.zeros_like(picked), np.full_like(picked, kind), picked], axis=1))
    return np.concatenate(rows).astype("int64")


def _greedy(workload: Suppression, boxes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Equal scores in the order of their index, all arithmetic in float32."""
    order = np.argsort(-scores, kind="stable")
    if workload.score is not None:
        order = order[scores[order] > np.float32(workload.score)]
    ordered = boxes[order]
    alive = np.ones(len(order), bool)
    picked: list[int] = []
    for at in range(len(order)):
        if alive[at] and len(picked) < workload.limit:
            picked.append(int(order[at]))
            ious = _ious(ordered[at], ordered[at + 1 :])
            alive[at + 1 :] &= ~(ious > np.float32(workload.iou))
    return np.array(picked, "int64")


def _ious(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """In the boxes' precision; boxes are lower corner, upper corner."""
    zero = box.dtype.type(0)
    height = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    width = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    shared = np.maximum(height, zero) * np.maximum(width, zero)
    own = (box[3] - box[1]) * (box[2] - box[0])
    areas = (others[:, 3] - others[:, 1]) * (others[:, 2] - others[:, 0])
    union = own + areas - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=(shared > 0) & (union > 0))


def _check_set(workload: Suppression, kept: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    found, expected = ({tuple(row) for row in rows.tolist()} for rows in (kept, wanted))
    differing = len(found ^ expected)
    if not differing:
        return {"right": len(kept) == len(found), "error": 0.0}
    right = all(
        _is_suppression(workload, kind, [row[2] for row in found if row[1] == kind])
        for kind in sorted({row[1] for row in found ^ expected})
    )
    result: dict[str, Any] = {"right": right, "error": float(differing)}
    if right:
        result["note"] = f"{differing} of {len(expected)} boxes differ by rounding at the threshold"
    return result


def _is_suppression(workload: Suppression, kind: int, kept: list[int]) -> bool:
    """True for a set that greedy suppression gives, up to the rounding of each IoU.

    No two boxes that were kept overlap, and each box that was not is overlapped by a better one
    that was.
    """
    rounding = _IOU_ROUNDING if workload.classes == 1 else _IOU_ROUNDING_SHIFTED
    boxes = workload.inputs["boxes"][0].astype("float64")
    scores = workload.inputs["scores"][0, kind]
    order = np.argsort(-scores, kind="stable")
    if workload.score is not None:
        order = order[scores[order] > np.float32(workload.score)]
    ordered, is_kept = boxes[order], np.isin(order, kept)
    if is_kept.sum() != len(kept):
        return False
    covered = np.zeros(len(order), bool)
    for at in np.flatnonzero(is_kept):
        ious = _ious(ordered[at], ordered[at + 1 :])
        if (ious[is_kept[at + 1 :]] > workload.iou + rounding).any():
            return False
        covered[at + 1 :] |= ious > workload.iou - rounding
    return bool((covered | is_kept).all())


# ------------------------------------------------------------------------------------------ layers


def _bilinear(data: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sample ``(channels, height, width)`` at points in it; ``(channels, *points)``, float64."""
    height, width = data.shape[1:]
    y0, x0 = np.floor(y).astype(int), np.floor(x).astype(int)
    y1, x1 = np.minimum(y0 + 1, height - 1), np.minimum(x0 + 1, width - 1)
    fy, fx = y - y0, x - x0
    return (
        data[:, y0, x0] * ((1 - fy) * (1 - fx))
        + data[:, y0, x1] * ((1 - fy) * fx)
        + data[:, y1, x0] * (fy * (1 - fx))
        + data[:, y1, x1] * (fy * fx)
    )


def _roi_align(inputs: Arrays) -> np.ndarray:
    """Mean of the samples of each cell; He et al., Mask R-CNN, ICCV 2017, section 3."""
    data = inputs["data"][0]
    limits = np.array(data.shape[1:])
    made = np.empty((len(inputs["regions"]), len(data), POOLED, POOLED), "float32")
    step = (np.arange(POOLED * SAMPLES) + 0.5) / (POOLED * SAMPLES)
    for number, (x1, y1, x2, y2) in enumerate(inputs["regions"].astype("float64")):
        points = [(low + (high - low) * step) / STRIDE - 0.5 for low, high in ((y1, y2), (x1, x2))]
        inside = [(p >= -1) & (p <= limit) for p, limit in zip(points, limits, strict=True)]
        y, x = (np.clip(p, 0, limit - 1) for p, limit in zip(points, limits, strict=True))
        samples = _bilinear(data, *np.meshgrid(y, x, indexing="ij"))
        samples *= inside[0][:, None] & inside[1]
        cells = samples.reshape(len(data), POOLED, SAMPLES, POOLED, SAMPLES)
        made[number] = cells.mean(axis=(2, 4))
    return made


def _roi_pool(inputs: Arrays) -> np.ndarray:
    """Maximum of each cell; Girshick, Fast R-CNN, ICCV 2015, section 2.1."""
    data = inputs["data"][0]
    height, width = data.shape[1:]
    made = np.zeros((len(inputs["regions"]), len(data), POOLED, POOLED), "float32")
    scaled = np.floor(inputs["regions"][:, 1:] / np.float32(STRIDE) + np.float32(0.5)).astype(int)
    for number, (x1, y1, x2, y2) in enumerate(scaled):
        rows = _cells(y1, y2, height)
        columns = _cells(x1, x2, width)
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(columns):
                if bottom > top and right > left:
                    made[number, :, i, j] = data[:, top:bottom, left:right].max(axis=(1, 2))
    return made


def _cells(low: int, high: int, limit: int) -> list[tuple[int, int]]:
    side = np.float32(max(high - low + 1, 1)) / np.float32(POOLED)
    starts = np.floor(np.arange(POOLED, dtype="float32") * side).astype(int) + low
    stops = np.ceil(np.arange(1, POOLED + 1, dtype="float32") * side).astype(int) + low
    return list(zip(np.clip(starts, 0, limit), np.clip(stops, 0, limit), strict=True))


def _resize(inputs: Arrays) -> np.ndarray:
    data = inputs["data"][0]
    y, x = (np.clip((np.arange(2 * size) + 0.5) / 2 - 0.5, 0, size - 1) for size in data.shape[1:])
    made: np.ndarray = _bilinear(data, *np.meshgrid(y, x, indexing="ij"))[None].astype("float32")
    return made


def _grid_sample(inputs: Arrays) -> np.ndarray:
    data = np.pad(inputs["data"][0], [(0, 0), (2, 2), (2, 2)])  # of zeros
    grid = inputs["grid"][0].astype("float64")
    y, x = (
        np.clip(((grid[..., axis] + 1) * (size - 4) - 1) / 2, -1, size - 4) + 2
        for axis, size in ((1, data.shape[1]), (0, data.shape[2]))
    )
    made: np.ndarray = _bilinear(data, y, x)[None].astype("float32")
    return made


def _multibox(inputs: Arrays) -> dict[str, np.ndarray]:
    """Rows of class, score, corners, in the order of the anchors, with -1 after them."""
    classes = inputs["probabilities"][0, 1:]
    low, high = inputs["anchors"][..., :2], inputs["anchors"][..., 2:]
    anchors = np.concatenate([(low + high) / 2, high - low], axis=-1)
    boxes = _decode({"encodings": inputs["encodings"].reshape(anchors.shape), "anchors": anchors})
    best, score = classes.argmax(axis=0).astype("float32"), classes.max(axis=0)
    taken = score >= np.float32(MULTIBOX_THRESHOLD)
    rows = np.full((1, len(taken), 6), -1, "float32")
    found = np.concatenate([best[:, None], score[:, None], boxes[0].clip(0, 1)], axis=1)
    rows[0, : taken.sum()] = found[taken]
    return {"rows": rows, "counts": np.array([taken.sum()], "int32")}


def _decode(inputs: Arrays) -> np.ndarray:
    """SSD's: centres off by tenths of the anchor's size, sizes by an exponential of fifths."""
    encodings, anchors = (inputs[name].astype("float64") for name in ("encodings", "anchors"))
    centre = encodings[..., :2] * 0.1 * anchors[..., 2:] + anchors[..., :2]
    half = np.exp(encodings[..., 2:] * 0.2) * anchors[..., 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=-1).astype("float32")


_LAYERS: Mapping[str, Callable[[Arrays], np.ndarray]] = {
    "roi_align": _roi_align,
    "roi_pool": _roi_pool,
    "resize": _resize,
    "grid_sample": _grid_sample,
    "nonzero": lambda inputs: np.stack(np.nonzero(inputs["data"])).astype("int64"),
    "decode": _decode,
}
