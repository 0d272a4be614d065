"""Top-k is the beginning of NumPy's stable sort, whether selected or sorted whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.marks import in_full, sampled
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
from tvm_edge.schedules.vision import gpu as gpu_kernels


def check(on: Machine, data: np.ndarray, k: int, largest: bool, index_dtype: str = "int64") -> None:
    """Compare with NumPy."""
    indices, values = on.top_k(data, k, largest=largest, index_dtype=index_dtype)
    order = stable_order(data, largest)[:, :k]
    assert indices.dtype == index_dtype
    np.testing.assert_array_equal(indices, order)
    assert_same_bits(values, np.take_along_axis(data, order, -1))


@pytest.mark.parametrize(
    ("dtype", "largest"),
    sampled([(dtype, i % 2 == 0) for i, dtype in enumerate(DTYPES)], 3),
)
def test_every_type_on_a_cpu(dtype: str, largest: bool) -> None:
    for shape in [(1, 5), (3, 6), (4, 300)]:
        check(machine("llvm"), numbers(shape[1], shape, dtype, distinct=40), 5, largest)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["float64", "bool", *in_full("float16", "uint8")])
@pytest.mark.parametrize("name", MACHINES[1:])
def test_types_of_every_width_on_a_gpu(name: str, dtype: str) -> None:
    gpu = machine(name)
    if not gpu.has(dtype):
        pytest.skip(f"no {dtype} on this device")
    check(gpu, numbers(0, (3, 21), dtype, distinct=9), 4, largest=True)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("k", [3, 1000, *in_full(1, 60)], ids=lambda k: f"k={k}")
def test_small_and_large_k(device: Machine, k: int) -> None:
    """The first ones are selected by tiles, the last ones are a full sort."""
    length = device.several_tiles
    k = min(k, length)
    check(device, numbers(k, (2, length), "float32", distinct=200), k, largest=True)


@pytest.mark.parametrize(
    ("k", "shape"), [(40, (2, 60_000)), *in_full((1, (1, 100_001)), (500, (1, 40_000)))]
)
def test_long_rows_on_a_cpu(k: int, shape: tuple[int, int]) -> None:
    """Cores look at a part of the row each; increasing numbers replace the best all the time."""
    check(machine("llvm"), numbers(k, shape, "float32", distinct=9999), k, largest=True)
    rising = np.arange(shape[0] * shape[1], dtype="float32").reshape(shape)
    check(machine("llvm"), rising, k, largest=True)
    check(machine("llvm"), rising // 100, k, largest=False)


@pytest.mark.parametrize(("k", "length"), [(3, 4000), (1500, 4000), (1792, 1792)])
@pytest.mark.parametrize("name", ["opencl-local", "cuda-local"])
def test_tiles_of_a_whole_work_group(name: str, k: int, length: int) -> None:
    check(machine(name, 256), numbers(k, (1, length), "float32", 900), k, largest=False)


def test_a_small_k_is_selected_on_a_gpu() -> None:
    """No merge passes: they would be a kernel more for each doubling of a tile."""
    spec = machine("opencl-local").spec
    how = {"largest": True, "index_dtype": "int32"}
    few, many = (gpu_kernels.top_k_rows(1, 4000, k, "float32", spec, **how) for k in (3, 2000))
    assert str(few.func).count("blockIdx.x") < str(many.func).count("blockIdx.x")


@given(st.data())
@sweep(2)
def test_any_rows(device: Machine, draw: st.DataObject) -> None:
    """Ties by the lower index, NaN last, -0 as +0."""
    dtype = draw.draw(st.sampled_from([d for d in DTYPES if device.has(d)]))
    length = draw.draw(st.sampled_from([1, 9, 50, 113]))
    k = draw.draw(st.sampled_from([k for k in (1, 4, 37, length) if k <= length]))
    data = numbers(draw.draw(seeds), (3, length), dtype, draw.draw(distinct))
    check(device, data, k, draw.draw(st.booleans()), draw.draw(st.sampled_from(["int32", "int64"])))
