"""Rows come out in NumPy's stable order on every device, and their values with every bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.marks import sampled
from tests.schedules.harness import sweep
from tests.schedules.vision.harness import (
    DTYPES,
    MACHINES,
    Machine,
    assert_same_bits,
    distinct,
    machine,
    numbers,
    seeds,
    stable_order,
)

# Below, at and above what a CPU sorts by insertion (48) and a tile of 16 work-items holds.
LENGTHS = (1, 2, 3, 7, 8, 9, 47, 48, 49, 80, 112, 113, 240, 241, 500, 1000)


def check(on: Machine, data: np.ndarray, descending: bool, index_dtype: str = "int32") -> None:
    """Compare with NumPy."""
    indices, values = on.argsort(data, descending=descending, index_dtype=index_dtype)
    order = stable_order(data, descending)
    assert indices.dtype == index_dtype
    np.testing.assert_array_equal(indices, order)
    assert_same_bits(values, np.take_along_axis(data, order, -1))


@pytest.mark.parametrize(
    ("dtype", "descending"),
    sampled([(dtype, i % 2 == 0) for i, dtype in enumerate(DTYPES)], 3),
)
def test_every_type_on_a_cpu(dtype: str, descending: bool) -> None:
    """Insertion, radix and, for one long row, merges of the cores' pieces."""
    cpu = machine("llvm")
    for shape in [(1, 1), (3, 7), (5, 48), (2, 49), (1, 16385), (4, 300)]:
        check(cpu, numbers(shape[1], shape, dtype), descending)
        check(cpu, numbers(shape[1], shape, dtype, distinct=5), descending)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", sampled(DTYPES, 4))
@pytest.mark.parametrize("name", MACHINES[1:])
def test_every_type_on_a_gpu(name: str, dtype: str) -> None:
    """Several rows in a tile; many ties."""
    gpu = machine(name)
    if not gpu.has(dtype):
        pytest.skip(f"no {dtype} on this device")
    check(gpu, numbers(1, (5, 7), dtype, distinct=9), descending=True)


@given(st.data())
@sweep(2)
def test_any_rows(device: Machine, draw: st.DataObject) -> None:
    """Ties, -0 and NaN included."""
    dtype = draw.draw(st.sampled_from([d for d in DTYPES if device.has(d)]))
    length = draw.draw(st.sampled_from([n for n in LENGTHS if n <= 2 * device.several_tiles]))
    rows = draw.draw(st.integers(1, max(1, 200 // length)))
    data = numbers(draw.draw(seeds), (rows, length), dtype, draw.draw(distinct))
    check(device, data, draw.draw(st.booleans()), draw.draw(st.sampled_from(["int32", "int64"])))


@pytest.mark.parametrize(("rows", "length"), [(1, 1792), (2, 1793), (3000, 1), (700, 3), (1, 9001)])
@pytest.mark.parametrize("name", ["opencl-local", "cuda-local"])
def test_tiles_of_a_whole_work_group(name: str, rows: int, length: int) -> None:
    """256 work-items of 7 elements: the longest row of one tile, one more, and tiny rows."""
    check(machine(name, 256), numbers(rows, (rows, length), "float32", 500), descending=False)


def test_many_tiny_rows(device: Machine) -> None:
    check(device, numbers(0, (2001, 2), "float32", 3), descending=True)


@pytest.mark.parametrize("cores", [1, 2, 5, 8])
def test_long_rows_are_shared_by_any_number_of_cores(cores: int) -> None:
    """Pieces that do not come out even, with one piece left over when pairs are merged."""
    cpu = machine("llvm")
    on = replace(cpu, spec=replace(cpu.spec, cores=cores))
    check(on, numbers(0, (min(2, cores), 20011), "float32", distinct=300), descending=True)
