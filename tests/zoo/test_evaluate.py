"""The operators of the calibration that are not onnx's own agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_models import reference
from tvm_edge.zoo.evaluate import OPSET, evaluate


def by_onnxruntime(
    op_type: str, inputs: list[NDArray[Any] | None], **attributes: Any
) -> NDArray[np.float32]:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op_type, names, ["y"], **attributes)
    model = helper.make_model(
        helper.make_graph([node], "one", infos, [result]),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    return reference(model, feeds)["y"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "attributes"),
    [
        (3, 5, (1, 1), {}),
        (3, 5, (3, 3), {"pads": [1, 1, 1, 1]}),
        (3, 5, (7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        (4, 4, (3, 3), {"strides": [2, 2], "pads": [0, 0, 1, 1], "group": 4}),
        (4, 8, (3, 3), {"group": 4}),
        (6, 4, (1, 1), {"group": 2}),
        (3, 2, (3, 5), {"strides": [3, 2], "pads": [1, 0, 2, 4]}),
        (3, 2, (3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ],
)
def test_conv(
    channels: int, outputs: int, kernel: tuple[int, int], attributes: dict[str, Any], bias: bool
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, channels, 13, 16), np.float32)
    w = rng.standard_normal((outputs, channels // attributes.get("group", 1), *kernel), np.float32)
    inputs = [x, w, rng.standard_normal(outputs, np.float32)][: 3 if bias else 2]
    (got,) = evaluate("Conv", inputs, kernel_shape=list(kernel), **attributes)
    expected = by_onnxruntime("Conv", inputs, kernel_shape=list(kernel), **attributes)
    # Float32 sums of at most 147 terms of unit scale.
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("size", [(12, 12), (13, 16), (15, 14)])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "dilations": [2, 1]},
    ],
)
def test_max_pool(size: tuple[int, int], attributes: dict[str, Any]) -> None:
    # All negative: a pool that pads with zeros would show.
    x = -1 - np.random.default_rng(0).random((2, 3, *size), np.float32)
    (got,) = evaluate("MaxPool", [x], **attributes)
    np.testing.assert_array_equal(got, by_onnxruntime("MaxPool", [x], **attributes))


@pytest.mark.parametrize("size", [(12, 12), (13, 16), (15, 14)])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
    ],
)
def test_average_pool(
    size: tuple[int, int], attributes: dict[str, Any], count_include_pad: int
) -> None:
    x = np.random.default_rng(0).random((2, 3, *size), np.float32)
    attributes = {**attributes, "count_include_pad": count_include_pad}
    (got,) = evaluate("AveragePool", [x], **attributes)
    # Sums of at most 9 numbers below 1, in another order.
    np.testing.assert_allclose(got, by_onnxruntime("AveragePool", [x], **attributes), rtol=1e-6)


@pytest.mark.parametrize("piece", [1, 10, 1 << 24])
@pytest.mark.parametrize("bias", [False, True])
def test_gemm(bias: bool, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_edge.zoo.evaluate._GEMM_PIECE", piece)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5), np.float32), rng.standard_normal((7, 5), np.float32)
    inputs = [x, w, rng.standard_normal(7, np.float32)][: 3 if bias else 2]
    expected = by_onnxruntime("Gemm", inputs, transB=1)
    (got,) = evaluate("Gemm", inputs, transB=1)
    # Sums of five terms of unit scale.
    np.testing.assert_allclose(got, expected, atol=1e-5)
    (exact,) = evaluate("Gemm", [x.astype(np.float64), *inputs[1:]], transB=1)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["align_corners", "half_pixel"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((5, 7), (11, 4)),
        ((1, 1), (3, 5)),
        ((2, 3), (1, 9)),
        ((4, 4), (4, 4)),
        ((17, 17), (257, 257)),
    ],
)
def test_linear_resize(old: tuple[int, int], new: tuple[int, int], mode: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, *old), np.float32)
    sizes = np.array([2, 3, *new])
    attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    (got,) = evaluate("Resize", [x, None, None, sizes], **attributes)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    stored = [numpy_helper.from_array(sizes, "sizes")]
    model = helper.make_model(
        helper.make_graph([node], "one", [info], [result], stored),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    expected = reference(model, {"x": x})["y"]
    # ONNX Runtime computes positions in float32: up to 1e-6 of 17 pixels.
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_types_and_several_outputs_pass_through() -> None:
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    parts = evaluate("Split", [x, np.array([1, 2])], 2, axis=1)
    assert [p.dtype for p in parts] == [np.float64] * 2
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), x)


def test_roi_align() -> None:
    # Over the edge by more than a pixel of the feature map, thinner than one, and inside.
    regions = np.array(
        [[3, 5, 60, 41], [-30, -20, 30, 25], [40, 60, 130, 140], [9, 9, 10, 9.5]], np.float32
    )
    pictures = np.array([0, 1, 1, 0])
    x = np.random.default_rng(0).random((2, 3, 7, 6), np.float32)
    attributes: dict[str, Any] = {
        "coordinate_transformation_mode": "half_pixel",
        "mode": "avg",
        "output_height": 7,
        "output_width": 5,
        "sampling_ratio": 2,
        "spatial_scale": 1 / 16,
    }
    (got,) = evaluate("RoiAlign", [x, regions, pictures], **attributes)
    expected = by_onnxruntime("RoiAlign", [x, regions, pictures], **attributes)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("size", [(8, 10), (7, 9), (3, 20)])
def test_nearest_resize(size: tuple[int, int]) -> None:
    x = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    sizes = np.array([2, 3, *size])
    attributes = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    (got,) = evaluate("Resize", [x, None, None, sizes], **attributes)
    expected = by_onnxruntime("Resize", [x, None, None, sizes], **attributes)
    np.testing.assert_array_equal(got, expected)
