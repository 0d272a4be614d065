"""Distinct elements of types that are not sorted as they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model


@pytest.mark.parametrize("in_order", [0, 1])
def test_unique_bfloat16(in_order: int, target: str) -> None:
    x = np.random.default_rng(in_order).integers(-9, 9, (5, 13)).astype(ml_dtypes.bfloat16)
    names = ["y", "first", "inverse", "counts"]
    model = make_model(
        [helper.make_node("Unique", ["x"], names, sorted=in_order)],
        {"x": x.shape},
        names,
        dtypes={"x": TensorProto.BFLOAT16, "y": TensorProto.BFLOAT16}
        | dict.fromkeys(names[1:], TensorProto.INT64),
        opset=onnx.defs.onnx_opset_version(),
    )
    found = tvm_edge.compile(model, target).run({"x": x})
    values, first, inverse, counts = np.unique(
        x.astype("float32"), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.arange(len(values)) if in_order else np.argsort(first)
    assert found["y"].dtype == x.dtype
    np.testing.assert_array_equal(found["y"].astype("float32"), values[order])
    np.testing.assert_array_equal(found["first"], first[order])
    np.testing.assert_array_equal(found["inverse"], np.argsort(order)[inverse.reshape(-1)])
    np.testing.assert_array_equal(found["counts"], counts[order])
