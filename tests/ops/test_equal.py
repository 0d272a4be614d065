"""Equality of truth values, of lengths that fill vector registers and do not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, reference


@pytest.mark.parametrize("length", [1, 5, 16, 67])
def test_equal_truth_values(length: int) -> None:
    model = make_model(
        [helper.make_node("Equal", ["a", "b"], ["y"])],
        {"a": (3, length), "b": (length,)},
        ["y"],
        dtypes=dict.fromkeys("aby", TensorProto.BOOL),
    )
    random = np.random.default_rng(length)
    inputs = {"a": random.random((3, length)) < 0.5, "b": random.random(length) < 0.5}
    found = tvm_edge.compile(model, "llvm").run(inputs)["y"]
    np.testing.assert_array_equal(found, reference(model, inputs)["y"])
