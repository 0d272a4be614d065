"""YOLO's boxes and scores, decoded from the last layer, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tvm_edge import zoo


@pytest.fixture(scope="module")
def cells() -> tuple[Any, int, int]:
    """A reduced model of 3x4 cells."""
    return zoo.build("yolov1", image_size=(192, 256), width=0.25), 3, 4


@pytest.fixture
def outputs(cells: tuple[Any, int, int], session: Callable[..., Any]) -> dict[str, NDArray[Any]]:
    names = [o.name for o in cells[0].graph.output]
    run = session(cells[0], ["fc2:0", *names])
    result: dict[str, NDArray[Any]] = run(zoo.sample_input(cells[0]))
    return result


def test_decoding(cells: tuple[Any, int, int], outputs: dict[str, NDArray[Any]]) -> None:
    _, height, width = cells
    raw = outputs["fc2:0"].reshape(height, width, 30)
    boxes, scores = [], []
    for row in range(height):
        for column in range(width):
            cell = raw[row, column]
            for x, y, w, h, confidence in cell[:10].reshape(2, 5):
                centre = np.array([(row + y) / height, (column + x) / width])
                half = np.array([h**2, w**2]) / 2
                boxes.append([*(centre - half), *(centre + half)])
                scores.append(confidence * cell[10:])
    # Float32, a handful of operations on numbers of unit scale.
    np.testing.assert_allclose(outputs["boxes"][0], boxes, atol=1e-6)
    np.testing.assert_allclose(outputs["scores"][0], np.transpose(scores), atol=1e-6)


def test_the_numbers_of_a_cell_are_what_a_trained_one_has(
    outputs: dict[str, NDArray[Any]],
) -> None:
    raw = outputs["fc2:0"].reshape(-1, 30)
    for first in (0, 5):
        centres, roots, confidences = np.split(raw[:, first : first + 5], [2, 4], axis=1)
        assert 0.2 < centres.mean() < 0.8
        assert 0.1 < centres.std()
        assert 0.15 < roots.min() and roots.max() < 0.85
        assert 0.2 < confidences.mean() < 0.6
    assert abs(raw[:, 10:].mean()) < 0.1


def test_detections_are_what_is_selected(outputs: dict[str, NDArray[Any]]) -> None:
    picture, index, box = outputs["selected"].T
    assert len(box) >= 5
    np.testing.assert_array_equal(outputs["detection_boxes"], outputs["boxes"][picture, box])
    np.testing.assert_array_equal(
        outputs["detection_scores"], outputs["scores"][picture, index, box]
    )
    np.testing.assert_array_equal(outputs["detection_classes"], index)
    assert outputs["detection_scores"].min() > 0.2  # Darknet's threshold


@pytest.mark.full
@pytest.mark.parametrize("name", ["yolov1", "yolov1_large", "yolov1_medium", "yolov1_small"])
def test_a_picture_shows_some_objects_of_some_classes(
    name: str, session: Callable[..., Any]
) -> None:
    model = zoo.build(name)
    run = session(model)
    suppressed = 0
    for seed in range(3):
        out = run(zoo.sample_input(model, seed))
        suppressed += int((out["scores"] > 0.2).sum()) - len(out["selected"])
        assert 10 <= len(out["selected"]) <= 200  # of 1960
        assert len(set(out["detection_classes"])) >= 5
        # Products of two linear outputs, which nothing bounds; trained ones stay about 1.
        assert out["scores"].max() < 1.5
    assert suppressed > 0  # some overlap
