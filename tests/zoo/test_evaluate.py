"""The three operators of the calibration that are not onnx's own agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tvm_edge.zoo.evaluate import OPSET, evaluate


def by_onnxruntime(
    op_type: str, inputs: list[NDArray[np.float32]], **attributes: Any
) -> NDArray[np.float32]:
    names = ["x", "w", "b"][: len(inputs)]
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape)
        for n, x in zip(names, inputs, strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op_type, names, ["y"], **attributes)
    model = helper.make_model(
        helper.make_graph([node], "one", infos, [result]),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (y,) = session.run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(y)


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


def test_types_and_several_outputs_pass_through() -> None:
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    parts = evaluate("Split", [x, np.array([1, 2])], 2, axis=1)
    assert [p.dtype for p in parts] == [np.float64] * 2
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), x)
