"""Mean average precision, against cases that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_edge.zoo.average_precision import (
    Detections,
    Truth,
    average_precision,
    box_iou,
    mean_average_precision,
)

A, B, C = (0.0, 0.0, 10.0, 10.0), (20.0, 20.0, 30.0, 30.0), (50.0, 0.0, 60.0, 10.0)
NOWHERE = (90.0, 90.0, 95.0, 95.0)


def truth(*objects: tuple[tuple[float, ...], int]) -> Truth:
    boxes = np.array([box for box, _ in objects]).reshape(-1, 4)
    return boxes, np.array([label for _, label in objects], int)


def detections(*each: tuple[tuple[float, ...], float, int]) -> Detections:
    boxes = np.array([box for box, _, _ in each]).reshape(-1, 4)
    return boxes, np.array([s for _, s, _ in each]), np.array([c for _, _, c in each], int)


def test_overlap() -> None:
    others = np.array([A, (0.0, 5.0, 10.0, 15.0), B])
    np.testing.assert_allclose(box_iou(np.array([A]), others), [[1, 1 / 3, 0]])


def test_perfect() -> None:
    found = [detections((A, 0.9, 0), (B, 0.8, 1)), detections((C, 0.7, 0))]
    assert mean_average_precision(found, [truth((A, 0), (B, 1)), truth((C, 0))]) == 1.0


def test_nothing_found() -> None:
    assert mean_average_precision([detections()], [truth((A, 0))]) == 0.0


def test_by_hand() -> None:
    """Hit, miss, hit, and a second detection of what was found; one of three is missed.

    Precision is 1 at recall 1/3, and 2/3 at recall 2/3: (1 + 2/3) / 3. The order of the pictures
    does not matter, that of the scores does.
    """
    found = [
        detections((B, 0.7, 0), (A, 0.9, 0), (A, 0.6, 0)),
        detections((NOWHERE, 0.8, 0)),
    ]
    true = [truth((A, 0), (B, 0)), truth((C, 0))]
    assert average_precision(found, true, 0) == pytest.approx(5 / 9)
    assert average_precision(found[::-1], true[::-1], 0) == pytest.approx(5 / 9)


def test_precision_is_the_best_at_that_recall_or_above() -> None:
    """Miss, hit, hit: precision 1/2 at the first hit, but 2/3 at the second."""
    found = [detections((NOWHERE, 0.9, 0), (A, 0.8, 0), (B, 0.7, 0))]
    assert average_precision(found, [truth((A, 0), (B, 0))], 0) == pytest.approx(2 / 3)


def test_another_class_finds_nothing() -> None:
    found = [detections((A, 0.9, 1))]
    assert average_precision(found, [truth((A, 0), (B, 1))], 0) == 0.0


def test_classes_count_alike_and_only_if_they_are_there() -> None:
    found = [detections((A, 0.9, 0), (NOWHERE, 0.9, 7))]
    assert mean_average_precision(found, [truth((A, 0), (B, 1), (C, 1))]) == pytest.approx(0.5)


@pytest.mark.parametrize(("threshold", "value"), [(1 / 3, 1.0), (0.34, 0.0)])
def test_the_threshold_is_inclusive(threshold: float, value: float) -> None:
    found = [detections(((0.0, 5.0, 10.0, 15.0), 0.9, 0))]
    assert average_precision(found, [truth((A, 0))], 0, iou=threshold) == value
