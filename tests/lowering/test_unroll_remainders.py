"""Loops that LLVM makes wrong vectors of are written out."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import tirx

import tvm_edge
from tests.onnx_models import make_model, random_input, reference, relative_error
from tvm_edge.lowering.unroll_remainders import UnrollRemainders


def loop(extent: int, divisor: int) -> tirx.PrimFunc:
    source, result = (tirx.decl_buffer((64,), "float32", name) for name in ("source", "result"))
    i = tirx.Var("i", "int32")
    store = tirx.BufferStore(
        result, tirx.BufferLoad(source, [tirx.floormod(i, tirx.IntImm("int32", divisor))]), [i]
    )
    body = tirx.For(i, 0, extent, tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([source, result], body)


@pytest.mark.parametrize(
    ("extent", "divisor", "unrolled"),
    [(16, 8, True), (8, 4, True), (8, 8, False), (4, 8, False), (32, 8, False)],
)
def test_short_loops_that_wrap(extent: int, divisor: int, unrolled: bool) -> None:
    module = UnrollRemainders()(tvm.IRModule({"main": loop(extent, divisor)}))
    kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
    assert module["main"].body.kind == kind


@pytest.mark.parametrize("width", [4, 8])
def test_rotated_pairs(width: int) -> None:
    """Two products of halves of 2 × `width`, side by side again: as in rotary embeddings.

    LLVM with vectors of 512 bits read the factors past their end, with width 4.
    """
    half, whole = (2, 3, 1, width), (2, 3, 3, 2 * width)
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
    shape = {"shape": np.array([2, 3, 6 * width])}
    model = make_model(nodes, {"x": whole, "cos": half, "sin": half}, ["y"], shape)
    inputs = {
        name: random_input(of, seed)
        for seed, (name, of) in enumerate({"x": whole, "cos": half, "sin": half}.items())
    }
    result = tvm_edge.compile(model, "llvm").run(inputs)["y"]
    assert relative_error(result, reference(model, inputs)["y"]) < 1e-6
