"""A small network whose kernels are of several kinds."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.onnx_models import make_model


def network(scale: float = 1.0) -> onnx.ModelProto:
    """A convolution, a depthwise and a pointwise one, each with an activation, and logits."""
    random = np.random.default_rng(1)

    def weight(*shape: int) -> np.ndarray:
        value: np.ndarray = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return value.astype("float32")

    ones = np.ones(64, "float32")
    return make_model(
        [
            helper.make_node("Conv", ["x", "w0"], ["c0"], name="stem", pads=[1] * 4),
            helper.make_node(
                "BatchNormalization", ["c0", "s", "s", "m", "s"], ["n0"], name="stem/bn"
            ),
            helper.make_node("Relu", ["n0"], ["r0"], name="stem/relu"),
            helper.make_node("Mul", ["r0", "k"], ["l0"], name="louder"),
            helper.make_node("Conv", ["l0", "w1"], ["c1"], name="depth", pads=[1] * 4, group=64),
            helper.make_node("Relu", ["c1"], ["r1"], name="depth/relu"),
            helper.make_node("Conv", ["r1", "w2"], ["c2"], name="point"),
            helper.make_node("Add", ["c2", "l0"], ["a2"], name="residual"),
            helper.make_node("Relu", ["a2"], ["r2"], name="point/relu"),
            helper.make_node("GlobalAveragePool", ["r2"], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
            helper.make_node("Gemm", ["f", "w3"], ["y"], name="logits", transB=1),
        ],
        {"x": (1, 3, 48, 48)},
        ["y"],
        {
            "w0": weight(64, 3, 3, 3),
            "s": ones,
            "m": ones * 0,
            "k": np.full((64, 1, 1), scale, "float32"),
            "w1": weight(64, 1, 3, 3),
            "w2": weight(64, 64, 1, 1),
            "w3": weight(5, 64),
        },
    )
