"""ONNX's quantised operators in whole numbers, against ONNX Runtime, on a CPU and by OpenCL."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.frontend.single import agree, single
from tests.onnx_models import make_model, reference
from tests.quantized_models import QuantizedGraph, assert_same_numbers, numbers, with_output_shapes

U8 = TensorProto.UINT8


@pytest.mark.parametrize("a_type", ["uint8", "int8"])
def test_sums_of_integers_are_exact(a_type: str) -> None:
    """ConvInteger and MatMulInteger, whose zero points are of a tensor or of a row."""
    zero = np.asarray(7, a_type)
    matmul = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    a, b = numbers((5, 24), a_type), numbers((24, 40), "uint8", 1)
    constants = {"b": b, "za": zero, "zb": np.asarray(130, "uint8")}
    agree(single(matmul, {"a": a}, constants, outputs={"y": TensorProto.INT32}), {"a": a})
    conv = helper.make_node("ConvInteger", ["a", "w", "za"], ["y"], pads=[1, 2, 0, 1])
    image, w = numbers((1, 3, 9, 8), "uint8"), numbers((5, 3, 3, 3), "uint8", 1)
    constants = {"w": w, "za": np.asarray(7, "uint8")}
    agree(single(conv, {"a": image}, constants, outputs={"y": TensorProto.INT32}), {"a": image})


def test_a_dynamically_quantised_layer() -> None:
    """DynamicQuantizeLinear, MatMulInteger, and the scale behind them."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero", "wz"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "scale"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "ws"], ["y"]),
    ]
    weights = {
        "w": numbers((24, 40), "int8"),
        "wz": np.asarray(0, "int8"),
        "ws": np.asarray(0.01, "float32"),
    }
    model = make_model(nodes, {"x": (3, 24)}, ["y"], weights)
    x = np.random.default_rng(3).standard_normal((3, 24)).astype("float32")
    ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_allclose(ours, reference(model, {"x": x})["y"], rtol=1e-6, atol=1e-6)


def microsoft(
    kind: str, operands: list[str], constants: dict[str, np.ndarray], **attributes: Any
) -> onnx.ModelProto:
    """A model of one operator of ONNX Runtime's own between bytes."""
    given = {name: value for name, value in INPUTS.items() if name in operands}
    node = helper.make_node(kind, operands, ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(name, U8, value.shape) for name, value in given.items()],
        [helper.make_tensor_value_info("y", U8, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return with_output_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))


INPUTS = {"a": numbers((1, 16, 6, 7), "uint8"), "b": numbers((1, 16, 6, 7), "uint8", 1)}
SCALES = {
    "as": np.asarray(0.02, "float32"),
    "az": np.asarray(120, "uint8"),
    "bs": np.asarray(0.03, "float32"),
    "bz": np.asarray(99, "uint8"),
    "ys": np.asarray(0.025, "float32"),
    "yz": np.asarray(110, "uint8"),
}


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("QLinearAdd", "a as az b bs bz ys yz", {}),
        ("QLinearMul", "a as az b bs bz ys yz", {}),
        ("QLinearConcat", "ys yz a as az b bs bz", {"axis": 1}),
        ("QLinearGlobalAveragePool", "a as az ys yz", {"channels_last": 0}),
        (
            "QLinearAveragePool",
            "a as az ys yz",
            {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
        ),
        ("QLinearLeakyRelu", "a as az ys yz", {"alpha": 0.2}),
        ("QLinearSigmoid", "a as az ys yz", {}),
    ],
)
def test_operators_between_bytes(kind: str, operands: str, attributes: dict[str, Any]) -> None:
    names = operands.split()
    constants = {name: value for name, value in SCALES.items() if name in names}
    model = microsoft(kind, names, constants, **attributes)
    inputs = {name: value for name, value in INPUTS.items() if name in names}
    assert_same_numbers(tvm_edge.compile(model, "llvm"), model, inputs)


def test_int8_models_run_by_opencl_too(gpu: str) -> None:
    """In float32 between bytes where a device has no kernel of whole numbers."""
    graph = QuantizedGraph(dtype="int8")
    data = graph.input(1, 16, 9, 9)
    x = graph.quantized(graph.conv(data, (32, 16, 3, 3), pads=[1] * 4), 0.04)
    deep = graph.conv(x, (32, 1, 3, 3), scale=0.04, group=32, pads=[1] * 4)
    y = graph.quantized(graph.op("Relu", deep), 0.03, -128)
    pooled = graph.op("MaxPool", graph.op("Add", x, y), kernel_shape=[2, 2], strides=[2, 2])
    graph.quantized(pooled, 0.0613)  # no sum of the two scales lies half way between two numbers
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    assert {kernel.device for kernel in compiled.report.kernels} == {gpu}
    assert_same_numbers(compiled, graph.model(), graph.values)
