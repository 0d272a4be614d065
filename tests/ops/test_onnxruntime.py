"""Operators of ONNX Runtime's own domain against ONNX Runtime, in float32 and between int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_edge
from tests.onnx_models import make_model, optimized, random_input, reference
from tvm_edge.ops.onnxruntime.domains import name_domains

RANDOM = np.random.default_rng(7)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * scale).astype("float32")


def whole(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def int32(*values: Any) -> np.ndarray:
    return np.asarray(values[0] if len(values) == 1 else values, "int32")


def f32(value: Any) -> np.ndarray:
    return np.asarray(value, "float32")


@dataclass(frozen=True)
class Case:
    """A node: operands in order, ``None`` for one left out, and where the constants begin."""

    kind: str
    operands: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    given: Sequence[int] = (0,)
    outputs: Sequence[int] = (1,)
    opset: int = 17

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        names = ["" if value is None else f"i{i}" for i, value in enumerate(self.operands)]
        values = {n: v for n, v in zip(names, self.operands, strict=True) if v is not None}
        inputs = {f"i{i}": values[f"i{i}"] for i in self.given}
        results = [f"y{i}" if wanted else "" for i, wanted in enumerate(self.outputs)]
        node = helper.make_node(
            self.kind, names, results, domain="com.microsoft", **self.attributes
        )
        return contrib([node], inputs, values, results, self.opset), inputs


def contrib(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    results: Sequence[str],
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose outputs have the types and shapes that ONNX Runtime gives them."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in results if name],
        [numpy_helper.from_array(v, n) for n, v in values.items() if n not in inputs],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    made = reference(model, inputs)
    for output in model.graph.output:
        value = made[output.name]
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind(value.dtype), value.shape))
    return model


def same(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    *,
    rtol: float = 1e-5,
    atol: float = 2e-6,
) -> None:
    """Our outputs are ONNX Runtime's: integers within one unit, others within the tolerance."""
    ours = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype and ours[name].shape == expected.shape, name
        if expected.dtype.kind in "iu":
            difference = np.abs(ours[name].astype("int64") - expected.astype("int64"))
            assert difference.max() <= 1 and np.mean(difference > 0) <= 0.05, difference.max()
            continue
        np.testing.assert_allclose(ours[name], expected, rtol=rtol, atol=atol, err_msg=name)


X = normal(2, 5, 12)
D = 12

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

U8, S8 = np.asarray(120, "uint8"), np.asarray(-7, "int8")
IMAGE8 = whole("uint8", 2, 6, 7, 4)
LINE8 = whole("uint8", 3, 4, 6)
QUANTISED = [
    Case("DynamicQuantizeMatMul", [X, whole("int8", D, 7), f32(0.01)]),
    Case(
        "DynamicQuantizeMatMul",
        [X, whole("uint8", D, 7), f32([0.01]), np.asarray([130], "uint8"), normal(7)],
    ),
    Case(
        "DynamicQuantizeMatMul",
        [normal(5, D), whole("int8", D, 7), f32(RANDOM.random(7)), whole("int8", 7)],
    ),
    Case("DynamicQuantizeMatMul", [np.zeros((2, D), "float32"), whole("int8", D, 3), f32(1)]),
    Case("DynamicQuantizeMatMul", [abs(X), whole("int8", D, 7), f32(0.01), S8]),
    Case(
        "MatMulIntegerToFloat",
        [whole("uint8", 2, 5, D), whole("int8", D, 7), f32(0.02), f32(0.01), U8],
    ),
    Case(
        "MatMulIntegerToFloat",
        [
            whole("uint8", 5, D),
            whole("int8", D, 7),
            f32([0.02]),
            f32(RANDOM.random(7)),
            U8.reshape(1),
            whole("int8", 7),
            normal(7),
        ],
    ),
    Case(
        "MatMulIntegerToFloat",
        [whole("uint8", 5, D), whole("uint8", D, 7), f32(0.02), f32(0.1), None, U8],
    ),
    Case("QLinearSoftmax", [LINE8, f32(0.03), U8, f32(1 / 256), U8 * 0], {"opset": 13}),
    Case(
        "QLinearSoftmax",
        [LINE8, f32(0.03), U8, f32(1 / 256), U8 * 0],
        {"opset": 13, "axis": 1},
    ),
    Case(
        "QLinearSoftmax",
        [LINE8, f32(0.03), U8, f32(1 / 256), U8 * 0],
        {"opset": 12, "axis": 1},
        opset=12,
    ),
    Case(
        "QLinearSoftmax",
        [whole("int8", 3, 9), f32(0.05), S8, f32(1 / 256), np.asarray(-128, "int8")],
        {"opset": 13, "axis": -1},
    ),
    Case(
        "QLinearWhere",
        [
            RANDOM.random((3, 1, 6)) > 0.5,
            LINE8,
            f32(0.03),
            U8,
            whole("uint8", 4, 1),
            f32(0.02),
            U8 // 2,
            f32(0.04),
            U8 + 9,
        ],
        given=(0, 1, 4),
    ),
    Case(
        "QLinearConv",
        [
            IMAGE8,
            f32(0.02),
            U8,
            whole("int8", 5, 4, 3, 3),
            f32(RANDOM.random(5) / 200),
            np.zeros(5, "int8"),
            f32(0.05),
            U8,
            RANDOM.integers(-3000, 3000, 5).astype("int32"),
        ],
        {"channels_last": 1, "pads": [1, 1, 0, 1], "strides": [2, 1]},
    ),
    Case(
        "QLinearConv",
        [
            IMAGE8.transpose(0, 3, 1, 2).copy(),
            f32(0.02),
            U8,
            whole("int8", 4, 1, 3, 3),
            f32(0.01),
            S8 * 0,
            f32(0.05),
            U8,
        ],
        {"group": 4},
    ),
    Case("QLinearGlobalAveragePool", [IMAGE8, f32(0.02), U8, f32(0.01), U8], {"channels_last": 1}),
    Case(
        "QLinearAveragePool",
        [IMAGE8, f32(0.02), U8, f32(0.02), U8],
        {"channels_last": 1, "kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    ),
    Case(
        "QAttention",
        [whole("uint8", 2, 5, D), whole("int8", D, 3 * D), BIAS, f32(0.01), f32(0.01), None, U8],
        HEADS,
    ),
    Case(
        "QAttention",
        [
            whole("uint8", 2, 5, D),
            whole("int8", D, 3 * D),
            BIAS,
            f32(0.01),
            f32(RANDOM.random(3 * D) / 50),
            int32([3, 5]),
            U8,
            whole("int8", 3 * D),
            PAST,
        ],
        {**HEADS, "unidirectional": 1},
        given=(0, 5, 8),
        outputs=(1, 1),
    ),
]

SEQUENCE = normal(4, 2, 5)


def lstm(dtype: str, directions: int, per_channel: bool, *more: np.ndarray | None) -> list[Any]:
    gates, shape = 4 * 7, (directions, 4 * 7) if per_channel else (directions,)
    w = [whole(dtype, directions, size, gates) for size in (5, 7)]
    scales = [f32(0.001 + RANDOM.random(shape) / 200) for _ in w]
    starts = [np.asarray(RANDOM.integers(100, 120, shape), dtype) for _ in w]
    given = [*more, *[None] * (5 - len(more))]
    return [SEQUENCE, *w, *given, scales[0], starts[0], scales[1], starts[1]]


LSTM = [
    Case("DynamicQuantizeLSTM", lstm("int8", 1, False), {"hidden_size": 7}),
    Case(
        "DynamicQuantizeLSTM",
        lstm("uint8", 1, True, normal(1, 56)),
        {"hidden_size": 7, "direction": "reverse"},
        outputs=(1, 1, 1),
    ),
    Case(
        "DynamicQuantizeLSTM",
        lstm(
            "int8",
            2,
            True,
            normal(2, 56),
            int32([4, 2]),
            normal(2, 2, 7),
            normal(2, 2, 7),
            normal(2, 21),
        ),
        {"hidden_size": 7, "direction": "bidirectional", "clip": 2.0},
        outputs=(1, 0, 1),
    ),
]

NIBBLES = {"K": 40, "N": 6, "block_size": 16}
BLOCKS = normal(2, 3, 40)
BLOCK_WEIGHTS = [
    Case("MatMulNBits", [BLOCKS, whole("uint8", 6, 3, 8), normal(18)], {**NIBBLES, "bits": 4}),
    Case(
        "MatMulNBits",
        [BLOCKS, whole("uint8", 6, 3, 8), normal(6, 3), whole("uint8", 6, 2)],
        {**NIBBLES, "bits": 4},
    ),
    Case(
        "MatMulNBits",
        [BLOCKS, whole("uint8", 6, 3, 8), normal(18), normal(18), None, normal(6)],
        {**NIBBLES, "bits": 4},
    ),
    Case(
        "MatMulNBits",
        [BLOCKS, whole("uint8", 6, 3, 16), normal(18), whole("uint8", 18)],
        {**NIBBLES, "bits": 8},
    ),
]

CASES = [
    *ELEMENTWISE,
    *FUSED,
    *NORMALIZATION,
    *EMBEDDING,
    *ATTENTION,
    *MULTI_HEAD,
    *QUANTISED,
    *LSTM,
    *BLOCK_WEIGHTS,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_operators(case: Case) -> None:
    """Each form of an operator, with operands left out and awkward shapes.

    The reference of an LSTM in int8 is of floats; ours rounds what enters its products to 1/255 of
    its range, as ONNX Runtime's own does.
    """
    rounded = {"atol": 0.02} if case.kind == "DynamicQuantizeLSTM" else {}
    same(*case.model(), **rounded)


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
    name_domains(saved)
    inputs = {"x": random_input(shape)}
    found = tvm_edge.compile(saved, "llvm").run(inputs)["y"]
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_a_domain_that_is_not_imported() -> None:
    """ONNX Runtime runs such a file, in which onnx's checker finds no operator set."""
    model, inputs = ELEMENTWISE[0].model()
    del model.opset_import[1:]
    expected = reference(model, inputs)["y0"]
    name_domains(model)
    found = tvm_edge.compile(model, "llvm").run(inputs)["y0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_domains_that_are_right_stay() -> None:
    model = make_model(
        [helper.make_node("LayerNormalization", ["x", "s"], ["y"])],
        {"x": (2, 5)},
        ["y"],
        {"s": normal(5)},
    )
    before = model.SerializeToString(deterministic=True)
    name_domains(model)
    assert model.SerializeToString(deterministic=True) == before


def test_channel_blocks_are_refused_with_the_level_to_use() -> None:
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")
    x, y = (helper.make_tensor_value_info(name, 1, [1, 8, 4, 4]) for name in "xy")
    graph = helper.make_graph([node], "blocks", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(tvm_edge.UnsupportedOperatorError, match="ORT_ENABLE_EXTENDED"):
        tvm_edge.compile(model, "llvm")
