"""What is valid comes first and in its order; what is not leaves -1 behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tests.schedules.harness import sweep
from tests.schedules.vision.harness import (
    MACHINES,
    Machine,
    assert_same_bits,
    machine,
    run_kernel,
    run_operator,
    seeds,
)
from tvm_edge.schedules.vision.compaction import valid_rows


def valid(
    data: np.ndarray, score_threshold: float, id_index: int, score_index: int
) -> tuple[np.ndarray, ...]:
    """Counts, rows and positions, row by row."""
    batch, length, _ = data.shape
    counts = np.zeros(batch, "int32")
    rows, indices = np.full_like(data, -1), np.full((batch, length), -1, "int32")
    for b in range(batch):
        for i in range(length):
            row = data[b, i]
            has_class = id_index < 0 or bool(row[id_index] >= 0)
            if has_class and row[score_index] > data.dtype.type(score_threshold):
                rows[b, counts[b]], indices[b, counts[b]] = row, i
                counts[b] += 1
    return counts, rows, indices


def check(
    on: Machine, data: np.ndarray, score_threshold: float, id_index: int, score_index: int
) -> None:
    """Counts, rows to the bit, and positions."""
    how: dict[str, Any] = {
        "score_threshold": score_threshold,
        "id_index": id_index,
        "score_index": score_index,
    }
    kernel = valid_rows(*data.shape, str(data.dtype), on.spec, **how)
    counts, rows, indices, *_ = run_kernel(on, kernel, data)
    expected = valid(data, **how)
    np.testing.assert_array_equal(counts, expected[0])
    assert_same_bits(rows, expected[1])
    np.testing.assert_array_equal(indices, expected[2])
    assert {str(array.dtype) for array in (counts, indices)} == {"int32"}


def rows_of(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Numbers about 0 with NaN, infinities and both zeros among them."""
    random = np.random.default_rng(seed)
    data = random.standard_normal(shape).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0], dtype)
    where = random.random(shape) < 0.1
    data[where] = random.choice(special, int(where.sum()))
    return data


SHAPES = {
    "one row": (1, 1, 3),
    "a short batch": (3, 17, 6),
    "some tiles": (2, 700, 6),
    "many lines": (1100, 5, 2),
    "many tiles": (1, 20_000, 2),
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_shapes(device: Machine, shape: tuple[int, int, int]) -> None:
    check(device, rows_of(0, shape), 0.25, 0, 1)


@pytest.mark.parametrize("name", ["opencl-local", "cuda-local"])
def test_whole_work_groups(name: str) -> None:
    """256 work-items."""
    check(machine(name, 256), rows_of(1, (2, 8732, 6)), -0.5, 0, 1)


@given(st.data())
@sweep(2)
def test_any_rows(device: Machine, draw: st.DataObject) -> None:
    shape = draw.draw(st.sampled_from([(1, 2, 1), (2, 33, 5), (1, 300, 4), (5, 64, 2)]))
    data = rows_of(draw.draw(seeds), shape)
    threshold = draw.draw(st.sampled_from([-1.0, 0.0, 0.1, 2.0, np.inf, -np.inf]))
    class_at = draw.draw(st.integers(-1, shape[2] - 1))
    check(device, data, threshold, class_at, draw.draw(st.integers(0, shape[2] - 1)))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("threshold", [-np.inf, 9.0], ids=["all", "none"])
def test_all_rows_or_none(device: Machine, threshold: float) -> None:
    random = np.random.default_rng(2)
    check(device, random.random((2, 100, 6)).astype("float32"), threshold, -1, 1)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_types(name: str, dtype: str) -> None:
    on = machine(name)
    if not on.has(dtype):
        pytest.skip(f"no {dtype} on this device")
    check(on, rows_of(3, (2, 50, 6), dtype), 0.1, 0, 1)


@pytest.mark.parametrize("shape", [(2, 40, 6), (1, 1, 2)], ids=str)
def test_get_valid_counts(shape: tuple[int, int, int]) -> None:
    """Relax's operator."""
    data = rows_of(4, shape)
    actual = run_operator("llvm", lambda x: relax.op.vision.get_valid_counts(x, 0.1, 0, 1), data)
    for found, expected in zip(actual, valid(data, 0.1, 0, 1), strict=True):
        assert_same_bits(found, expected)


def test_no_rows() -> None:
    """A count of 0 for each of the batch."""
    data, ones = rows_of(5, (3, 4, 6)), np.ones(3, "int32")

    def build(x: relax.Var, n: relax.Var) -> relax.Expr:
        nothing = relax.op.strided_slice(x, [1], [2], [2])
        counts = relax.TupleGetItem(relax.op.vision.get_valid_counts(nothing, 0.0, 0, 1), 0)
        return relax.op.add(counts, n)

    (counts,) = run_operator("llvm", build, data, ones)
    np.testing.assert_array_equal(counts, ones)
