"""The two stages of Faster R-CNN: proposals and heads, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.detections import iou
from tvm_edge import zoo
from tvm_edge.zoo.anchors import ssd_anchors

Models = Callable[[str], onnx.ModelProto]

SCALES, RATIOS = (0.25, 0.5, 1.0), (0.5, 1.0, 2.0)
SHAPES = [(scale, ratio) for scale in SCALES for ratio in RATIOS]


def decoded(encodings: NDArray[Any], boxes: NDArray[Any]) -> NDArray[Any]:
    """Corners from encodings relative to centre y, x, height, width."""
    ty, tx, th, tw = np.moveaxis(encodings / (10, 10, 5, 5), -1, 0)
    y, x, h, w = np.moveaxis(boxes, -1, 0)
    y, x, h, w = ty * h + y, tx * w + x, np.exp(th) * h, np.exp(tw) * w
    return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)


@pytest.fixture
def values(small: Models, session: Callable[..., Any]) -> dict[str, Any]:
    """Tensors of a reduced network, of 576 anchors."""
    model = small("faster_rcnn_head")
    names = (
        "rpn/box/reshape:0",
        "rpn/objectness/reshape:0",
        "rpn/proposals:0",
        "roi/align:0",
        "lateral:0",
        "roi/box:0",
        "roi/class:0",
        "boxes",
        "scores",
    )
    out: dict[str, Any] = session(model, names)(zoo.sample_input(model))
    return out


def test_proposals_are_the_best_that_suppression_leaves(values: dict[str, Any]) -> None:
    anchors = ssd_anchors([(8, 8)], (128, 128), [SHAPES])
    boxes = np.clip(decoded(values["rpn/box/reshape:0"][0], anchors), 0, 1)
    scores = values["rpn/objectness/reshape:0"][0, :, 0]
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if not kept or iou(boxes[[box]], boxes[kept]).max() <= 0.7:
            kept.append(int(box))
    assert 100 < len(kept) < 500  # or the suppression would have nothing to do
    np.testing.assert_allclose(values["rpn/proposals:0"][0], boxes[kept[:100]], atol=1e-5)


def test_the_best_of_the_suppressed_fill_the_list(session: Callable[..., Any]) -> None:
    # 3x3 cells have 81 anchors: all become proposals, the suppressed ones last.
    model = zoo.build("faster_rcnn_head", image_size=33, width=0.1)
    names = ["rpn/objectness/reshape:0", "rpn/nms:0", "rpn/best:1"]
    scores, kept, best = session(model, names)(zoo.sample_input(model)).values()
    kept, order = kept[:, 2], best[0, 0]
    assert 20 < len(kept) < 81
    assert sorted(order) == list(range(81))
    np.testing.assert_array_equal(order[: len(kept)], kept)
    assert (np.diff(scores[0, order[len(kept) :], 0]) <= 0).all()


def test_a_region_is_pooled_from_its_place(values: dict[str, Any]) -> None:
    x, proposals = values["lateral:0"][0], values["rpn/proposals:0"][0]
    pooled = values["roi/align:0"]
    assert pooled.shape == (100, x.shape[0], 7, 7)
    picks = np.argsort(-np.prod(proposals[:, 2:] - proposals[:, :2], axis=1))[:5]
    for pick in picks:
        top, left, bottom, right = proposals[pick] * 8 - 0.5
        # The centre of the middle bin is the centre of the region, bilinear over four pixels.
        rows = top + (bottom - top) * (3 + np.array([0.25, 0.75])) / 7
        columns = left + (right - left) * (3 + np.array([0.25, 0.75])) / 7
        samples = [
            sum(
                max(0.0, 1 - abs(r - i)) * max(0.0, 1 - abs(c - j)) * x[:, i, j]
                for i in range(8)
                for j in range(8)
            )
            for r in rows
            for c in columns
        ]
        np.testing.assert_allclose(pooled[pick, :, 3, 3], np.mean(samples, axis=0), atol=1e-5)


def test_every_class_has_its_own_box(values: dict[str, Any]) -> None:
    low, high = np.split(values["rpn/proposals:0"][0], 2, axis=1)
    regions = np.concatenate([(low + high) / 2, high - low], axis=1)
    encodings = values["roi/box:0"].reshape(100, 80, 4)
    assert np.abs(encodings).mean() > 0.2  # or the decoder would be idle
    assert np.abs(encodings - encodings[:, :1]).mean() > 0.2  # classes differ
    expected = decoded(encodings, regions[:, None]).transpose(1, 0, 2)
    np.testing.assert_allclose(values["boxes"], expected, atol=1e-5)


def test_scores_are_the_softmax_without_the_background(values: dict[str, Any]) -> None:
    logits = values["roi/class:0"].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(values["scores"][:, 0], expected.T[1:], atol=1e-6)


def test_anchors_are_128_256_and_512_pixels() -> None:
    sizes = ssd_anchors([(32, 32)], (512, 512), [SHAPES])[:9, 2:] * 512
    areas = np.prod(sizes, axis=1).reshape(3, 3)
    np.testing.assert_allclose(areas, np.array([[128], [256], [512]]) ** 2 * np.ones(3), rtol=1e-5)
