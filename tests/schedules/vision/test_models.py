"""Sorts, top-k and scans of a model run where the user wants them, along any axis."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.vision.harness import (
    assert_same_bits,
    numbers,
    run_operator,
    segments_order,
    stable_order,
)
from tvm_edge import ops

VALUES = numbers(0, (3, 40, 5), "float32", distinct=60)
COUNTS = np.random.default_rng(0).integers(-9, 10, (3, 40, 5)).astype("int32")
OFFSETS = np.array([2, 2, 30, 331, 590], "int64")


def along(axis: int, data: np.ndarray, **how: bool) -> np.ndarray:
    """Stable order along any axis."""
    return np.moveaxis(stable_order(np.moveaxis(data, axis, -1), **how), -1, axis)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("axis", "descending"), [(1, True), (-1, False)])
def test_argsort(target: str, axis: int, descending: bool) -> None:
    (indices,) = run_operator(
        target, lambda x: relax.op.argsort(x, axis=axis, descending=descending), VALUES
    )
    np.testing.assert_array_equal(indices, along(axis, VALUES, descending=descending))


def test_sort(target: str) -> None:
    axis = 0
    (values,) = run_operator(target, lambda x: relax.op.sort(x, axis=axis, descending=True), VALUES)
    order = along(axis, VALUES, descending=True)
    assert_same_bits(values, np.take_along_axis(VALUES, order, axis))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("axis", "k", "largest"), [(1, 7, True), (2, 5, False)])
def test_top_k(target: str, axis: int, k: int, largest: bool) -> None:
    values, indices = run_operator(
        target,
        lambda x: relax.op.topk(x, k, axis=axis, largest=largest, dtype="int64"),
        VALUES,
    )
    order = np.take(along(axis, VALUES, descending=largest), range(k), axis)
    np.testing.assert_array_equal(indices, order)
    assert_same_bits(values, np.take_along_axis(VALUES, order, axis))


def test_top_k_may_return_one_of_both(target: str) -> None:
    (indices,) = run_operator(
        target, lambda x: relax.op.topk(x, 3, axis=1, ret_type="indices", dtype="int32"), VALUES
    )
    np.testing.assert_array_equal(indices, along(1, VALUES, descending=True)[:, :3])


def test_segmented_argsort(target: str) -> None:
    data = VALUES.reshape(-1)
    (indices,) = run_operator(
        target, lambda x, o: ops.segmented_argsort(x, o, descending=True), data, OFFSETS
    )
    np.testing.assert_array_equal(indices, segments_order(data, OFFSETS, descending=True))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("axis", [None, 1])
def test_cumulative_sum(target: str, axis: int | None) -> None:
    """Without an axis of the flat tensor, as in NumPy."""
    (sums,) = run_operator(target, lambda x: relax.op.cumsum(x, axis=axis), COUNTS)
    np.testing.assert_array_equal(sums, np.cumsum(COUNTS, axis))


def test_exclusive_cumulative_product(target: str) -> None:
    data = np.sign(COUNTS.astype("float32")) + (COUNTS == 0)
    (products,) = run_operator(target, lambda x: relax.op.cumprod(x, axis=2, exclusive=True), data)
    expected = np.cumprod(data, 2)[:, :, :-1]
    np.testing.assert_array_equal(products, np.insert(expected, 0, 1, axis=2))


def test_scan_backwards_by_maximum(target: str) -> None:
    (greatest,) = run_operator(
        target, lambda x: ops.scan(x, -2, operator="maximum", reverse=True), VALUES
    )
    expected = np.maximum.accumulate(VALUES[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_array_equal(greatest, expected)


def test_scan_of_another_type(target: str) -> None:
    data = COUNTS.astype("int8")
    (sums,) = run_operator(target, lambda x: ops.scan(x, 1, exclusive=True, dtype="int32"), data)
    expected = np.cumsum(data, 1, dtype="int32")[:, :-1]
    np.testing.assert_array_equal(sums, np.insert(expected, 0, 0, axis=1))
