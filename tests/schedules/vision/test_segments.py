"""Ragged segments are sorted as NumPy sorts them one by one, whatever their lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.marks import in_full
from tests.schedules.harness import sweep
from tests.schedules.vision.harness import (
    MACHINES,
    Machine,
    distinct,
    machine,
    numbers,
    seeds,
    segments_order,
)

SENSELESS = {
    "falls": [5, 3, 9, 2],
    "below and above": [-4, 100, 7, 1_000_000],
    "all behind the data": [900, 2000, 3000],
    "all in front": [-9, -7, -1],
    "overlaps": [0, 399, 1, 398, 2, 397, 3, 396, 100, 300, 20, 390],
}


def check(
    on: Machine, data: np.ndarray, offsets: np.ndarray, descending: bool = False, **how: str
) -> None:
    """Compare with NumPy."""
    indices = on.argsort_segments(data, offsets, descending=descending, **how)
    np.testing.assert_array_equal(indices, segments_order(data, offsets, descending))


def starts(lengths: list[int], dtype: str = "int32") -> np.ndarray:
    """Offsets of segments of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "uint8"])
def test_types_of_every_width_on_a_cpu(dtype: str) -> None:
    offsets = starts([40, 0, 49, 1, 300, 0])
    for descending in (False, True):
        data = numbers(descending, int(offsets[-1]), dtype, distinct=60)
        check(machine("llvm"), data, offsets, descending)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "bool"])
@pytest.mark.parametrize("name", MACHINES[1:])
def test_types_of_every_width_on_a_gpu(name: str, dtype: str) -> None:
    gpu = machine(name)
    if not gpu.has(dtype):
        pytest.skip(f"no {dtype} on this device")
    check(gpu, numbers(0, 14, dtype, distinct=9), starts([5, 0, 9]), descending=True)


LENGTHS = {
    "one element": [1],
    "none and few": [5, 0, 0, 3],
    "one huge": [700],
    "huge between small": [3, 500, 0, 4],
    "ragged": [*np.random.default_rng(0).integers(0, 60, 20).tolist()],
    "over interfaces": [70, 100, 60, 10, 239, 1],
    "thousands of one": [1] * 2000,
    "thousands of none": [0] * 3000 + [7, 0, 300, 200, 5] + [0] * 500,
}
USUAL = ("huge between small", "over interfaces", "thousands of none")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(lengths, id=name, marks=() if name in USUAL else pytest.mark.full)
        for name, lengths in LENGTHS.items()
    ],
)
def test_lengths(device: Machine, lengths: list[int]) -> None:
    if device.several_tiles < sum(lengths) < 1000:
        lengths = [-(-length // 5) for length in lengths]
    offsets = starts(lengths, "int64" if len(lengths) % 2 else "int32")
    check(device, numbers(len(lengths), int(offsets[-1]), "float32", 500), offsets)


def test_a_huge_segment_is_shared_by_the_cores() -> None:
    """Longer than two of the ranges that a CPU shares out, with others around it."""
    offsets = starts([300, 0, 40_000, 7, 20_000, 1], "int64")
    data = numbers(0, int(offsets[-1]), "float32", distinct=3000)
    check(machine("llvm"), data, offsets, descending=True, index_dtype="int32")


@pytest.mark.parametrize("name", ["opencl-local", "cuda-local"])
def test_tiles_of_a_whole_work_group(name: str) -> None:
    """256 work-items; a segment over three tiles and others within one."""
    offsets = starts([1000, 1, 6000, 0, 20, 3])
    check(machine(name, 256), numbers(0, int(offsets[-1]), "float32", 900), offsets)


@pytest.mark.parametrize("offset_dtype", ["int64", *in_full("int32")])
def test_elements_of_no_segment_keep_their_place(device: Machine, offset_dtype: str) -> None:
    """In front of the first offset and behind the last, also where tiles are merged."""
    length = device.several_tiles
    data = numbers(0, length, "float32", distinct=100)
    offsets = np.array([0.2, 0.2, 0.6, 0.7]) * length
    check(device, data, offsets.astype(offset_dtype))


@given(st.data())
@sweep(2)
def test_any_segments(device: Machine, draw: st.DataObject) -> None:
    """Few sizes, which a GPU builds once, with any offsets in order."""
    length, count = draw.draw(st.sampled_from([(1, 3), (device.several_tiles, 9)]))
    cuts = draw.draw(st.lists(st.integers(0, length), min_size=count, max_size=count))
    offsets = np.sort(np.array(cuts, "int32"))
    data = numbers(draw.draw(seeds), length, "float32", draw.draw(distinct))
    check(device, data, offsets, draw.draw(st.booleans()))


@pytest.mark.parametrize("offsets", SENSELESS.values(), ids=list(SENSELESS))
def test_senseless_offsets_stay_inside_of_the_tensor(device: Machine, offsets: list[int]) -> None:
    data = numbers(0, 400, "float32")
    indices = device.argsort_segments(data, np.resize(offsets, 12))
    assert ((indices >= 0) & (indices < 400)).all()


@given(st.lists(st.integers(-50, 900), min_size=12, max_size=12), seeds)
@sweep(4)
def test_any_senseless_offsets(device: Machine, offsets: list[int], seed: int) -> None:
    length = 200 + device.several_tiles
    data = numbers(seed, length, "float32")
    indices = device.argsort_segments(data, np.array(offsets))
    assert ((indices >= 0) & (indices < length)).all()
