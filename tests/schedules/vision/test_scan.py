"""Scans agree with NumPy: integers exactly, sums of floats within what rounding explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.marks import in_full
from tests.schedules.harness import sweep
from tests.schedules.vision.harness import MACHINES, Machine, machine, seeds

ACCUMULATE = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
MODES = [(False, False), (False, True), (True, False), (True, True)]


def identity(operator: str, dtype: np.dtype[Any]) -> Any:
    """What changes nothing."""
    if operator in ("add", "multiply"):
        return int(operator == "multiply")
    if dtype.kind == "f":
        return -np.inf if operator == "maximum" else np.inf
    limits = np.iinfo(dtype)
    return limits.min if operator == "maximum" else limits.max


def reference(
    data: np.ndarray, operator: str, exclusive: bool = False, reverse: bool = False
) -> np.ndarray:
    """Scan the middle axis in the type of `data`."""
    line = data[:, ::-1] if reverse else data
    result = ACCUMULATE[operator].accumulate(line, axis=1, dtype=data.dtype)
    if exclusive:
        first = np.full_like(result[:, :1], identity(operator, data.dtype))
        result = np.concatenate([first, result[:, :-1]], axis=1)
    return result[:, ::-1] if reverse else result


def whole(seed: int, shape: tuple[int, ...], dtype: str, operator: str) -> np.ndarray:
    """Numbers of which all results are exact in float32, in any order of calculation."""
    random = np.random.default_rng(seed)
    if operator == "multiply":
        return random.choice([1, -1, 1] if dtype[0] != "u" else [1, 3, 5], shape).astype(dtype)
    return random.integers(0 if dtype[0] == "u" else -5, 6, shape).astype(dtype)


def check(on: Machine, data: np.ndarray, operator: str, exclusive: bool, reverse: bool) -> None:
    """Compare numbers of which all results are exact."""
    actual = on.scan(data, operator=operator, exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(actual, reference(data, operator, exclusive, reverse))


SHAPES = {
    "one element": (1, 1, 1),
    "short lines": (3, 17, 1),
    "one line of a few tiles": (1, 700, 1),
    "long lines": (2, 3000, 1),
    "many lines": (600, 9, 1),
    "a middle axis": (2, 40, 5),
    "an outer axis": (1, 130, 70),
}


@pytest.mark.diagonals(4)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_shapes(device: Machine, shape: tuple[int, int, int]) -> None:
    check(device, whole(1, shape, "float32", "add"), "add", exclusive=False, reverse=True)
    check(device, whole(2, shape, "int32", "add"), "add", exclusive=True, reverse=False)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("operator", "exclusive", "reverse"),
    [
        *(("add", *mode) for mode in MODES[:2]),
        ("minimum", True, True),
        *in_full(
            *(("add", *mode) for mode in MODES[2:]),
            ("multiply", True, True),
            ("maximum", True, False),
        ),
    ],
)
def test_operators(device: Machine, operator: str, exclusive: bool, reverse: bool) -> None:
    """Lines of several tiles, forwards and backwards."""
    data = whole(0, (2, 211, 1), "float32", operator)
    check(device, data, operator, exclusive, reverse)


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "uint8",
        *in_full("int64", "float64", "int8", "int16", "int32", "uint32", "uint64"),
    ],
)
def test_every_type_on_a_cpu(dtype: str) -> None:
    """Unsigned results wrap around as NumPy's."""
    check(machine("llvm"), whole(0, (2, 37, 1), dtype, "add"), "add", *MODES[0])
    check(machine("llvm"), whole(0, (2, 11, 67), dtype, "minimum"), "minimum", *MODES[3])


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["int8", "uint64", *in_full("float16", "float64")])
@pytest.mark.parametrize("name", MACHINES[1:])
def test_types_of_every_width_on_a_gpu(name: str, dtype: str) -> None:
    if not machine(name).has(dtype):
        pytest.skip(f"no {dtype} on this device")
    for operator in ("multiply", "maximum"):
        data = whole(0, (1, 200, 1), dtype, operator)
        check(machine(name), data, operator, exclusive=True, reverse=False)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("dtype", "out_dtype"), [("bool", "int32"), ("int8", "int64")])
def test_the_result_may_be_wider(device: Machine, dtype: str, out_dtype: str) -> None:
    """Calculated in the result's type: sums of int8 do not wrap."""
    data = np.full((1, 300, 1), 100).astype(dtype)
    expected = np.cumsum(data, axis=1, dtype=out_dtype)
    np.testing.assert_array_equal(device.scan(data, out_dtype), expected)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("exclusive", [False, True], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize("length", [32 * 32 * 32 + 1, *in_full(70_000)])
def test_long_lines_need_totals_of_totals(device: Machine, length: int, exclusive: bool) -> None:
    """Without local memory, and with tiny work-groups, three stages are stages themselves."""
    check(device, whole(0, (1, length, 1), "int32", "add"), "add", exclusive, reverse=True)


@pytest.mark.parametrize("outer", [2, *in_full(1, 4)], ids=lambda n: f"{n} lines")
def test_long_lines_on_a_cpu(outer: int) -> None:
    """Fewer lines than cores are shared out, in blocks that fit into the caches."""
    data = whole(0, (outer, 700_001 // outer, 1), "float32", "add")
    for mode in MODES[1:3]:  # each end of each way
        check(machine("llvm"), data, "add", *mode)
    check(machine("llvm"), whole(0, data.shape, "int64", "maximum"), "maximum", True, False)


@pytest.mark.parametrize("shape", [(1, 9001, 1), (1, 40_000, 1), (9, 4000, 1)], ids=str)
@pytest.mark.parametrize("name", ["opencl-local", "cuda-local"])
def test_tiles_of_a_whole_work_group(name: str, shape: tuple[int, int, int]) -> None:
    """256 work-items."""
    check(machine(name, 256), whole(0, shape, "float32", "add"), "add", True, True)


@pytest.mark.parametrize(
    ("operator", "reverse"), [("maximum", True), *in_full(("maximum", False), ("minimum", True))]
)
def test_nan_stays_in_all_that_follows(device: Machine, operator: str, reverse: bool) -> None:
    """As NumPy's, within a tile and over tiles; infinities are numbers like others."""
    data = np.random.default_rng(0).standard_normal((2, 400, 1)).astype("float32")
    data[0, 77], data[1, 301], data[1, 5] = np.nan, -np.nan, np.inf
    check(device, data, operator, exclusive=False, reverse=reverse)


def bound(data: np.ndarray, unit: float) -> np.ndarray:
    """Higham's bound for sums in any order: (n - 1) u / (1 - (n - 1) u) times the sum of |x|."""
    errors = np.arange(data.shape[1]) * unit
    return (errors / (1 - errors))[None, :, None] * np.cumsum(np.abs(data.astype("float64")), 1)


@given(st.data())
@sweep(2)
def test_any_sums(device: Machine, draw: st.DataObject) -> None:
    """Against sums in float64, within the error that a sum in any order may have."""
    shape = draw.draw(st.sampled_from([(1, 1, 1), (3, 150, 1), (2, 33, 4), (1, 2500, 1)]))
    random = np.random.default_rng(draw.draw(seeds))
    data = (random.standard_normal(shape) * 10.0 ** random.integers(-6, 6)).astype("float32")
    reverse = draw.draw(st.booleans())
    line = data[:, ::-1] if reverse else data
    exact = np.cumsum(line.astype("float64"), axis=1)
    actual = device.scan(data, reverse=reverse)
    actual = actual[:, ::-1] if reverse else actual
    assert (np.abs(actual - exact) <= bound(line, 2.0**-24)).all()


def test_float16_is_calculated_in_float32(device: Machine) -> None:
    """One rounding at the end: half a unit of the result besides float32's error.

    Added up in float16 the sum would stand still at 256, where 0.1 is less than half a unit.
    """
    if not device.has("float16"):
        pytest.skip("no float16 on this device")
    data = np.full((1, 5000, 1), 0.1, "float16")
    exact = np.cumsum(data.astype("float64"), axis=1)
    error = np.abs(device.scan(data).astype("float64") - exact)
    assert (error <= 2.0**-11 * np.abs(exact) + 2 * bound(data, 2.0**-24)).all()
