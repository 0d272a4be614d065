"""Branches whose choice goes up and down along a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference, relative_error

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


@pytest.mark.parametrize(
    ("target", "width", "heads"),
    [("llvm", 4, 2), ("llvm", 4, 3), ("llvm", 8, 3), ({"kind": "llvm", "mcpu": "x86-64"}, 4, 3)],
)
def test_rotated_pairs(target: Any, width: int, heads: int) -> None:
    """Two products of halves of 2 × `width`, side by side again: as in rotary embeddings.

    LLVM with vectors of 512 bits read the factors past their end, with width 4. Vectors of four
    elements could not be cut where the halves meet.
    """
    half, whole = (2, 3, 1, width), (2, 3, heads, 2 * width)
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=-1),
        helper.make_node("Mul", ["cos", "a"], ["ca"]),
        helper.make_node("Mul", ["sin", "b"], ["sb"]),
        helper.make_node("Sub", ["ca", "sb"], ["real"]),
        helper.make_node("Mul", ["sin", "a"], ["sa"]),
        helper.make_node("Mul", ["cos", "b"], ["cb"]),
        helper.make_node("Add", ["sa", "cb"], ["imaginary"]),
        helper.make_node("Concat", ["real", "imaginary"], ["both"], axis=-1),
        helper.make_node("Reshape", ["both", "shape"], ["y"]),
    ]
    shape = {"shape": np.array([2, 3, 2 * heads * width])}
    model = make_model(nodes, {"x": whole, "cos": half, "sin": half}, ["y"], shape)
    inputs = {
        name: random_input(of, seed)
        for seed, (name, of) in enumerate({"x": whole, "cos": half, "sin": half}.items())
    }
    result = tvm_edge.compile(model, target).run(inputs)["y"]
    assert relative_error(result, reference(model, inputs)["y"]) < 1e-6
