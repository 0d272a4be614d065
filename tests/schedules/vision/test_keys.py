"""Words of numbers have the numbers' order as NumPy sorts them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tests.schedules.harness import sweep, this_cpu
from tests.schedules.vision.harness import DTYPES, distinct, numbers, seeds, stable_order
from tvm_edge.schedules.emit import function
from tvm_edge.schedules.vision.keys import SORTABLE, ordered_words, word_count


@cache
def _kernel(dtype: str, descending: bool) -> Any:
    length = tirx.Var("length", "int64")

    def body(data: Any, words: Any) -> None:
        with T.serial(0, length) as i:
            found = ordered_words(data[i], dtype, descending)
            wide = [word.astype("uint64") for word in found]
            words[i] = wide[0] if len(wide) == 1 else wide[0] | (wide[1] << 32)

    kernel = function([([length], dtype)], [([length], "uint64")], body)
    return tvm.compile(kernel.func, target=this_cpu())


def words(data: np.ndarray, descending: bool) -> np.ndarray:
    """Calculated by a kernel; two words as one of 64 bits."""
    dtype = str(data.dtype)
    out = tvm.runtime.tensor(np.zeros(data.shape, "uint64"))
    _kernel(dtype, descending)(tvm.runtime.tensor(data), out)
    return out.numpy()


def test_every_type_has_a_word() -> None:
    assert set(DTYPES) == SORTABLE


@pytest.mark.diagonals(3)
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_words_have_the_order_of_numbers(dtype: str, descending: bool) -> None:
    """The same stable order; so -0 equals +0, all NaNs are equal, and they come last."""

    @given(seeds, distinct)
    @sweep(20)
    def check(seed: int, different: int) -> None:
        data = numbers(seed, 100, dtype, different)
        found = words(data, descending)
        np.testing.assert_array_equal(
            np.argsort(found, kind="stable"), stable_order(data, descending)
        )
        # Equal numbers, and only these, have equal words.
        same = (data[:, None] == data[None, :]) | (
            (data != data)[:, None] & (data != data)[None, :]
        )
        np.testing.assert_array_equal(found[:, None] == found[None, :], same)

    check()


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", ["float16", "int16", "uint8", "int8", "bool"])
def test_all_numbers_of_a_small_type(dtype: str, descending: bool) -> None:
    """One by one."""
    if dtype == "bool":
        data = np.array([True, False])
    else:
        bits = 8 * np.dtype(dtype).itemsize
        data = np.arange(1 << bits, dtype=f"uint{bits}").view(dtype)
    order = np.argsort(words(data, descending), kind="stable")
    np.testing.assert_array_equal(order, stable_order(data, descending))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_nan_is_all_ones(dtype: str) -> None:
    """In both directions, whatever its sign and payload."""
    bits = 8 * np.dtype(dtype).itemsize
    nans = np.array([np.nan, -np.nan], dtype).view(f"uint{bits}")
    data = np.concatenate([nans, nans | 1, nans | 5]).astype(f"uint{bits}").view(dtype)
    for descending in (False, True):
        assert (words(data, descending) == (1 << 32 * word_count(dtype)) - 1).all()
