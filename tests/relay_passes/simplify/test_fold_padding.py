"""A Pad before a convolution is the convolution's own padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference


def padded(
    pads: list[int], shape: tuple[Any, ...], value: float = 0.0, kind: str = "constant"
) -> Any:
    return make_model(
        [
            helper.make_node("Pad", ["x", "pads", "value"], ["p"], mode=kind),
            helper.make_node("Conv", ["p", "w"], ["y"], strides=[2, 2], pads=[1, 0, 0, 2]),
        ],
        {"x": shape},
        ["y"],
        {
            "pads": np.array(pads, "int64"),
            "value": np.array(value, "float32"),
            "w": random_input((16, 4, 3, 3), 1),
        },
    )


@pytest.mark.parametrize("shape", [(1, 4, 7, 9), ("n", 4, "h", "w")], ids=["fixed", "open"])
def test_zeros_are_padding(shape: tuple[Any, ...]) -> None:
    model, x = padded([0, 0, 0, 1, 0, 0, 2, 3], shape), random_input((1, 4, 7, 9))
    compiled = tvm_edge.compile(model, "llvm")
    assert not any(kernel.name.startswith("pad") for kernel in compiled.report.kernels)
    (expected,) = reference(model, {"x": x}).values()
    np.testing.assert_allclose(compiled.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("pads", "value", "kind"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], 1.5, "constant"),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.0, "edge"),
        ([0, 0, -1, 0, 0, 0, 1, 1], 0.0, "constant"),
        ([1, 0, 1, 1, 0, 0, 1, 1], 0.0, "constant"),
    ],
)
def test_other_pads_stay(pads: list[int], value: float, kind: str) -> None:
    model, x = padded(pads, (1, 4, 7, 9), value, kind), random_input((1, 4, 7, 9))
    (expected,) = reference(model, {"x": x}).values()
    actual = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
