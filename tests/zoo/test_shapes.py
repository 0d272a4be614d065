"""Pictures of shapes: the same everywhere, varied, and boxes that fit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tvm_edge.zoo import shapes

CLASSES = [[3, 4], [5, 3, 1], [5, 1, 2]]
MEANS = [153.326, 135.409, 104.663]


@cache
def scenes() -> list[shapes.Scene]:
    return [shapes.draw(index) for index in range(40)]


def test_equal_arguments_give_equal_scenes() -> None:
    again = shapes.draw(3)
    for name in ("pixels", "boxes", "classes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(scenes()[3], name))


def test_it_is_the_data_set_that_the_network_was_trained_for() -> None:
    """A change to any random number changes these; libm's last bits do not."""
    scenes = [shapes.draw(index, "held-out") for index in range(3)]
    assert [scene.classes.tolist() for scene in scenes] == CLASSES
    means = [scene.pixels.mean() for scene in scenes]
    np.testing.assert_allclose(means, MEANS, atol=0.01)


def test_sets_have_nothing_in_common() -> None:
    first = [shapes.draw(0, split).pixels for split in ("train", "held-out", "sample")]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(first[a] == first[b]) < 0.1


def test_scenes() -> None:
    for scene in scenes():
        assert scene.pixels.shape == (128, 128, 3) and scene.pixels.dtype == np.uint8
        assert scene.boxes.shape == (len(scene.classes), 4) and 1 <= len(scene.classes) <= 8
        assert scene.boxes.dtype == np.float32 and scene.classes.dtype == np.int64
        assert 0 <= scene.boxes.min() and scene.boxes.max() <= 1
        longer = (scene.boxes[:, 2:] - scene.boxes[:, :2]).max(1) * shapes.SIZE
        assert 9.99 <= longer.min() and longer.max() <= 90.01
    kinds = np.concatenate([scene.classes for scene in scenes()])
    assert set(kinds.tolist()) == set(range(len(shapes.CLASSES)))


@pytest.mark.parametrize("kind", shapes.CLASSES)
def test_a_box_is_what_its_shape_covers(kind: str) -> None:
    """Within a pixel: a corner may cover too little of one to count."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        outlines = shapes._place(rng, shapes._outlines(rng, kind))
        coverage = shapes._coverage(outlines)
        assert 0 <= coverage.min() and coverage.max() <= 1
        touched = np.argwhere(coverage > 0)
        low, high = outlines[0].min(0), outlines[0].max(0)
        assert np.abs(touched.min(0) - low).max() <= 2
        assert np.abs(touched.max(0) + 1 - high).max() <= 2


@pytest.mark.parametrize("kind", shapes.CLASSES)
def test_coverage_is_the_area(kind: str) -> None:
    """Of polygons, by the shoelace formula, but for half a pixel around sharp corners."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        outlines = shapes._place(rng, shapes._outlines(rng, kind))
        area, *holes = (
            abs(np.sum(y * np.roll(x, -1) - np.roll(y, -1) * x)) / 2
            for y, x in (outline.T for outline in outlines)
        )
        wanted = area - sum(holes)
        assert shapes._coverage(outlines).sum() == pytest.approx(wanted, rel=0.03, abs=3)


def test_network_input() -> None:
    batch = shapes.network_input(*scenes()[:2])
    assert batch.shape == (2, 3, 128, 128) and batch.dtype == np.float32
    assert batch[1, 2, 5, 7] == np.float32(scenes()[1].pixels[5, 7, 2]) / np.float32(255)
