"""Vector loops that OpenCL C has no words for."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, reference
from tests.schedules.gpu.harness import opencl_source


def test_bytes_that_are_not_aligned(gpu: str) -> None:
    """TVM would pack sixteen of them into one integer."""
    random = np.random.default_rng(5)
    inputs = {
        "a": random.integers(0, 255, (3, 4, 5, 6)).astype("uint8"),
        "b": random.integers(0, 255, (4, 5, 6)).astype("uint8"),
    }
    model = make_model(
        [helper.make_node("BitwiseAnd", ["a", "b"], ["c"])],
        {name: array.shape for name, array in inputs.items()},
        ["c"],
        dtypes=dict.fromkeys("abc", TensorProto.UINT8),
        opset=18,
    )
    result = tvm_edge.compile(model, gpu, fallback="none").run(inputs)["c"]
    np.testing.assert_array_equal(result, inputs["a"] & inputs["b"])
    if gpu == "opencl":
        assert "<< 8" not in opencl_source(model, gpu)


def test_bytes_that_follow_each_other_as_nobody_wrote_it(gpu: str) -> None:
    """``i // 10 * 10 + i % 10`` is ``i``: a vector, which TVM would pack into one integer."""
    random = np.random.default_rng(6)
    inputs = {"a": random.integers(-128, 128, (3, 5, 2)).astype("int8")}
    model = make_model(
        [helper.make_node("MatMulInteger", ["a", "b", "zero_a", "zero_b"], ["c"])],
        {"a": (3, 5, 2)},
        ["c"],
        {
            "b": random.integers(0, 256, (2, 1)).astype("uint8"),
            "zero_a": np.asarray(3, "int8"),
            "zero_b": np.asarray([9], "uint8"),
        },
        dtypes={"a": TensorProto.INT8, "c": TensorProto.INT32},
    )
    result = tvm_edge.compile(model, gpu, fallback="none").run(inputs)["c"]
    np.testing.assert_array_equal(result, reference(model, inputs)["c"])
    if gpu == "opencl":
        assert "<< 8" not in opencl_source(model, gpu)
