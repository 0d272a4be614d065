"""Kernels that look at single pixels have open images in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import ModelProto, helper
from tvm import relax, tirx

import tvm_edge
from tests.onnx_models import make_model, random_input, reference
from tvm_edge.compiler.compilation import Compilation, begin
from tvm_edge.compiler.options import Options
from tvm_edge.compiler.pipeline import PIPELINE

_PICTURE = {"x": ("n", 32, "h", "w")}


def convolutions(*attributes: dict[str, Any]) -> ModelProto:
    """Convolutions in a row, each with an addition of what came before and a Relu behind it."""
    nodes, weights, last = [], {}, "x"
    for number, attribute in enumerate(attributes):
        size = attribute.pop("size", 1)
        conv, name = f"c{number}", f"y{number}"
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [conv], **attribute))
        nodes.append(helper.make_node("Relu", [conv], [name]))
        weights[f"w{number}"] = random_input((32, 32, size, size), number)
        last = name
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return make_model(nodes, _PICTURE, ["y"], weights)


def lowered(model: ModelProto, **options: Any) -> Compilation:
    """The compilation behind the pass."""
    begun = begin(model, "llvm", Options(tuning_logs=False, **options))
    for step, done in PIPELINE.steps(begun):
        if step.name == "FlatImages":
            return done
    raise AssertionError("the pass did not run")


def flat_calls(mod: tvm.IRModule) -> list[bool]:
    """Whether the kernel of each convolution has its images in one line, in order."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and "conv2d" in str(value.args[0]):
                func = mod[value.args[0]]
                found.append(
                    int(func.params[0].shape[2]) == 1
                    if isinstance(func.params[0].shape[2], tirx.IntImm)
                    else False
                )
    return found


def test_only_convolutions_of_one_pixel_are_flat() -> None:
    """Windows, strides and padding know lines."""
    model = convolutions(
        {"size": 1},
        {"size": 3, "pads": [1, 1, 1, 1], "dilations": [2, 2]},
        {"size": 1},
        {"size": 1, "strides": [2, 2]},
        {"size": 1, "pads": [1, 0, 0, 0]},
        {"size": 1},
    )
    assert flat_calls(lowered(model).module) == [True, False, True, False, False, True]


@pytest.mark.parametrize("shape", [(1, 32, 7, 9), (2, 32, 1, 1), (3, 32, 4, 3), (1, 32, 40, 5)])
def test_results(shape: tuple[int, ...]) -> None:
    """Lines shorter than a tile, single pixels, lines that no tile divides."""
    model = convolutions({"size": 1}, {"size": 3, "pads": [1] * 4}, {"size": 1}, {"size": 1})
    compiled = tvm_edge.compile(model, "llvm")
    inputs = {"x": random_input(shape, 7)}
    expected = reference(model, inputs)["y"]
    error = np.abs(compiled.run(inputs)["y"] - expected).max()
    assert error < 1e-5 * np.abs(expected).max()


def test_a_budget_plans_for_the_most_pixels() -> None:
    dims = (1, 32, tvm_edge.Dim("h", max=50, typical=20), tvm_edge.Dim("w", max=60, typical=30))
    done = lowered(convolutions({}, {}), memory_budget="1GiB", input_shapes={"x": dims})
    (name,) = (name for name in done.typical if name.startswith("pixels"))
    assert (done.typical[name], done.largest[name]) == (600, 3000)


def test_images_of_nothing() -> None:
    model = convolutions({"size": 1}, {"size": 1})
    dims = (tvm_edge.Dim("n", min=0), 32, "h", "w")
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": dims})
    found = compiled.run({"x": np.zeros((0, 32, 5, 6), "float32")})["y"]
    assert found.shape == (0, 32, 5, 6)
