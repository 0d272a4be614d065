"""Labels and boxes."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_edge import InputError, Picture
from tvm_edge.workflow import boxes_in_picture, top_labels


def test_labels_descend_and_ties_go_by_index() -> None:
    (found,) = top_labels(np.asarray([[1.0, 3, 3, 0]]), 3, ["a", "b", "c", "d"])
    assert [label.name for label in found] == ["b", "c", "a"]
    exponents = np.exp([1, 3, 3, 0])
    assert found[0].score == pytest.approx(exponents[1] / exponents.sum())
    plain = top_labels(np.asarray([0.25, 0.75]).reshape(1, 2, 1, 1), 5, softmax=False)
    assert [(label.index, label.score) for label in plain[0]] == [(1, 0.75), (0, 0.25)]


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="3 labels, and the model has 2 classes"):
        top_labels(np.zeros((1, 2)), labels=["a", "b", "c"])
    with pytest.raises(InputError, match="no 0 largest"):
        top_labels(np.zeros((1, 2)), 0)


@pytest.mark.parametrize("size", [(30, 40), (99, 40), (32, 32)], ids=str)
def test_boxes_go_back_through_letterbox(size: tuple[int, int]) -> None:
    picture = Picture(size=size, resize="letterbox")
    height, width = size
    box = np.asarray([3.0, 5, width - 2, height - 4])
    placing = picture.placing(64, 64)
    x = box[0::2] * placing.scale_x + placing.left
    y = box[1::2] * placing.scale_y + placing.top
    there = np.asarray([[x[0], y[0], x[1], y[1]]])
    np.testing.assert_allclose(boxes_in_picture(there, picture, (64, 64))[0], box, rtol=1e-5)
    centre = np.asarray([(x[0] + x[1]) / 2, (y[0] + y[1]) / 2, x[1] - x[0], y[1] - y[0]])
    by_centre = boxes_in_picture(centre, picture, (64, 64), form="cxcywh")
    np.testing.assert_allclose(by_centre, box, rtol=1e-5)
    relative = there[:, [1, 0, 3, 2]] / 64
    found = boxes_in_picture(relative, picture, (64, 64), form="yxyx", relative=True)
    np.testing.assert_allclose(found[0], box, rtol=1e-5)


def test_boxes_end_with_the_picture() -> None:
    found = boxes_in_picture(
        np.asarray([-5, -5, 99, 99]), Picture(size=(30, 40), resize="bilinear"), (60, 80)
    )
    np.testing.assert_array_equal(found, [0, 0, 40, 30])


def test_boxes_that_are_none() -> None:
    with pytest.raises(InputError, match="form='ltrb'"):
        boxes_in_picture(np.zeros((2, 4)), Picture(), (8, 8), form="ltrb")
    with pytest.raises(InputError, match=r"\(2, 5\)"):
        boxes_in_picture(np.zeros((2, 5)), Picture(), (8, 8))
