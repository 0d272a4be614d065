"""Kernels of the CPU for images whose batch, lines and columns only the run tells."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import session
from tvm_edge import Dim

TYPICAL = {"n": Dim("n", min=0), "h": Dim("h", typical=40), "w": Dim("w", typical=40)}

# Shorter than a tile, as long, longer by one, several tiles, one line, one column.
SHAPES = ((1, 3, 2), (2, 8, 8), (1, 9, 9), (3, 23, 41), (1, 1, 64), (1, 37, 1), (0, 8, 8))


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") * 0.2


def _model(channels: int, *nodes: onnx.NodeProto, **weights: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", channels, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _conv(data: str, name: str, size: int = 3, stride: int = 1, group: int = 1) -> onnx.NodeProto:
    return helper.make_node(
        "Conv",
        [data, f"w_{name}"],
        [name],
        name=name,
        kernel_shape=[size, size],
        strides=[stride, stride],
        pads=[size // 2] * 4,
        group=group,
    )


def _check(model: onnx.ModelProto, channels: int, *rules: str) -> tvm_edge.CompiledModel:
    shape = (TYPICAL["n"], channels, TYPICAL["h"], TYPICAL["w"])
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": shape}, tuning_logs=False)
    found = {kernel.rule for kernel in compiled.report.kernels}
    assert set(rules) <= found
    assert "fallback" not in found
    run = session(model)
    for batch, lines, columns in SHAPES:
        data = np.random.default_rng(lines).standard_normal((batch, channels, lines, columns))
        inputs = {"x": data.astype("float32")}
        (expected,) = run.run(None, inputs)
        actual = compiled.run(inputs)["y"]
        assert actual.shape == expected.shape
        np.testing.assert_allclose(
            actual, expected, atol=1e-5 * max(np.abs(expected).max(initial=0), 1), rtol=0
        )
    return compiled


def test_convolutions_and_a_residual() -> None:
    model = _model(
        16,
        _conv("x", "a"),
        helper.make_node("Relu", ["a"], ["ra"]),
        _conv("ra", "b"),
        helper.make_node("Add", ["b", "ra"], ["s"]),
        helper.make_node("Relu", ["s"], ["rs"]),
        _conv("rs", "c", stride=2),
        _conv("c", "y", size=1),
        w_a=_weights(16, 16, 3, 3),
        w_b=_weights(16, 16, 3, 3),
        w_c=_weights(32, 16, 3, 3),
        w_y=_weights(24, 32, 1, 1),
    )
    _check(model, 16, "conv2d_blocked", "elementwise")


def test_a_residual_is_added_in_place() -> None:
    """Small tiles at the end of a line add to each element once."""
    model = _model(
        16,
        _conv("x", "a", size=1),
        _conv("x", "b", size=1),
        _conv("b", "c", size=1),
        helper.make_node("Add", ["c", "a"], ["s"]),
        _conv("s", "y", size=1),
        w_a=_weights(16, 16, 1, 1),
        w_b=_weights(32, 16, 1, 1),
        w_c=_weights(16, 32, 1, 1),
        w_y=_weights(16, 16, 1, 1),
    )
    compiled = _check(model, 16, "conv2d_blocked")
    assert any("in_place" in kernel.name for kernel in compiled.report.kernels)


def test_windows_along_one_line() -> None:
    """A tile pads its part of the line; the last one begins before what is left."""
    model = _model(
        16,
        helper.make_node("Conv", ["x", "w_a"], ["a"], kernel_shape=[1, 5], pads=[0, 2, 0, 2]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w_y"], ["y"], kernel_shape=[1, 3], pads=[0, 1, 0, 1]),
        w_a=_weights(32, 16, 1, 5),
        w_y=_weights(16, 32, 1, 3),
    )
    compiled = tvm_edge.compile(
        model, "llvm", input_shapes={"x": (1, 16, 1, "w")}, tuning_logs=False
    )
    run = session(model)
    for columns in range(1, 40):
        inputs = {"x": np.random.default_rng(columns).random((1, 16, 1, columns), "float32")}
        (expected,) = run.run(None, inputs)
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected, atol=1e-4, rtol=1e-4)


def test_square_images() -> None:
    """Lines and columns have one length, and tiles of their own."""
    model = _model(
        16,
        _conv("x", "a"),
        _conv("a", "d", group=32),
        helper.make_node("MaxPool", ["d"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        _conv("p", "y", size=1),
        w_a=_weights(32, 16, 3, 3),
        w_d=_weights(32, 1, 3, 3),
        w_y=_weights(16, 32, 1, 1),
    )
    shape = (1, 16, Dim("s", typical=40), Dim("s", typical=40))
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": shape}, tuning_logs=False)
    run = session(model)
    for side in range(1, 36):
        data = np.random.default_rng(side).standard_normal((1, 16, side, side))
        inputs = {"x": data.astype("float32")}
        (expected,) = run.run(None, inputs)
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected, atol=1e-4, rtol=1e-4)


def test_winograd_of_lines_that_are_fixed() -> None:
    """As many tiles as four times something: only an empty image has fewer than a small tile."""
    model = _model(64, _conv("x", "y"), w_y=_weights(128, 64, 3, 3))
    shape = ("n", 64, 16, Dim("w", min=0, typical=128))
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": shape}, tuning_logs=False)
    assert "winograd" in {kernel.rule for kernel in compiled.report.kernels}
    run = session(model)
    for batch, columns in ((1, 1), (1, 3), (1, 4), (2, 5), (3, 130), (0, 8), (1, 0)):
        data = np.random.default_rng(columns).standard_normal((batch, 64, 16, columns))
        inputs = {"x": data.astype("float32")}
        actual = compiled.run(inputs)["y"]
        assert actual.shape == (batch, 128, 16, columns)
        if actual.size:
            (expected,) = run.run(None, inputs)
            np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)


def test_winograd() -> None:
    model = _model(
        64,
        _conv("x", "a"),
        helper.make_node("Add", ["a", "x"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["t"]),
        helper.make_node("Mul", ["s", "t"], ["y"]),
        w_a=_weights(64, 64, 3, 3),
    )
    _check(model, 64, "winograd")


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_and_pools(stride: int) -> None:
    pool = {"kernel_shape": [3, 3], "strides": [stride, stride], "pads": [1] * 4}
    model = _model(
        16,
        _conv("x", "a", size=1),
        helper.make_node("Relu", ["a"], ["ra"]),
        _conv("ra", "d", stride=stride, group=32),
        helper.make_node("Clip", ["d", "zero", "six"], ["cd"]),
        helper.make_node("MaxPool", ["cd"], ["p"], **pool),
        helper.make_node("AveragePool", ["p"], ["q"], **pool),
        _conv("q", "y", size=1),
        w_a=_weights(32, 16, 1, 1),
        w_d=_weights(32, 1, 3, 3),
        w_y=_weights(16, 32, 1, 1),
        zero=np.float32(0).reshape(()),
        six=np.float32(6).reshape(()),
    )
    _check(model, 16, "conv2d_blocked", "window_blocked")


def test_channels_that_are_shuffled_and_joined() -> None:
    """Channels that fill blocks of neither 8 nor 16 are picked out of images."""
    model = _model(
        16,
        _conv("x", "a", size=1),
        _conv("x", "b"),
        helper.make_node("Concat", ["a", "b"], ["j"], axis=1),
        _conv("j", "y", size=1),
        w_a=_weights(44, 16, 1, 1),
        w_b=_weights(28, 16, 3, 3),
        w_y=_weights(16, 72, 1, 1),
    )
    _check(model, 16, "conv2d_blocked", "handwritten")


def test_elements_along_open_lines() -> None:
    model = _model(
        5,
        helper.make_node("Add", ["x", "bias"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["t"]),
        helper.make_node("Transpose", ["t"], ["y"], perm=[0, 2, 3, 1]),
        bias=_weights(5, 1, 1),
    )
    _check(model, 5, "elementwise")


def test_nothing_is_read_behind_the_last_row() -> None:
    """A small tile has more rows than are left. The page behind the input may not be read."""
    width = mmap.PAGESIZE // 4
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(_weights(width, 64), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    run = session(model)
    for rows in range(1, 20):
        pages = mmap.mmap(-1, (rows + 1) * mmap.PAGESIZE)
        whole = np.frombuffer(pages, "float32").reshape(rows + 1, width)
        whole[:rows] = np.random.default_rng(rows).standard_normal((rows, width))
        begin = whole.ctypes.data + rows * mmap.PAGESIZE
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        assert protect(ctypes.c_void_p(begin), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        inputs = {"x": whole[:rows]}
        (expected,) = run.run(None, {"x": inputs["x"].copy()})
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected, atol=1e-3, rtol=0)
