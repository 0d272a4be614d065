"""Suppression of rows, soft suppression, and whole heads, against their definitions in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.schedules.vision.harness import run_operator
from tvm_edge import ops
from tvm_edge.schedules.vision.proposal import base_anchors


def iou(a: np.ndarray, b: np.ndarray) -> float:
    """Of two boxes given by corners, either of which may be the lower one."""
    a, b = (np.concatenate([np.minimum(x[:2], x[2:]), np.maximum(x[:2], x[2:])]) for x in (a, b))
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if (sides <= 0).any():
        return 0.0
    shared = sides.prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


def corners(box: np.ndarray) -> np.ndarray:
    """Of centre and size."""
    return np.concatenate([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])


def greedy(boxes: np.ndarray, threshold: float, labels: np.ndarray | None = None) -> list[int]:
    """What stays of boxes in order."""
    kept: list[int] = []
    for i, box in enumerate(boxes):
        rivals = [k for k in kept if labels is None or labels[k] == labels[i]]
        if all(iou(boxes[k], box) <= threshold for k in rivals):
            kept.append(i)
    return kept


def table(seed: int, batch: int, boxes: int, dtype: str = "float32") -> np.ndarray:
    """Rows of class (-1 to 2), score and the corners of a box."""
    random = np.random.default_rng(seed)
    low = random.random((batch, boxes, 2)) * 4
    corner = np.concatenate([low, low + random.random((batch, boxes, 2)) * 2 + 0.2], -1)
    labels = random.integers(-1, 3, (batch, boxes, 1))
    scores = random.permutation(np.linspace(-0.2, 1, batch * boxes)).reshape(batch, boxes, 1)
    return np.concatenate([labels, scores, corner], -1).astype(dtype)


def expected_rows(
    data: np.ndarray,
    threshold: float,
    *,
    valid: float = 0.0,
    topk: int = -1,
    by_class: bool = False,
    background: int | None = None,
    center: bool = False,
) -> tuple[np.ndarray, list[int]]:
    """The definition of ``box_nms``."""
    result, counts = np.full_like(data, -1), []
    for rows, out in zip(data, result, strict=True):
        order = [i for i in np.argsort(-rows[:, 1], kind="stable") if rows[i, 1] > valid]
        order = [i for i in order if background is None or rows[i, 0] != background]
        order = order[:topk] if topk >= 0 else order
        wide = rows[order].astype("float64")
        boxes = [corners(row[2:6]) if center else row[2:6] for row in wide]
        kept = greedy(np.array(boxes), threshold, wide[:, 0] if by_class else None)
        out[: len(kept)] = rows[order][kept]
        counts.append(len(kept))
    return result, counts


@pytest.mark.diagonals(4)
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"overlap_thresh": 0.3}, {}),
        ({"overlap_thresh": 0.3, "id_index": 0}, {"by_class": True}),
        ({"overlap_thresh": 0.3, "id_index": 0, "force_suppress": True, "topk": 20}, {"topk": 20}),
        (
            {"overlap_thresh": 0.2, "valid_thresh": 0.5, "id_index": 0, "background_id": 1},
            {"valid": 0.5, "by_class": True, "background": 1},
        ),
        ({"overlap_thresh": 0.4, "in_format": "center", "topk": 0}, {"center": True, "topk": 0}),
        ({"overlap_thresh": 0.4, "in_format": "center"}, {"center": True}),
    ],
    ids=["all", "by class", "forced", "background", "topk 0", "center"],
)
def test_box_nms(target: str, how: dict[str, Any], expected: dict[str, Any]) -> None:
    data = table(3, 2, 70)
    rows, counts = run_operator(target, lambda x: ops.box_nms(x, **how), data)
    wanted, number = expected_rows(data, how["overlap_thresh"], **expected)
    np.testing.assert_array_equal(rows, wanted)
    assert counts.tolist() == number


def test_box_nms_of_half_precision_and_other_columns() -> None:
    """Score last, box first; columns that mean nothing come along."""
    data = table(5, 1, 40, "float16")[..., [2, 3, 4, 5, 0, 0, 1]]
    rows, counts = run_operator(
        "llvm",
        lambda x: ops.box_nms(x, overlap_thresh=0.3, coord_start=0, score_index=6, id_index=4),
        data,
    )
    wanted, number = expected_rows(data[..., [4, 6, 0, 1, 2, 3]], 0.3, by_class=True)
    np.testing.assert_array_equal(rows[..., [4, 6, 0, 1, 2, 3]], wanted)
    assert counts.tolist() == number


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("soft", [False, True])
def test_rows_of_no_numbers(target: str, soft: bool) -> None:
    """Undefined scores take no part; boxes without an area suppress nothing and stay."""
    data = np.array(
        [
            [0, 0.9, 0, 0, 2, 2],
            [0, np.nan, 0, 0, 2, 2],  # no score
            [0, np.inf, np.nan, 0, 2, 2],  # no box
            [0, 0.8, 0, 0, np.inf, 2],
            [0, 0.7, 1, 1, 1, 3],  # no area
            [0, 0.6, 2, 2, 0, 0],  # the first one from its other corner
            [0, -np.inf, 5, 5, 6, 6],
        ],
        "float32",
    )
    rows, counts = run_operator(
        target, lambda x: ops.box_nms(x, soft_nms_sigma=0.5 if soft else 0.0), data[None]
    )
    np.testing.assert_array_equal(rows[0], [*data[[2, 0, 3, 4]], *np.full((3, 6), -1)])
    assert counts.tolist() == [4]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("hard", [1.0, 0.5])
def test_soft_nms(target: str, by_class: bool, hard: float) -> None:
    data = table(7, 2, 60)
    sigma, least = 0.3, 0.1
    rows, counts = run_operator(
        target,
        lambda x: ops.box_nms(
            x,
            overlap_thresh=hard,
            valid_thresh=least,
            soft_nms_sigma=sigma,
            id_index=0 if by_class else -1,
        ),
        data,
    )
    for table_, out, count in zip(data.astype("float64"), rows, counts, strict=True):
        scores, chosen = table_[:, 1].copy(), []
        while (scores > least).any():
            best = int(scores.argmax())
            chosen.append([table_[best, 0], scores[best], *table_[best, 2:]])
            scores[best] = -1
            for i in np.flatnonzero(scores > -1):
                if by_class and table_[i, 0] != table_[best, 0]:
                    continue
                over = iou(table_[best, 2:], table_[i, 2:])
                scores[i] = -1 if over > hard else scores[i] * np.exp(-(over**2) / (2 * sigma))
        assert count == len(chosen)
        np.testing.assert_allclose(out[:count], chosen, rtol=1e-5)
        assert (out[count:] == -1).all()


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("wanted", "background"), [(10, -1), (400, 2)])
def test_efficient_nms(target: str, wanted: int, background: int) -> None:
    random = np.random.default_rng(11)
    batch, boxes, classes = 2, 60, 4
    box = table(11, batch, boxes)[..., 2:]
    scores = random.random((batch, boxes, classes), "float32")
    scores[1] *= 0.5  # none above the threshold
    number, found, values, labels = run_operator(
        target,
        lambda b, s: ops.efficient_nms(
            b,
            s,
            max_output_boxes=wanted,
            iou_threshold=0.4,
            score_threshold=0.5,
            background_class=background,
        ),
        box,
        scores,
    )
    for i in range(batch):
        rows = []
        for c in range(classes):
            order = np.argsort(-scores[i, :, c], kind="stable")
            order = order[scores[i, order, c] > 0.5] if c != background else order[:0]
            kept = greedy(box[i, order].astype("float64"), 0.4)
            rows += [(-scores[i, order[k], c], c, order[k]) for k in kept]
        rows = sorted(rows)[:wanted]
        count = len(rows)
        assert number[i] == count
        assert labels[i].tolist() == [c for _, c, _ in rows] + [-1] * (wanted - count)
        np.testing.assert_array_equal(values[i, :count], [-score for score, _, _ in rows])
        np.testing.assert_array_equal(found[i, :count], box[i, [b for _, _, b in rows]])
        assert not values[i, count:].any()
        assert not found[i, count:].any()


def proposals(
    scores: np.ndarray,
    codes: np.ndarray,
    info: np.ndarray,
    stride: int,
    most: int,
    threshold: float,
) -> Iterator[list[np.ndarray]]:
    """The regions of each picture: py-faster-rcnn's proposal layer, without the cut before NMS."""
    anchors = base_anchors(stride, SCALES, RATIOS).astype("float64")
    count, (height, width) = len(anchors), scores.shape[2:]
    for picture in range(len(scores)):
        rows = []
        for y in range(height):
            for x in range(width):
                for a, anchor in enumerate(anchors):
                    box = anchor + stride * np.array([x, y, x, y])
                    size = box[2:] - box[:2] + 1
                    code = codes[picture, 4 * a : 4 * a + 4, y, x].astype("float64")
                    centre = code[:2] * size + box[:2] + (size - 1) / 2
                    half = (np.exp(code[2:]) * size - 1) / 2
                    limit = np.tile(info[picture, 1::-1] - 1, 2)
                    box = np.clip(np.concatenate([centre - half, centre + half]), 0, limit)
                    score = float(scores[picture, count + a, y, x])
                    least = 4 * info[picture, 2]
                    if (box[2:] - box[:2] + 1 < least).any():
                        score, box = -1.0, box + np.array([-1, -1, 1, 1]) * least / 2
                    rows.append((-score, len(rows), box))
        rows.sort(key=lambda row: row[:2])
        boxes = np.array([row[2] for row in rows])
        kept = greedy(boxes + np.array([0, 0, 1, 1]), threshold)[:most]
        yield [boxes[k] for k in kept]


SCALES, RATIOS = (1.0, 2.0), (0.5, 1.0, 2.0)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("most", "threshold"), [(20, 0.6), (200, 0.01)])
def test_proposal(target: str, most: int, threshold: float) -> None:
    random = np.random.default_rng(13)
    shape = (2, len(SCALES) * len(RATIOS), 4, 5)
    scores = random.random((2, 2 * shape[1], *shape[2:]), "float32")
    codes = random.normal(0, 0.4, (2, 4 * shape[1], *shape[2:])).astype("float32")
    info = np.array([[64, 80, 1.0], [64, 80, 2.0]], "float32")
    (found,) = run_operator(
        target,
        lambda *tensors: ops.proposal(
            *tensors,
            scales=SCALES,
            ratios=RATIOS,
            rpn_post_nms_top_n=most,
            threshold=threshold,
            rpn_min_size=4,
        ),
        scores,
        codes,
        info,
    )
    most = min(most, shape[1] * shape[2] * shape[3])
    assert found.shape == (2 * most, 5)
    for i, boxes in enumerate(proposals(scores, codes, info, 16, most, threshold)):
        rows = found[i * most : (i + 1) * most]
        assert (rows[:, 0] == i).all()
        again = np.array(boxes)[np.arange(most) % len(boxes)]
        np.testing.assert_allclose(rows[:, 1:], again, rtol=1e-4, atol=1e-3)


def test_anchors_are_those_of_faster_rcnn() -> None:
    """The table in py-faster-rcnn's generate_anchors.py."""
    anchors = base_anchors(16, (8, 16, 32), (0.5, 1, 2))
    assert anchors[0].tolist() == [-84, -40, 99, 55]
    assert anchors[4].tolist() == [-120, -120, 135, 135]
    assert anchors[8].tolist() == [-168, -344, 183, 359]


def test_multibox_detection(target: str) -> None:
    random = np.random.default_rng(17)
    batch, classes, anchors = 2, 3, 50
    probabilities = random.random((batch, classes, anchors), "float32")
    codes = random.normal(0, 0.5, (batch, 4 * anchors)).astype("float32")
    low = random.random((1, anchors, 2))
    prior = np.concatenate([low, low + 0.3], -1).astype("float32")
    (found,) = run_operator(
        target,
        lambda *tensors: ops.multibox_detection(*tensors, threshold=0.3, nms_threshold=0.4),
        probabilities,
        codes,
        prior,
    )
    (decoded, _) = run_operator(
        "llvm",
        lambda *tensors: ops.multibox_transform_loc(*tensors, threshold=0.3),
        probabilities,
        codes,
        prior,
    )
    wanted, _ = expected_rows(decoded, 0.4, valid=-1, by_class=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.box_nms(x, overlap_thresh=1.5), "overlap_thresh is 1.5"),
        (lambda x: ops.box_nms(x, overlap_thresh=float("nan")), "overlap_thresh is nan"),
        (lambda x: ops.box_nms(x, coord_start=3), "no coord_start 3"),
        (lambda x: ops.box_nms(x, in_format="polar"), "neither corner nor center"),
        (lambda x: ops.box_nms(x, soft_nms_sigma=0.5, topk=3), "no topk"),
        (lambda x: ops.efficient_nms(x, x), "do not fit"),
    ],
)
def test_senseless_attributes_are_refused(build: Any, message: str) -> None:
    data = relax.Var("x", relax.TensorType((1, 9, 6), "float32"))
    with pytest.raises(ValueError, match=message):
        relax.BlockBuilder().normalize(build(data))
