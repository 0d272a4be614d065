"""Filter banks of the mel scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, reference

NUMBERS = ("bands", "points", "rate", "lowest", "highest")


@pytest.mark.parametrize(
    "numbers",
    [
        (8, 16, 8192, 0.0, 4096.0),
        (23, 401, 16000, 20.0, 7600.0),
        (40, 512, 16000, 125.0, 7500.0),
        # So narrow that triangles have no sides.
        (12, 32, 22050, 300.0, 3000.0),
        (2, 20, 8000, 100.0, 3000.0),
    ],
)
def test_mel_weights(numbers: tuple[Any, ...]) -> None:
    """A spectrum times the matrix, which is a constant."""
    dtypes = [TensorProto.INT32] * 3 + [TensorProto.FLOAT] * 2
    constants = {
        name: np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
        for name, value, dtype in zip(NUMBERS, numbers, dtypes, strict=True)
    }
    model = make_model(
        [
            helper.make_node("MelWeightMatrix", list(NUMBERS), ["weights"]),
            helper.make_node("MatMul", ["x", "weights"], ["y"]),
        ],
        {"x": (3, numbers[1] // 2 + 1)},
        ["weights", "y"],
        constants,
    )
    x = np.random.default_rng(0).random((3, numbers[1] // 2 + 1)).astype("float32")
    found = tvm_edge.compile(model, "llvm").run({"x": x})
    expected = reference(model, {"x": x})
    for name in ("weights", "y"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_band_beyond_the_spectrum() -> None:
    """It would be a row that the matrix does not have."""
    node = helper.make_node("MelWeightMatrix", list(NUMBERS), ["weights"])
    values: tuple[Any, ...] = (4, 16, 8000, 0.0, 30000.0)
    kinds = ["int32"] * 3 + ["float32"] * 2
    constants = {
        name: np.asarray(value, kind)
        for name, value, kind in zip(NUMBERS, values, kinds, strict=True)
    }
    model = make_model(
        [node, helper.make_node("MatMul", ["x", "weights"], ["y"])], {"x": (1, 9)}, ["y"], constants
    )
    with pytest.raises(tvm_edge.InvalidModelError, match="4 bands up to 30000"):
        tvm_edge.compile(model, "llvm")
