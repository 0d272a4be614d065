"""Operators take what counting by hand says."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.onnx_models import make_model
from tvm_edge.frontend.normal_form import NodeCost
from tvm_edge.frontend.onnx_costs import node_costs
from tvm_edge.ops.flops import Operation, count
from tvm_edge.ops.registry import find

Shapes = dict[str, tuple[int, ...]]


def cost(
    op_type: str, data: Shapes, weights: Shapes | None = None, outputs: int = 1, **attributes: Any
) -> NodeCost:
    """Return the cost of one node that reads `data`, then `weights`; shapes are inferred."""
    names = [*data, *(weights or {})]
    results = [f"y{i}" for i in range(outputs)]
    model = make_model(
        [helper.make_node(op_type, names, results, **attributes)],
        data,
        results,
        {name: np.ones(shape, "float32") for name, shape in (weights or {}).items()},
    )
    (found,) = node_costs(model)
    return found


def windows(length: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Count the windows that fit, by sliding one."""
    reach, padded = dilation * (kernel - 1) + 1, length + 2 * pad
    return sum(1 for start in range(0, padded, stride) if start + reach <= padded)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("group", "stride", "pad", "dilation"),
    [(1, 1, 1, 1), (1, 2, 0, 1), (2, 1, 0, 2), (3, 2, 2, 3), (6, 1, 1, 1)],
    ids=str,
)
def test_convolution(group: int, stride: int, pad: int, dilation: int, bias: bool) -> None:
    """Strided, dilated, grouped, depthwise: one multiply-add per output, channel and tap."""
    batch, channels, outputs, height, width, kernel = 2, 6, 12, 13, 9, (3, 2)
    weights = {"w": (outputs, channels // group, *kernel)} | ({"b": (outputs,)} if bias else {})
    found = cost(
        "Conv",
        {"x": (batch, channels, height, width)},
        weights,
        group=group,
        strides=[stride] * 2,
        pads=[pad] * 4,
        dilations=[dilation] * 2,
    )
    positions = windows(height, kernel[0], stride, pad, dilation) * windows(
        width, kernel[1], stride, pad, dilation
    )
    per_position = (channels // group) * kernel[0] * kernel[1]
    assert found.flops == 2 * batch * outputs * positions * per_position
    assert found.parameters == outputs * per_position + bias * outputs
    assert found.weight_bytes == 4 * found.parameters
    assert found.input_bytes == 4 * batch * channels * height * width
    assert found.output_bytes == 4 * batch * outputs * positions


@pytest.mark.parametrize(("dims", "kernel"), [((11,), (3,)), ((5, 6, 7), (2, 3, 1))])
def test_convolution_in_one_and_three_dimensions(
    dims: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    found = cost("Conv", {"x": (1, 4, *dims)}, {"w": (5, 4, *kernel)})
    positions = np.prod([d - k + 1 for d, k in zip(dims, kernel, strict=True)])
    assert found.flops == 2 * 5 * 4 * positions * np.prod(kernel)


@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution(group: int) -> None:
    """Each input pixel is multiplied with its channel's weights and added to the output."""
    channels, outputs, height, width, kernel = 4, 6, 5, 7, (3, 4)
    multiply_adds = 0
    for _ in product(range(channels), range(height), range(width)):
        multiply_adds += outputs // group * kernel[0] * kernel[1]
    found = cost(
        "ConvTranspose",
        {"x": (1, channels, height, width)},
        {"w": (channels, outputs // group, *kernel)},
        group=group,
        strides=[2, 2],
    )
    assert found.flops == 2 * multiply_adds


@pytest.mark.parametrize("transposed_a", [0, 1])
@pytest.mark.parametrize("transposed_b", [0, 1])
def test_gemm(transposed_a: int, transposed_b: int) -> None:
    rows, columns, depth = 3, 5, 7
    a = (depth, rows) if transposed_a else (rows, depth)
    b = (columns, depth) if transposed_b else (depth, columns)
    found = cost(
        "Gemm", {"a": a}, {"b": b, "c": (columns,)}, transA=transposed_a, transB=transposed_b
    )
    assert found.flops == 2 * rows * columns * depth
    assert found.parameters == columns * depth + columns


@pytest.mark.parametrize(
    ("a", "b", "multiply_adds"),
    [
        ((4, 5), (5, 6), 4 * 5 * 6),
        ((2, 3, 4, 5), (2, 3, 5, 6), 6 * 4 * 5 * 6),
        ((2, 1, 4, 5), (3, 5, 6), 6 * 4 * 5 * 6),  # broadcast
        ((5,), (5, 6), 5 * 6),
        ((2, 4, 5), (5,), 2 * 4 * 5),
        ((5,), (5,), 5),
    ],
    ids=str,
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], multiply_adds: int) -> None:
    assert cost("MatMul", {"a": a, "b": b}).flops == 2 * multiply_adds


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        ("ij,jk", [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        ("ij->ji", [(3, 4)], 0),
        ("ij->i", [(3, 4)], 12),
        ("...j,jk->...k", [(3, 4), (4, 5)], None),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], expected: int | None) -> None:
    operation = Operation(shapes, [()], {"equation": equation.encode()})
    assert count(find("Einsum").flops, operation) == expected


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_pooling(op_type: str) -> None:
    """A comparison or an addition per element of each window."""
    found = cost(op_type, {"x": (1, 3, 9, 8)}, kernel_shape=[3, 2], strides=[2, 2])
    assert found.flops == 3 * (4 * 4) * (3 * 2)
    assert found.parameters == found.weight_bytes == 0


@pytest.mark.parametrize(
    ("op_type", "attributes", "expected"),
    [
        ("GlobalAveragePool", {}, 3 * 5 * 7),
        ("ReduceMean", {"axes": [1]}, 3 * 5 * 7),
        ("Relu", {}, 3 * 5 * 7),
        ("Softmax", {"axis": 1}, 5 * 3 * 5 * 7),
        ("LRN", {"size": 5}, (5 + 4) * 3 * 5 * 7),
        ("Transpose", {}, 0),
        ("Flatten", {}, 0),
    ],
)
def test_the_rest(op_type: str, attributes: dict[str, Any], expected: int) -> None:
    assert cost(op_type, {"x": (1, 3, 5, 7)}, **attributes).flops == expected


def test_recurrent_layers() -> None:
    """Four gates, each with a product of the input and one of the state, every step."""
    steps, batch, inputs, hidden = 5, 2, 3, 4
    found = cost(
        "LSTM",
        {"x": (steps, batch, inputs)},
        {"w": (1, 4 * hidden, inputs), "r": (1, 4 * hidden, hidden)},
        hidden_size=hidden,
    )
    assert found.flops == 2 * steps * batch * 4 * hidden * (inputs + hidden)


def test_broadcasting_counts_results() -> None:
    found = cost("Add", {"x": (4, 1, 6), "y": (5, 1)})
    assert found.flops == 4 * 5 * 6
    assert found.input_bytes == 4 * (24 + 5)


def test_work_that_depends_on_data_is_not_guessed() -> None:
    model = make_model(
        [helper.make_node("NonZero", ["x"], ["y"])],
        {"x": (3, 4)},
        ["y"],
        dtypes={"y": TensorProto.INT64},
    )
    (found,) = node_costs(model)
    assert found.flops is None and found.output_bytes is None
    assert found.input_bytes == 48


def test_settings_are_no_parameters() -> None:
    """Limits, shapes and axes are constants of the file, and nothing that was learned."""
    model = make_model(
        [
            helper.make_node("Clip", ["x", "low", "high"], ["c"]),
            helper.make_node("Reshape", ["c", "shape"], ["r"]),
            helper.make_node("Mul", ["r", "scale"], ["y"]),
        ],
        {"x": (2, 6)},
        ["y"],
        {
            "low": np.float32(0),
            "high": np.float32(6),
            "shape": np.array([3, 4]),
            "scale": np.ones((3, 4), "float32"),
        },
    )
    assert [c.parameters for c in node_costs(model)] == [0, 0, 12]
    assert [c.weight_bytes for c in node_costs(model)] == [8, 16, 48]


def test_one_tensor_read_twice_is_there_once() -> None:
    model = make_model([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": (2, 6)}, ["y"])
    (found,) = node_costs(model)
    assert found.input_bytes == found.output_bytes == 48


@pytest.mark.parametrize(
    ("dtype", "nbytes"),
    [("float16", 26), ("uint8", 13), (ml_dtypes.bfloat16, 26), (ml_dtypes.int4, 7)],
)
def test_bytes_follow_the_type(dtype: Any, nbytes: int) -> None:
    """Half-byte types are packed two by two, the last one alone."""
    weight = onnx.numpy_helper.from_array(np.ones(13).astype(dtype), "w")
    kind = weight.data_type
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", kind, [13])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (found,) = node_costs(model)
    assert found.weight_bytes == found.output_bytes == nbytes
