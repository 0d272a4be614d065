"""Recurrent layers, pools with indices, padding, quantisation and others, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.frontend.single import close, single
from tests.onnx_models import random_input

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(operator: str, directions: int, *, lengths: bool) -> dict[str, np.ndarray]:
    """Operands of a layer of 3 hidden units, over 5 steps of 2 sequences of 4 numbers."""
    gates = GATES[operator] * 3
    operands = {
        "x": random_input((5, 2, 4)),
        "w": random_input((directions, gates, 4), 1),
        "r": random_input((directions, gates, 3), 2),
        "b": random_input((directions, 2 * gates), 3),
        "lengths": np.asarray([5, 3], "int32"),
        "h": random_input((directions, 2, 3), 4),
    }
    if operator == "LSTM":
        operands |= {
            "c": random_input((directions, 2, 3), 5),
            "p": random_input((directions, 9), 6),
        }
    if not lengths:
        del operands["lengths"]
    return operands


@pytest.mark.parametrize(
    ("operator", "direction", "attributes"),
    [
        (
            "RNN",
            "forward",
            {"activations": ["ScaledTanh"], "activation_alpha": [0.5], "activation_beta": [2.0]},
        ),
        ("RNN", "bidirectional", {}),
        ("GRU", "reverse", {"linear_before_reset": 1}),
        ("GRU", "bidirectional", {"clip": 0.4}),
        ("LSTM", "reverse", {"input_forget": 1}),
        ("LSTM", "bidirectional", {"clip": 0.7}),
    ],
)
def test_recurrent_layers(operator: str, direction: str, attributes: dict[str, Any]) -> None:
    """With sequences of two lengths, a state to begin with, and peepholes."""
    directions = 2 if direction == "bidirectional" else 1
    operands = recurrent(operator, directions, lengths=True)
    names = ["x", "w", "r", "b", "lengths", "h", "c", "p"]
    node = helper.make_node(
        operator,
        [name for name in names if name in operands],
        ["y", "last", "cell"][: 3 if operator == "LSTM" else 2],
        hidden_size=3,
        direction=direction,
        **attributes,
    )
    run = ("x", "lengths", "h", "c")
    close(
        node,
        {name: value for name, value in operands.items() if name in run},
        {name: value for name, value in operands.items() if name not in run},
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "storage_order": 1},
        {"kernel_shape": [2, 3], "strides": [1, 2], "auto_pad": "SAME_LOWER"},
        {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [0, 1, 1, 0]},
    ],
    ids=str,
)
def test_max_pool_with_indices(attributes: dict[str, Any]) -> None:
    """Values repeat, so that ties say which index is taken."""
    x = np.round(random_input((2, 3, 7, 9)) * 2).astype("float32")
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)
    close(node, {"x": x}, outputs={"i": TensorProto.INT64}, rtol=0)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[1, 0, 3, 2], [-1, 2, 0, -2]], ids=str)
def test_pad(mode: str, pads: list[int]) -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    close(node, {"x": random_input((5, 6))}, {"pads": np.asarray(pads, "int64")}, rtol=0)


def test_pad_wraps_more_than_once() -> None:
    """Against NumPy: ONNX Runtime refuses a pad that is wider than the axis."""
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="wrap")
    x = random_input((3, 2))
    model = single(node, {"x": x}, {"pads": np.asarray([7, 0, 4, 5], "int64")})
    ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_array_equal(ours, np.pad(x, [(7, 4), (0, 5)], mode="wrap"))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_reduced_extrema_keep_nan(operator: str) -> None:
    """Against NumPy: ONNX Runtime drops a NaN in some positions."""
    x = random_input((4, 5))
    x[1, 2] = x[2, 0] = x[2, 4] = np.nan
    model = single(
        helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0),
        {"x": x},
        {"axes": np.asarray([1], "int64")},
    )
    reduce = np.max if operator == "ReduceMax" else np.min
    ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_array_equal(ours, reduce(x, axis=1))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_quantize_and_back(axis: int | None, kind: str) -> None:
    """Halves among the quotients, which go to even; values beyond the type's range."""
    x = np.linspace(-40, 40, 12, dtype="float32").reshape(3, 4)
    x[0, :3] = [0.25, 0.75, 1.25]
    count = 1 if axis is None else x.shape[axis]
    shape = () if axis is None else (count,)
    constants = {
        "scale": np.full(shape, 0.5, "float32") * np.arange(1, count + 1).reshape(shape),
        "zero": (np.arange(count).reshape(shape) + 3).astype(kind),
    }
    constants["scale"] = constants["scale"].astype("float32")
    attributes = {} if axis is None else {"axis": axis}
    names = ["x", "scale", "zero"]
    quantized = TensorProto.UINT8 if kind == "uint8" else TensorProto.INT8
    close(
        helper.make_node("QuantizeLinear", names, ["y"], **attributes),
        {"x": x},
        constants,
        outputs={"y": quantized},
        rtol=0,
    )
    close(
        helper.make_node("DequantizeLinear", names, ["y"], **attributes),
        {"x": np.arange(12).reshape(3, 4).astype(kind)},
        constants,
        outputs={"y": TensorProto.FLOAT},
    )


def test_quantized_convolution_of_groups_with_padding() -> None:
    rng = np.random.default_rng(0)
    constants = {
        "xs": np.asarray(0.02, "float32"),
        "xz": np.asarray(120, "uint8"),
        "w": rng.integers(-128, 128, (4, 2, 3, 3), "int8"),
        "ws": rng.uniform(0.005, 0.02, 4).astype("float32"),
        "wz": np.zeros(4, "int8"),
        "ys": np.asarray(0.08, "float32"),
        "yz": np.asarray(130, "uint8"),
        "b": rng.integers(-900, 900, 4, "int32"),
    }
    node = helper.make_node(
        "QLinearConv",
        ["x", *constants],
        ["y"],
        group=2,
        pads=[1, 2, 1, 0],
        strides=[2, 1],
    )
    x = rng.integers(0, 256, (1, 4, 7, 6), "uint8")
    model = single(node, {"x": x}, constants)
    ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"].astype("int32")
    from tests.onnx_models import reference

    # A quotient within float32's last bit of a half may go either way.
    difference = np.abs(ours - reference(model, {"x": x})["y"].astype("int32"))
    assert difference.max() <= 1 and np.count_nonzero(difference) <= 1
    assert len(np.unique(ours)) > 20


def test_deformable_convolution() -> None:
    """Against a loop in float64: offset groups, groups, a mask, points far outside."""
    rng = np.random.default_rng(0)
    x, w = random_input((2, 4, 6, 7)), random_input((6, 2, 3, 2), 1)
    offset = (random_input((2, 2 * 2 * 6, 3, 7), 2) * 2).astype("float32")
    offset[0, 0, 0, 0] = 1e30
    mask = rng.uniform(0, 1, (2, 2 * 6, 3, 7)).astype("float32")
    bias = random_input((6,), 3)
    attributes = {"group": 2, "offset_group": 2, "pads": [1, 0, 0, 1], "strides": [2, 1]}
    node = helper.make_node("DeformConv", ["x", "w", "o", "b", "m"], ["y"], **attributes)
    inputs = {"x": x, "o": offset, "m": mask}
    model = single(node, inputs, {"w": w, "b": bias})
    ours = tvm_edge.compile(model, "llvm").run(inputs)["y"]
    np.testing.assert_allclose(ours, deformed(x, w, offset, bias, mask), rtol=1e-4, atol=1e-4)


def deformed(
    x: np.ndarray, w: np.ndarray, offset: np.ndarray, bias: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """The definition, of the attributes of the test above."""
    pictures, channels, height, width = x.shape
    filters, inner, kh, kw = w.shape
    oh, ow = offset.shape[2:]
    padded = np.pad(x.astype("float64"), [(0, 0), (0, 0), (1, 1), (1, 1)])
    y = np.zeros((pictures, filters, oh, ow)) + bias[None, :, None, None]
    for n, o, i, j in np.ndindex(pictures, filters, oh, ow):
        for c, a, b in np.ndindex(inner, kh, kw):
            channel = o // (filters // 2) * inner + c
            point = (channel // (channels // 2) * kh + a) * kw + b
            row = i * 2 - 1 + a + float(offset[n, 2 * point, i, j])
            column = j + b + float(offset[n, 2 * point + 1, i, j])
            if not (-1 < row < height and -1 < column < width):
                continue
            r, s = int(np.floor(row)), int(np.floor(column))
            p, q = row - r, column - s
            around = padded[n, channel, r + 1 : r + 3, s + 1 : s + 3]
            share = np.outer([1 - p, p], [1 - q, q])
            value = (around * share[: around.shape[0], : around.shape[1]]).sum()
            y[n, o, i, j] += value * w[o, c, a, b] * mask[n, point, i, j]
    return y


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("length", [7, 12])
def test_fourier_transform(onesided: int, length: int) -> None:
    """Against NumPy: shorter and longer than the data, of real numbers and back."""
    x = random_input((2, 10, 3))
    node = helper.make_node("DFT", ["x", "n", "axis"], ["y"], onesided=onesided)
    constants = {"n": np.asarray(length, "int64"), "axis": np.asarray(1, "int64")}
    data = {"x": x[..., None]}
    ours = tvm_edge.compile(single(node, data, constants, opset=20), "llvm").run(data)["y"]
    expected = (np.fft.rfft if onesided else np.fft.fft)(x, length, axis=1)
    np.testing.assert_allclose(ours[..., 0] + 1j * ours[..., 1], expected, rtol=1e-4, atol=1e-5)
