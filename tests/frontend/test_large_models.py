"""Models of many weights are read without a copy of them per step, and above 2 GiB."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge.errors import InvalidModelError
from tvm_edge.frontend.onnx_source import checked_proto


def dense() -> onnx.ModelProto:
    """``x @ w.T``, the weight large enough to be set aside while the model is checked."""
    weight = np.random.default_rng(0).standard_normal((200, 300), np.float32)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    return make_model([node], {"x": (1, 300)}, ["y"], {"w": weight})


def test_what_is_set_aside_comes_back() -> None:
    model = dense()
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    model.graph.output[0].type.tensor_type.ClearField("shape")  # to be inferred
    checked, _ = checked_proto(model)
    assert [i.name for i in checked.graph.input] == ["x"]
    np.testing.assert_array_equal(numpy_helper.to_array(checked.graph.initializer[0]), weight)
    dims = checked.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [1, 200]


def test_a_large_weight_of_a_wrong_shape_is_refused() -> None:
    model = dense()
    model.graph.initializer[0].dims[:] = [300, 200]
    with pytest.raises(InvalidModelError, match="breaks the ONNX specification"):
        tvm_edge.compile(model, "llvm")


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_large_weight_with_too_little_data_is_refused(kept: float) -> None:
    model = dense()
    tensor = model.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[: int(kept * len(tensor.raw_data)) // 4 * 4]
    with pytest.raises(InvalidModelError, match="'w' does not fit its shape"):
        tvm_edge.compile(model, "llvm")


def test_a_large_weight_named_twice_is_refused() -> None:
    model = dense()
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(InvalidModelError, match="w"):
        tvm_edge.compile(model, "llvm")


@pytest.mark.full
def test_external_data_above_2_gib(tmp_path: Path) -> None:
    # Five times its size in memory, for a minute. The file is sparse: zeros but for four numbers.
    shape = (1 << 14, 1 << 15)
    size = 4 * math.prod(shape)
    assert size == 1 << 31
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
        file.write(np.array([1, 2], np.float32).tobytes())
        file.seek(size - 8)
        file.write(np.array([3, 4], np.float32).tobytes())
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="w.bin")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, shape[1]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, shape[0]))],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    compiled = tvm_edge.compile(tmp_path / "m.onnx", "llvm")
    (y,) = compiled.run({"x": np.ones((1, shape[1]), np.float32)})["y"]
    expected = np.zeros(shape[0], np.float32)
    expected[0], expected[-1] = 1 + 2, 3 + 4
    np.testing.assert_array_equal(y, expected)
