"""Quantised operators of ONNX Runtime's own domain, against ONNX Runtime or its floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.marks import in_full
from tests.onnx_models import session
from tests.ops.contrib import RANDOM, Case, D, X, f32, int32, normal, same, whole

HEADS, BIAS, PAST = {"num_heads": 3}, normal(3 * D), normal(2, 2, 3, 4, 4)
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

# The last LSTM has the type of the first, and operands and both directions besides.
CASES = [*QUANTISED, *in_full(LSTM[0]), *LSTM[1:], *BLOCK_WEIGHTS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_operators(case: Case) -> None:
    """Each form of an operator, with operands left out and awkward shapes.

    The reference of an LSTM in int8 is of floats; ours rounds what enters its products to 1/255 of
    its range, as ONNX Runtime's own does.
    """
    rounded = {"atol": 0.02} if case.kind == "DynamicQuantizeLSTM" else {}
    same(*case.model(), **rounded)


@pytest.mark.parametrize("steps", [6, *in_full(20)])
@pytest.mark.parametrize(("size", "dtype"), [(24, "uint8"), (2500, "int8"), *in_full((24, "int8"))])
def test_an_lstm_rounds_its_states_as_onnx_runtime_does(
    size: int, dtype: str, steps: int, tmp_path: Path
) -> None:
    """Against ONNX Runtime's own; one state that is rounded otherwise is an error of 1e-3.

    Sums of 2500 products are longer than float32's integers.
    """
    random, hidden = np.random.default_rng(size), 16
    # Pairs of products stay in 16 bits, which a CPU without VNNI saturates.
    low, high = (60, 180) if dtype == "uint8" else (-60, 60)
    w = [random.integers(low, high, (2, k, 4 * hidden)).astype(dtype) for k in (size, hidden)]
    scales = [f32(random.uniform(0.001, 0.004, 2) * (24 / k) ** 0.5) for k in (size, hidden)]
    zeros = [np.full(2, 120 if dtype == "uint8" else 0, dtype) for _ in w]
    x = random.normal(size=(steps, 1, size)).astype("float32")
    bias = random.normal(size=(2, 8 * hidden)).astype("float32") / 4
    case = Case(
        "DynamicQuantizeLSTM",
        [x, *w, bias, None, None, None, None, scales[0], zeros[0], scales[1], zeros[1]],
        {"hidden_size": hidden, "direction": "bidirectional"},
        outputs=(1, 1, 1),
    )
    model, inputs = case.model()
    path = tmp_path / "lstm.onnx"
    onnx.save(model, path)
    opened = session(path)  # which would be of floats for the model itself
    found = tvm_edge.compile(model, "llvm").run(inputs)
    for output, expected in zip(model.graph.output, opened.run(None, inputs), strict=True):
        np.testing.assert_allclose(found[output.name], expected, rtol=0, atol=2e-6)
