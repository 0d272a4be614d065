"""Comparison with ONNX Runtime: what counts as right, dense outputs and lists of detections."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.models.against_onnx_runtime import TOLERANCE, Detections, compare_run, make_input
from benchmarks.models.export_cases import EXPORTS, REQUIREMENTS
from benchmarks.models.model_zoo_pypi import cases

_LIST = Detections(["boxes", "scores"], "scores", threshold=0.5)


def _detections(rows: list[int]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    boxes, scores = generator.random((9, 4)) * 100, 0.5005 + 0.04 * np.arange(9)
    return {"boxes": boxes[rows].astype("float32"), "scores": scores[rows].astype("float32")}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda y: y, "right"),
        (lambda y: y + 0.9 * TOLERANCE * np.abs(y).max(), "right"),
        (lambda y: y + 1.1 * TOLERANCE * np.abs(y).max(), "wrong"),
        (lambda y: np.where(y == y.max(), np.nan, y), "wrong"),
        (lambda y: y[:, :2], "wrong"),
        (lambda y: y.astype(np.float64), "wrong"),
    ],
    ids=["same", "near", "far", "nan", "shape", "type"],
)
def test_a_dense_output_is_right_within_the_tolerance(change, status) -> None:
    expected = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    found = compare_run({"y": change(expected)}, {"y": expected})
    assert found["status"] == status


def test_what_is_not_finite_has_to_be_the_same() -> None:
    expected = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert compare_run({"y": expected}, {"y": expected})["status"] == "right"
    for actual in ([0, np.inf, -np.inf, 1], [np.nan, 0, -np.inf, 1], [np.nan, np.inf, np.inf, 1]):
        found = compare_run({"y": np.array(actual, np.float32)}, {"y": expected})
        assert found["status"] == "wrong", actual


def test_no_later_output_hides_one_that_is_no_number() -> None:
    expected = {"x": np.ones(3, np.float32), "y": np.ones(3, np.float32)}
    actual = {"x": np.array([1, np.nan, 1], np.float32), "y": expected["y"]}
    found = compare_run(actual, expected)
    assert (
        found["status"] == "wrong"
        and found["detail"] == "x: 1 of 3 are not finite on one side alone"
    )


def test_integers_have_to_be_equal() -> None:
    labels = np.arange(5000)
    assert compare_run({"y": labels}, {"y": labels})["status"] == "right"
    assert compare_run({"y": labels + (labels == 7)}, {"y": labels})["status"] == "wrong"


def test_the_order_of_detections_does_not_matter() -> None:
    expected, actual = _detections([0, 1, 2, 3, 4]), _detections([3, 1, 4, 0, 2])
    found = compare_run(actual, expected, _LIST)
    assert found["status"] == "right"
    assert found["detections"] == "5 matched, 0 at a threshold, 0 missed"


@pytest.mark.parametrize(
    ("missing", "status"), [(0, "right"), (3, "wrong")], ids=["at the threshold", "above"]
)
def test_a_detection_may_be_missing_at_the_threshold_alone(missing: int, status: str) -> None:
    every = [0, 1, 2, 3, 4]
    some = [row for row in every if row != missing]
    assert compare_run(_detections(some), _detections(every), _LIST)["status"] == status
    assert compare_run(_detections(every), _detections(some), _LIST)["status"] == status


def test_a_list_whose_outputs_differ_in_rows_is_wrong() -> None:
    expected, actual = _detections([0, 1, 2]), _detections([0, 1, 2])
    actual["scores"] = actual["scores"][:2]
    found = compare_run(actual, expected, _LIST)
    assert found["status"] == "wrong"
    assert found["detail"] == "rows: boxes 3, scores 2"


def test_no_detection_is_a_list_too() -> None:
    assert compare_run(_detections([]), _detections([]), _LIST)["status"] == "right"
    assert compare_run(_detections([]), _detections([4, 5]), _LIST)["status"] == "wrong"


def test_padding_of_one_table_of_detections_is_no_detection() -> None:
    found = Detections(["output0"], "output0:4", 0.25)
    table = np.zeros((1, 8, 6), np.float32)
    table[0, :3] = [[1, 2, 30, 40, 0.9, 3], [5, 6, 70, 80, 0.8, 0], [1, 1, 9, 9, 0.6, 7]]
    swapped = table[:, [1, 0, 2, 3, 4, 5, 6, 7]]
    assert compare_run({"output0": swapped}, {"output0": table}, found)["status"] == "right"
    swapped[0, 0, 5] = 1  # another class
    assert compare_run({"output0": swapped}, {"output0": table}, found)["status"] == "wrong"


@pytest.mark.parametrize(
    "values", ["image", "pixels", "page", "seal", "audio", "normal", "ids 2 9"]
)
def test_inputs_are_the_same_by_their_seed(values: str) -> None:
    shape = (1, 3, 64, 96)
    made, again, other = (make_input(shape, values, np.dtype("float32"), s) for s in (0, 0, 1))
    assert made.shape == shape and made.dtype == np.float32 and np.isfinite(made).all()
    assert np.array_equal(made, again)
    assert values == "seal" or not np.array_equal(made, other)


def test_the_lists_pin_every_file() -> None:
    listed = cases()
    assert len(listed) >= 60 and len({entry["sha256"] for _, entry in listed.values()}) == len(
        listed
    )
    assert len(EXPORTS) >= 80 and all("==" in requirement for requirement in REQUIREMENTS)
    for name, export in EXPORTS.items():
        assert export.case(name).inputs, name
