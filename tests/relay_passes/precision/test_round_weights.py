"""Weights are rounded to one of their neighbours, so that errors add up to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tvm_edge.relay_passes.precision.round_weights import round_weights
from tvm_edge.zoo.evaluate import evaluate

Array = NDArray[Any]


def values(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "windows": ((40, 17, 3, 3), (2, 3)),
    "depthwise": ((300, 1, 5, 5), (2, 3)),
    "pointwise": ((33, 700, 1, 1), (1,)),
    "transposed": ((700, 33, 1, 1), (0,)),
    "matrix": ((2049, 10), (0,)),
    "batch": ((3, 65, 7), (1,)),
    "volume": ((5, 4, 3, 3, 3), (2, 3, 4)),
}


@pytest.mark.parametrize(("shape", "axes"), SHAPES.values(), ids=list(SHAPES))
def test_sums_stay(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    weights = values(*shape)
    rounded = round_weights(weights, axes)
    assert rounded.dtype == np.float16 and rounded.shape == weights.shape

    def sums(candidate: Array) -> Array:
        return np.abs((weights - candidate.astype("float64")).sum(axis=axes))

    ours, nearest = sums(rounded), sums(weights.astype("float16"))
    assert (ours <= nearest + 1e-12).all()
    assert ours.mean() < 0.5 * nearest.mean()


@pytest.mark.parametrize(("shape", "axes"), SHAPES.values(), ids=list(SHAPES))
def test_each_is_a_neighbour(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    weights = values(*shape)
    rounded = round_weights(weights, axes)
    nearest = weights.astype("float16")
    away = np.where(weights > nearest, np.inf, -np.inf).astype("float16")
    second = np.nextafter(nearest, away)
    assert ((rounded == nearest) | (rounded == second)).all()
    assert (rounded == nearest).mean() > 0.7


@pytest.mark.parametrize(
    "weights",
    [
        np.float32([[65504.0, 65503.0, 65500.0, -1.0]]),
        np.float32([[0.0, -0.0, 1e-7, 3e-8]]),
        np.zeros((2, 5), "float32"),
        np.ones((3, 1), "float32") / 3,
        np.ones((0, 4), "float32"),
    ],
    ids=["largest", "smallest", "zeros", "one", "none"],
)
def test_ends_of_the_range(weights: Array) -> None:
    rounded = round_weights(weights, [1])
    assert rounded.shape == weights.shape and np.isfinite(rounded).all()
    assert (rounded[weights == 0] == 0).all()


def test_what_float16_holds_stays() -> None:
    weights = values(9, 8, 3, 3).astype("float16").astype("float32")
    assert np.array_equal(round_weights(weights, [2, 3]), weights)


def test_a_smooth_image_keeps_its_filters_results() -> None:
    weights = values(64, 1, 3, 3)
    image = np.broadcast_to(np.float64([5.0]), (1, 64, 9, 9)).copy()

    def filtered(candidate: Array) -> Array:
        (result,) = evaluate("Conv", [image, candidate.astype("float64")], pads=[0] * 4, group=64)
        return result

    expected = filtered(weights)
    ours = np.abs(filtered(round_weights(weights, [2, 3])) - expected).mean()
    assert ours < 0.4 * np.abs(filtered(weights.astype("float16")) - expected).mean()
