"""Operators of ONNX Runtime's own domain on floats, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import reference
from tests.ops.contrib import RANDOM, Case, D, X, int32, normal, same, whole

ELEMENTWISE = [
    Case("Gelu", [normal(3, 7, scale=3)]),
    Case("BiasGelu", [normal(2, 5, 7), normal(7)]),
    Case("FastGelu", [normal(2, 5, 7, scale=3)]),
    Case("FastGelu", [normal(2, 5, 7), normal(7)]),
    Case("QuickGelu", [normal(3, 7)]),
    Case("QuickGelu", [normal(3, 7)], {"alpha": 1.0}),
    Case("QuickGelu", [normal(3, 7)], {"alpha": -0.3}),
]

IMAGE, FILTERS = normal(2, 4, 7, 9), normal(6, 2, 3, 3, scale=0.3)
CONV = {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}
A, B = normal(5, 7), normal(7, 4)
FUSED = [
    Case("FusedConv", [IMAGE, FILTERS, normal(6)], {**CONV, "activation": "Relu"}),
    Case("FusedConv", [IMAGE, FILTERS], CONV),
    Case("FusedConv", [IMAGE, FILTERS, normal(6)], {**CONV, "activation": "Tanh"}),
    Case(
        "FusedConv",
        [IMAGE, FILTERS],
        {**CONV, "activation": "LeakyRelu", "activation_params": [0.3]},
    ),
    Case(
        "FusedConv",
        [IMAGE, FILTERS, normal(6)],
        {**CONV, "activation": "Clip", "activation_params": [-0.4, 0.7]},
    ),
    Case(
        "FusedConv",
        [IMAGE, FILTERS, normal(6)],
        {"group": 2, "auto_pad": "SAME_LOWER", "activation": "Sigmoid"},
    ),
    Case(
        "FusedConv",
        [IMAGE, FILTERS, normal(6)],
        {**CONV, "activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
    Case(
        "FusedConv",
        [IMAGE, FILTERS, normal(6), normal(2, 6, 4, 8)],
        {**CONV, "activation": "Relu"},
        given=(0, 3),
    ),
    Case("FusedConv", [IMAGE, FILTERS, None, normal(2, 6, 4, 8)], CONV, given=(0, 3)),
    Case("FusedConv", [normal(1, 3, 11), normal(4, 3, 3), normal(4)], {"activation": "Relu"}),
    Case("FusedGemm", [A, B, normal(4)], {"activation": "Relu"}),
    Case("FusedGemm", [A, B], {"activation": "Sigmoid", "alpha": 0.3}),
    Case(
        "FusedGemm",
        [normal(7, 5), normal(4, 7), normal(5, 1)],
        {
            "activation": "LeakyRelu",
            "activation_alpha": 0.2,
            "transA": 1,
            "transB": 1,
            "alpha": 0.5,
            "beta": 2.0,
        },
    ),
    Case("FusedGemm", [A, B], {"activation": "Elu", "activation_alpha": 0.7}),
    Case(
        "FusedGemm",
        [A, B],
        {"activation": "Selu", "activation_alpha": 1.6, "activation_gamma": 1.1},
    ),
    Case(
        "FusedGemm",
        [A, B],
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.6},
    ),
    Case("FusedGemm", [A, B], {"activation": "Softplus"}),
    Case("FusedGemm", [A, B], {"activation": "Softsign"}),
    Case("FusedGemm", [A, B], {"activation": "ThresholdedRelu", "activation_alpha": 0.5}),
    Case("FusedMatMul", [A, B], {"alpha": 0.25}),
    Case("FusedMatMul", [normal(7, 5), B], {"transA": 1}),
    Case("FusedMatMul", [normal(2, 3, 5, 7), normal(2, 3, 4, 7)], {"transB": 1}, given=(0, 1)),
    Case("FusedMatMul", [normal(2, 3, 7, 5), B], {"transA": 1, "alpha": 3.0}),
    Case("FusedMatMul", [A, normal(7)], {"transB": 1}),
    Case(
        "FusedMatMul",
        [normal(5, 2, 3, 7), normal(2, 3, 7, 4)],
        {"transBatchA": 1},
        given=(0, 1),
    ),
    Case(
        "FusedMatMul",
        [normal(5, 2, 7), normal(4, 2, 7)],
        {"transBatchA": 1, "transBatchB": 1, "transB": 1},
        given=(0, 1),
    ),
    Case(
        "FusedMatMul",
        [normal(7, 2, 5), normal(7, 2, 4)],
        {"transBatchA": 1, "transBatchB": 1, "transA": 1},
        given=(0, 1),
    ),
    Case("TransposeMatMul", [normal(7, 5), B], {"transA": 1, "alpha": 0.5}),
    Case(
        "NhwcMaxPool",
        [whole("int8", 2, 9, 8, 5)],
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    ),
    Case(
        "NhwcMaxPool",
        [whole("uint8", 1, 7, 7, 3)],
        {"kernel_shape": [2, 2], "ceil_mode": 1, "strides": [2, 2]},
    ),
]

NORMALIZATION = [
    Case("SkipLayerNormalization", [X, normal(2, 5, D), normal(D)], given=(0, 1)),
    Case("SkipLayerNormalization", [X, normal(2, 5, D), normal(D), normal(D)], {"epsilon": 1e-3}),
    Case(
        "SkipLayerNormalization",
        [X, normal(1, 5, D), normal(D), normal(D), normal(D)],
        outputs=(1, 0, 0, 1),
    ),
    Case("SkipLayerNormalization", [X, normal(5, D), normal(D), None, normal(D)]),
    Case("SkipSimplifiedLayerNormalization", [X, normal(2, 5, D), normal(D)], given=(0, 1)),
    Case(
        "SkipSimplifiedLayerNormalization",
        [X, normal(2, 5, D), normal(D), normal(D)],
        {"epsilon": 1e-2},
        outputs=(1, 0, 0, 1),
    ),
]
IDS = RANDOM.integers(0, 9, (2, 5)).astype("int32")
MASK = int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
TABLES = [normal(9, D), normal(6, D)]
EMBEDDING = [
    Case(
        "EmbedLayerNormalization",
        [IDS, IDS % 2, *TABLES, normal(2, D), normal(D), normal(D), MASK],
        given=(0, 1, 7),
        outputs=(1, 1),
    ),
    Case(
        "EmbedLayerNormalization",
        [IDS, None, *TABLES, None, normal(D), normal(D)],
        outputs=(1, 1),
    ),
    Case(
        "EmbedLayerNormalization",
        [IDS, None, *TABLES, None, normal(D), normal(D), None, int32([[4, 3, 1, 1, 0]])],
        {"epsilon": 1e-5},
        outputs=(1, 0, 1),
    ),
]

W, BIAS = normal(D, 3 * D, scale=0.4), normal(3 * D)
HEADS = {"num_heads": 3}
PAST = normal(2, 2, 3, 4, 4)
ATTENTION = [
    Case("Attention", [X, W, BIAS], HEADS),
    Case("Attention", [X, W], {**HEADS, "scale": 0.3}),
    Case("Attention", [X, W, BIAS], {**HEADS, "unidirectional": 1}, outputs=(1, 1)),
    Case("Attention", [X, W, BIAS, MASK], HEADS, given=(0, 3)),
    Case("Attention", [X, W, BIAS, MASK], {**HEADS, "mask_filter_value": -3.0}, given=(0, 3)),
    Case("Attention", [X, W, BIAS, MASK], {**HEADS, "unidirectional": 1}, given=(0, 3)),
    Case("Attention", [X, W, BIAS, MASK[:, ::-1].copy()], {**HEADS, "unidirectional": 1}),
    Case("Attention", [X, W, BIAS, MASK * 0], HEADS),
    Case("Attention", [X, W, BIAS, int32([3, 5])], HEADS, given=(0, 3)),
    Case("Attention", [X, W, BIAS, int32([3, 5, 1, 0])], HEADS, given=(0, 3)),
    Case("Attention", [X, W, BIAS, int32([[1], [1]])], HEADS),
    Case(
        "Attention",
        [X, W, BIAS, RANDOM.integers(0, 2, (2, 5, 5)).astype("int32")],
        {**HEADS, "unidirectional": 1},
        given=(0, 3),
    ),
    Case("Attention", [X, W, BIAS, None, PAST], HEADS, given=(0, 4), outputs=(1, 1)),
    Case(
        "Attention",
        [X, W, BIAS, None, PAST],
        {**HEADS, "unidirectional": 1},
        given=(0, 4),
        outputs=(1, 1),
    ),
    Case(
        "Attention",
        [X, W, BIAS, int32(np.arange(18).reshape(2, 9) % 4), PAST],
        HEADS,
        given=(0, 3, 4),
        outputs=(1, 1),
    ),
    Case("Attention", [X, W, BIAS, None, None, normal(1, 3, 5, 5)], HEADS, given=(0, 5)),
    Case("Attention", [X, W, BIAS, MASK, None, normal(2, 1, 5, 5)], HEADS, given=(0, 3, 5)),
    Case(
        "Attention",
        [X, normal(D, 2 * 9 + 6), normal(24)],
        {**HEADS, "qkv_hidden_sizes": [9, 9, 6]},
    ),
]
KEYS = normal(2, 7, D)
MULTI_HEAD = [
    Case("MultiHeadAttention", [X, KEYS, normal(2, 7, 6)], HEADS, given=(0, 1, 2)),
    Case("MultiHeadAttention", [X, KEYS, KEYS, BIAS], HEADS, given=(0, 1, 2)),
    Case("MultiHeadAttention", [X, KEYS, normal(2, 7, 6), normal(30)], {**HEADS, "scale": 1.5}),
    Case("MultiHeadAttention", [X, X, X], {**HEADS, "unidirectional": 1}, outputs=(1, 1, 1)),
    Case("MultiHeadAttention", [X, KEYS, KEYS, None, int32([2, 7])], HEADS, given=(0, 1, 2, 4)),
    Case(
        "MultiHeadAttention",
        [X, KEYS, KEYS, BIAS, int32(np.arange(14).reshape(2, 7) % 3)],
        HEADS,
        given=(0, 1, 2, 4),
    ),
    Case(
        "MultiHeadAttention",
        [X, KEYS, KEYS, None, None, normal(2, 3, 5, 7)],
        HEADS,
        given=(0, 1, 2, 5),
    ),
    Case("MultiHeadAttention", [X, normal(2, 3, 7, 4), normal(2, 3, 7, 4)], HEADS),
    Case("MultiHeadAttention", [X, normal(2, 3, 7, 4), normal(2, 3, 7, 4), BIAS], HEADS),
    Case(
        "MultiHeadAttention",
        [X, X, X, None, None, None, PAST[0], PAST[1]],
        {**HEADS, "unidirectional": 1},
        given=(0, 1, 2, 6, 7),
        outputs=(1, 1, 1),
    ),
]

CASES = [*ELEMENTWISE, *FUSED, *NORMALIZATION, *EMBEDDING, *ATTENTION, *MULTI_HEAD]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_operators(case: Case) -> None:
    """Each form of an operator, with operands left out and awkward shapes."""
    same(*case.model())


@pytest.mark.parametrize("parts", [2, 3])
def test_packed_keys_and_values(parts: int) -> None:
    """ONNX Runtime's kernels for CPUs lack them: the reference has each by itself."""
    values = [X, *(normal(2, 5, D) for _ in range(2))]
    model, inputs = Case("MultiHeadAttention", values, HEADS, given=(0, 1, 2)).model()
    expected = reference(model, inputs)["y0"]
    packed = np.stack([v.reshape(2, 5, 3, 4) for v in values[3 - parts :]], 3)
    operands = {"q": X, "packed": packed} if parts == 2 else {"packed": packed}
    node = helper.make_node(
        "MultiHeadAttention", list(operands), ["y0"], domain="com.microsoft", **HEADS
    )
    graph = helper.make_graph(
        [node],
        "packed",
        [helper.make_tensor_value_info(n, 1, v.shape) for n, v in operands.items()],
        model.graph.output,
    )
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
    found = tvm_edge.compile(made, "llvm").run(operands)["y0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_attributes_that_no_converter_has() -> None:
    """Forms for which ONNX Runtime has kernels on GPUs alone."""
    model, _ = Case("Attention", [X, W, BIAS], HEADS).model()
    model.graph.node[0].attribute.append(helper.make_attribute("do_rotary", 1))
    with pytest.raises(tvm_edge.UnsupportedOperatorError, match="do_rotary"):
        tvm_edge.compile(model, "llvm")


def test_channel_blocks_are_refused_with_the_level_to_use() -> None:
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")
    x, y = (helper.make_tensor_value_info(name, 1, [1, 8, 4, 4]) for name in "xy")
    graph = helper.make_graph([node], "blocks", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(tvm_edge.UnsupportedOperatorError, match="ORT_ENABLE_EXTENDED"):
        tvm_edge.compile(model, "llvm")
