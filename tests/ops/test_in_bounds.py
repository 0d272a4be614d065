"""Kernels stay inside their tensors and do not trap, whatever indices and divisors they are given.

Each run is in a child: what these tests are about ends a process.
"""

from __future__ import annotations

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import reference
from tests.relay_passes.indexing_models import indexing_model
from tests.runtime.support import run_child

_RUN = """
import numpy as np
import tvm_edge
from tests.relay_passes.indexing_models import FAR, OPERATORS, indexing_model
for op in OPERATORS:
    model = tvm_edge.compile(indexing_model(op), "llvm")
    for value in FAR:
        feeds = {s.name: np.ones(s.typical_shape, s.dtype) for s in model.inputs}
        feeds["i"] = np.full_like(feeds["i"], value)
        result = model.run(feeds)["y"]
        # Ones, sums of at most 20 of them, and zeros beside.
        assert ((result >= 0) & (result <= 21) & (result == result.round())).all(), (op, result)
"""


def test_indices_out_of_range_stay_inside() -> None:
    """ONNX leaves the result open; the process and what is beside the tensor stay whole."""
    done = run_child(["-c", _RUN])
    assert done.returncode == 0, done.stderr[-2000:]


def test_index_takes_the_nearest_element() -> None:
    model = tvm_edge.compile(indexing_model("Gather"), "llvm")
    x = np.arange(20, dtype="float32").reshape(4, 5)
    result = model.run({"x": x, "i": np.asarray([-(2**63), -1, 2**40])})["y"]
    np.testing.assert_array_equal(result, x[[0, 3, 3]])


@pytest.mark.parametrize("op", ["GatherElements", "GatherND", "ScatterElements"])
def test_indices_in_range_are_as_onnx_says(op: str) -> None:
    """Negative ones too; bounding changes nothing."""
    model = indexing_model(op)
    generator = np.random.default_rng(0)
    shape = (2, 2) if op == "GatherND" else (4, 5)
    feeds = {
        "x": generator.standard_normal((4, 5)).astype("float32"),
        "i": generator.integers(-4, 4, shape),
    }
    expected = reference(model, feeds)["y"]
    actual = tvm_edge.compile(model, "llvm").run(feeds)["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)  # order of additions


_DIVIDE = """
import numpy as np
import tvm_edge
from tests.relay_passes.indexing_models import division_model
for dtype in ("int8", "int32", "int64", "uint8"):
    low = np.iinfo(dtype).min
    a = np.asarray([[7], [low], [5]], dtype)
    b = np.asarray([0, 2] if dtype == "uint8" else [0, -1, 2, -2], dtype)
    for op, fmod, numpy in (("Div", 0, None), ("Mod", 0, np.mod), ("Mod", 1, np.fmod)):
        model = tvm_edge.compile(division_model(op, fmod, dtype, b.size), "llvm")
        result = model.run({"a": a, "b": b})["y"]
        with np.errstate(all="ignore"):
            if numpy is None:  # towards zero
                safe = np.where(b == 0, 1, b).astype(object)
                whole = abs(a.astype(object)) // abs(safe)
                signed = np.where((a < 0) != (b < 0), -whole, whole)
                expected = np.where(b == 0, 0, signed).astype("O")
                bits = 8 * np.dtype(dtype).itemsize
                expected = np.vectorize(lambda v: ((v - low) % 2**bits) + low)(expected)
            else:
                expected = np.where(b == 0, 0, numpy(a, b))
        assert (result == expected.astype(dtype)).all(), (op, fmod, dtype, result, expected)
"""


def test_integer_division_does_not_trap() -> None:
    """By zero it is zero; the smallest number by -1 wraps round; the rest is right."""
    done = run_child(["-c", _DIVIDE])
    assert done.returncode == 0, done.stderr[-2000:]
