"""Suppression and the outputs after it, at every detector's end, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from tests.detections import iou
from tests.zoo.networks import DETECTORS, marked
from tvm_edge import zoo

PER_CLASS = 100


@dataclass(frozen=True)
class Thresholds:
    iou: float
    score: float
    first_class: int


THRESHOLDS = {
    "faster_rcnn_head": Thresholds(0.5, 0.5, 0),
    "ssd_mobilenet_v1": Thresholds(0.6, 0.5, 1),
    "ssd_mobilenet_v1_512": Thresholds(0.6, 0.5, 1),
    "ssd_resnet50_v1": Thresholds(0.45, 0.5, 0),
    "yolov1": Thresholds(0.5, 0.2, 0),
    "yolov1_large": Thresholds(0.5, 0.2, 0),
    "yolov1_medium": Thresholds(0.5, 0.2, 0),
    "yolov1_small": Thresholds(0.5, 0.2, 0),
    "yolov3": Thresholds(0.45, 0.5, 0),
}
# Of 98 boxes few are objects.
MANY = tuple(name for name in DETECTORS if not name.startswith("yolov1"))

Detect = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, int], dict[str, Any]]:
    """Return the results of earlier runs."""
    return {}


@pytest.fixture
def detect(
    full: Callable[[str], onnx.ModelProto], session: Callable[..., Any], results: Any
) -> Detect:
    """Outputs of a full-size detector for a seed of its sample input."""

    def run(name: str, seed: int) -> dict[str, Any]:
        if (name, seed) not in results:
            run_model = session(full(name))
            for each in range(3):
                results[name, each] = run_model(zoo.sample_input(name, each))
        out: dict[str, Any] = results[name, seed]
        return out

    return run


@pytest.mark.parametrize("name", marked(MANY))
@pytest.mark.parametrize("seed", range(3))
def test_a_picture_shows_some_objects_of_some_classes(name: str, seed: int, detect: Detect) -> None:
    out = detect(name, seed)
    score = THRESHOLDS[name].score
    candidates = int((out["scores"] > score).sum())
    assert 10 <= len(out["selected"]) <= 500
    assert 5 <= len(set(out["detection_classes"])) < 60
    # Overlaps that suppression has to remove: at least one candidate in twenty.
    assert len(out["selected"]) < 0.95 * candidates
    # Neither all alike nor saturated, where many scores would be the same float.
    assert score < out["detection_scores"].min() < 0.6
    assert 0.75 < out["detection_scores"].max() < 0.9999
    assert len(np.unique(out["detection_scores"])) > 0.95 * len(out["detection_scores"])


@pytest.mark.parametrize("name", marked(DETECTORS))
def test_boxes_are_corners_about_the_picture(name: str, detect: Detect) -> None:
    boxes = detect(name, 0)["boxes"]
    sizes = boxes[..., 2:] - boxes[..., :2]
    assert (sizes > 0).all()
    centres = (boxes[..., 2:] + boxes[..., :2]) / 2
    assert ((centres > -0.5) & (centres < 1.5)).all()
    assert centres.std(axis=1).min() > 0.1  # all over it
    assert len(np.unique(boxes[0], axis=0)) == boxes.shape[1]


@pytest.mark.parametrize("name", marked(DETECTORS))
def test_detections_follow_the_picture(name: str, detect: Detect) -> None:
    one, other = ({tuple(row) for row in detect(name, seed)["selected"]} for seed in (0, 1))
    assert len(one & other) < 0.8 * min(len(one), len(other))


@pytest.mark.parametrize("name", marked(DETECTORS))
def test_suppression_is_greedy_per_class(name: str, detect: Detect) -> None:
    out = detect(name, 0)
    limits, expected = THRESHOLDS[name], []
    # With boxes of their own, classes count as pictures: one class in each.
    for picture, (boxes, lists) in enumerate(zip(out["boxes"], out["scores"], strict=True)):
        for index, scores in enumerate(lists):
            kept: list[int] = []
            for box in np.argsort(-scores, kind="stable"):
                if scores[box] <= limits.score or len(kept) == PER_CLASS:
                    break
                if not kept or iou(boxes[[box]], boxes[kept]).max() <= limits.iou:
                    kept.append(int(box))
            expected += [[picture, index, box] for box in kept]
    np.testing.assert_array_equal(out["selected"], expected)


@pytest.mark.parametrize("name", marked(DETECTORS))
def test_detections_are_what_is_selected(name: str, session: Callable[..., Any]) -> None:
    model = zoo.build(name, image_size=192, width=0.25, batch=2)
    out = session(model)(zoo.sample_input(model))
    picture, index, box = out["selected"].T
    np.testing.assert_array_equal(out["detection_boxes"], out["boxes"][picture, box])
    np.testing.assert_array_equal(out["detection_scores"], out["scores"][picture, index, box])
    if out["scores"].shape[1] == 1:  # a picture has as many lists as classes
        picture, index = np.divmod(picture, len(out["scores"]) // 2)
    assert set(picture) == {0, 1}
    np.testing.assert_array_equal(out["detection_classes"], index + THRESHOLDS[name].first_class)
