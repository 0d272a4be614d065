"""Files as ONNX Runtime saves them, and as it takes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, optimized, random_input, reference
from tests.ops.contrib import Case, D, X, f32, normal


def image_network() -> onnx.ModelProto:
    """Convolutions with activations and a residual addition."""
    weights = {"w": normal(4, 4, 3, 3, scale=0.2), "b": normal(4), "d": normal(4, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c1"], pads=[1] * 4),
        helper.make_node("LeakyRelu", ["c1"], ["r1"], alpha=0.2),
        helper.make_node("Conv", ["r1", "w", "b"], ["c2"], pads=[1] * 4),
        helper.make_node("Add", ["c2", "x"], ["a"]),
        helper.make_node("Relu", ["a"], ["r2"]),
        helper.make_node("ReduceMean", ["r2"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["m", "d"], ["g"]),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    return make_model(nodes, {"x": (1, 4, 7, 6)}, ["y"], weights)


def rms_block() -> onnx.ModelProto:
    """RMS normalisation, a scaled product with a transposed operand, a gate, in opset 14."""
    weights = {
        "two": f32(2),
        "epsilon": f32(1e-6),
        "gain": normal(D),
        "scale": f32(0.3),
        "w": normal(D, 3 * D, scale=0.3),
        "alpha": f32(1.702),
    }
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["mean"], axes=[-1]),
        helper.make_node("Add", ["mean", "epsilon"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["root"]),
        helper.make_node("Div", ["x", "root"], ["normal"]),
        helper.make_node("Mul", ["normal", "gain"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["n", "t"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "n"], ["seen"]),
        helper.make_node("MatMul", ["seen", "w"], ["wide"]),
        helper.make_node("Mul", ["wide", "alpha"], ["steep"]),
        helper.make_node("Sigmoid", ["steep"], ["gate"]),
        helper.make_node("Mul", ["wide", "gate"], ["y"]),
    ]
    return make_model(nodes, {"x": (2, 5, D)}, ["y"], weights, opset=14)


def layer_norm_block() -> onnx.ModelProto:
    """Residual addition, layer normalisation in ONNX's older operators, Gelu."""
    weights = {
        "two": f32(2),
        "epsilon": f32(1e-5),
        "gain": normal(D),
        "shift": normal(D),
        "root2": f32(2**0.5),
        "one": f32(1),
        "half": f32(0.5),
    }
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["variance"], axes=[-1]),
        helper.make_node("Add", ["variance", "epsilon"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["root"]),
        helper.make_node("Div", ["centred", "root"], ["normal"]),
        helper.make_node("Mul", ["normal", "gain"], ["scaled"]),
        helper.make_node("Add", ["scaled", "shift"], ["n"]),
        helper.make_node("Div", ["n", "root2"], ["e"]),
        helper.make_node("Erf", ["e"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["more"]),
        helper.make_node("Mul", ["n", "more"], ["gated"]),
        helper.make_node("Mul", ["gated", "half"], ["y"]),
    ]
    return make_model(nodes, {"x": (2, 5, D)}, ["y"], weights, opset=14)


@pytest.mark.parametrize(
    ("make", "shape", "kinds"),
    [
        (image_network, (1, 4, 7, 6), {"FusedConv", "FusedGemm"}),
        (rms_block, (2, 5, D), {"FusedMatMul", "QuickGelu", "SimplifiedLayerNormalization"}),
        (layer_norm_block, (2, 5, D), {"Gelu", "LayerNormalization"}),
    ],
)
def test_files_that_a_session_saves(
    make: Callable[[], onnx.ModelProto], shape: tuple[int, ...], kinds: set[str]
) -> None:
    """Operators and domains are as ONNX Runtime leaves them at its level "extended"."""
    model = make()
    saved = optimized(model, "ORT_ENABLE_EXTENDED")
    assert kinds <= {node.op_type for node in saved.graph.node}
    inputs = {"x": random_input(shape)}
    found = tvm_edge.compile(saved, "llvm").run(inputs)["y"]
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_a_domain_that_is_not_imported() -> None:
    """ONNX Runtime runs such a file, in which onnx's checker finds no operator set."""
    model, inputs = Case("Gelu", [X]).model()
    del model.opset_import[1:]
    expected = reference(model, inputs)["y0"]
    found = tvm_edge.compile(model, "llvm").run(inputs)["y0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
