"""Layer normalisation in the ways exporters write it, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper

import tvm_edge
from tests.onnx_models import make_model, random_input

SHAPE = (2, 3, 17)
EPSILON = 1e-5


def written(root: str, square: str, axes: list[int], bias: tuple[int, ...] = (17,)) -> ModelProto:
    """A model of means, a difference, a square and a root, scaled and with a bias."""
    constants = {
        "two": np.float32(2),
        "half": np.float32(0.5),
        "one": np.float32(1),
        "epsilon": np.float32(EPSILON),
        "scale": random_input((17,), 1),
        "bias": random_input(bias, 2),
    }
    steps = [
        ("ReduceMean", ["x"], "mean", {"axes": axes}),
        ("Sub", ["x", "mean"], "d", {}),
        ("Pow", ["d", "two"], "q", {}) if square == "Pow" else ("Mul", ["d", "d"], "q", {}),
        ("ReduceMean", ["q"], "variance", {"axes": axes}),
        ("Add", ["epsilon", "variance"], "v", {}),
        ("Pow", ["v", "half"], "s", {}) if root == "Pow" else ("Sqrt", ["v"], "s", {}),
    ]
    if root == "Reciprocal":
        steps += [("Div", ["one", "s"], "r", {}), ("Mul", ["r", "d"], "n", {})]
    else:
        steps += [("Div", ["d", "s"], "n", {})]
    steps += [("Mul", ["scale", "n"], "m", {}), ("Add", ["m", "bias"], "y", {})]
    nodes = [helper.make_node(op, ins, [out], **more) for op, ins, out, more in steps]
    return make_model(nodes, {"x": SHAPE}, ["y"], constants, opset=13)


def kernels(model: ModelProto, axes: tuple[int, ...], bias: tuple[int, ...] = (17,)) -> list[str]:
    """Check the result; return the names of the kernels."""
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    x = 3 * random_input(SHAPE, 5) + 20
    wide = x.astype("float64")
    centred = wide - wide.mean(axes, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axes, keepdims=True) + EPSILON)
    expected = centred / deviation * random_input((17,), 1) + random_input(bias, 2)
    actual = compiled.run({"x": x})["y"]
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=2e-5)
    return [kernel.name for kernel in compiled.report.kernels]


@pytest.mark.parametrize("root", ["Sqrt", "Pow", "Reciprocal"])
@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_it_is_one_kernel(root: str, square: str) -> None:
    assert kernels(written(root, square, [-1]), (-1,)) == ["layer_norm"]


def test_over_two_axes() -> None:
    assert kernels(written("Sqrt", "Pow", [1, 2]), (1, 2)) == ["layer_norm"]


def test_a_bias_along_other_axes_is_added_after_it() -> None:
    names = kernels(written("Sqrt", "Pow", [2], (2, 3, 1)), (2,), (2, 3, 1))
    assert names == ["fused_layer_norm_add"]


def test_a_bias_that_makes_the_rank_is_added_after_it() -> None:
    assert len(kernels(written("Sqrt", "Pow", [2], (1, 1, 1, 17)), (2,), (1, 1, 1, 17))) == 2


def test_axes_that_are_not_the_last_stay_as_they_are() -> None:
    assert not any("layer_norm" in name for name in kernels(written("Sqrt", "Pow", [1]), (1,)))
