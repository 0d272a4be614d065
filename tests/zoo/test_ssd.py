"""The detector's anchors, decoding and suppression, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tvm_edge import zoo
from tvm_edge.zoo.anchors import ssd_anchors

MAPS_300 = [(19, 19), (10, 10), (5, 5), (3, 3), (2, 2), (1, 1)]
IOU, SCORE, PER_CLASS = 0.6, 0.5, 100

Models = Callable[[str], onnx.ModelProto]


@pytest.fixture
def detect(full: Models, session: Callable[..., Any]) -> Callable[[int], dict[str, Any]]:
    """Outputs of the full-size detector for a seed of its sample input."""
    model = full("ssd_mobilenet_v1")
    run = session(model)
    return lambda seed: run(zoo.sample_input(model, seed))


def overlap(box: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intersection over union of one box with many."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    ratio: NDArray[np.float32] = shared / (np.prod(box[2:] - box[:2]) + areas - shared)
    return ratio


def test_published_anchors() -> None:
    anchors = ssd_anchors(MAPS_300, (300, 300))
    assert anchors.shape == (1917, 4)
    # The object detection API's first cell: 0.1 square, then 0.2 at 2:1 and at 1:2.
    root = np.sqrt(2)
    centre = 0.5 / 19
    np.testing.assert_allclose(
        anchors[:3],
        [
            [centre, centre, 0.1, 0.1],
            [centre, centre, 0.2 / root, 0.2 * root],
            [centre, centre, 0.2 * root, 0.2 / root],
        ],
        rtol=1e-6,
    )
    # The last cell: 0.95 at five aspect ratios, and the square between 0.95 and 1.
    np.testing.assert_allclose(anchors[-6:, :2], 0.5)
    np.testing.assert_allclose(anchors[-6:, 3] / anchors[-6:, 2], [1, 2, 1 / 2, 3, 1 / 3, 1], 1e-6)
    areas = np.prod(anchors[-6:, 2:], axis=1)
    np.testing.assert_allclose(areas, [0.95**2] * 5 + [0.95], rtol=1e-6)


def test_anchors_run_over_columns_before_rows() -> None:
    anchors = ssd_anchors([(2, 3)] * 6, (200, 300))[:18].reshape(2, 3, 3, 4)
    np.testing.assert_allclose(anchors[0, :, 0, 1], [1 / 6, 1 / 2, 5 / 6], rtol=1e-6)
    np.testing.assert_allclose(anchors[:, 0, 0, 0], [1 / 4, 3 / 4], rtol=1e-6)


def test_a_square_anchor_is_square_in_pixels() -> None:
    height, width = (ssd_anchors(MAPS_300, (200, 400))[0, 2:] * (200, 400)).tolist()
    assert height == pytest.approx(width) == pytest.approx(0.1 * 200)


@pytest.mark.parametrize(("size", "anchors"), [(300, 1917), ((128, 256), 648), (33, 75)])
def test_anchors_follow_the_feature_maps(size: Any, anchors: int) -> None:
    model = zoo.build("ssd_mobilenet_v1", image_size=size, width=0.1)
    (boxes,) = [o for o in model.graph.output if o.name == "boxes"]
    assert [d.dim_value for d in boxes.type.tensor_type.shape.dim] == [1, anchors, 4]


@pytest.mark.parametrize("seed", range(3))
def test_a_picture_shows_some_objects_of_some_classes(
    seed: int, detect: Callable[[int], dict[str, Any]]
) -> None:
    out = detect(seed)
    candidates = int((out["scores"] > SCORE).sum())
    assert 10 <= len(out["selected"]) <= 500
    assert 5 <= len(set(out["detection_classes"])) < 60
    # Overlaps that suppression has to remove: at least one candidate in twenty.
    assert len(out["selected"]) < 0.95 * candidates
    # Neither all alike nor saturated, where many scores would be the same float.
    assert SCORE < out["detection_scores"].min() < 0.6
    assert 0.75 < out["detection_scores"].max() < 0.9999
    assert len(np.unique(out["detection_scores"])) > 0.95 * len(out["detection_scores"])


def test_detections_follow_the_picture(detect: Callable[[int], dict[str, Any]]) -> None:
    one, other = ({tuple(row) for row in detect(seed)["selected"]} for seed in (0, 1))
    assert len(one & other) < 0.8 * min(len(one), len(other))


def test_boxes_are_decoded_from_the_anchors(small: Models, session: Callable[..., Any]) -> None:
    model = small("ssd_mobilenet_v1")
    out = session(model, ["postprocess/encodings:0", "boxes"])(zoo.sample_input(model))
    ty, tx, th, tw = (out["postprocess/encodings:0"][0] / (10, 10, 5, 5)).T
    y, x, h, w = ssd_anchors([(8, 8), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)], (128, 128)).T
    y, x, h, w = ty * h + y, tx * w + x, np.exp(th) * h, np.exp(tw) * w
    expected = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=1)
    np.testing.assert_allclose(out["boxes"][0], expected, atol=1e-5)
    assert np.abs(out["postprocess/encodings:0"]).mean() > 0.2  # or the decoder would be idle


def test_scores_are_the_sigmoid_without_the_background(
    small: Models, session: Callable[..., Any]
) -> None:
    model = small("ssd_mobilenet_v1")
    out = session(model, ["postprocess/logits:0", "scores"])(zoo.sample_input(model))
    expected = 1 / (1 + np.exp(-out["postprocess/logits:0"].astype(np.float64)))
    np.testing.assert_allclose(out["scores"], expected.transpose(0, 2, 1)[:, 1:], atol=1e-6)


def test_suppression_is_greedy_per_class(detect: Callable[[int], dict[str, Any]]) -> None:
    out = detect(0)
    boxes, expected = out["boxes"][0], []
    for index, scores in enumerate(out["scores"][0]):
        kept: list[int] = []
        for box in np.argsort(-scores, kind="stable"):
            if scores[box] <= SCORE or len(kept) == PER_CLASS:
                break
            if not kept or overlap(boxes[box], boxes[kept]).max() <= IOU:
                kept.append(int(box))
        expected += [[0, index, box] for box in kept]
    np.testing.assert_array_equal(out["selected"], expected)


def test_detections_are_what_is_selected(session: Callable[..., Any]) -> None:
    model = zoo.build("ssd_mobilenet_v1", image_size=128, width=0.25, batch=2)
    out = session(model)(zoo.sample_input(model))
    picture, index, box = out["selected"].T
    assert set(picture) == {0, 1}
    np.testing.assert_array_equal(out["detection_boxes"], out["boxes"][picture, box])
    np.testing.assert_array_equal(out["detection_scores"], out["scores"][picture, index, box])
    np.testing.assert_array_equal(out["detection_classes"], index + 1)
