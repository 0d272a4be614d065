"""Attention whose scores outgrow the cache is one kernel."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model

X86 = platform.machine() in ("x86_64", "AMD64")
TARGETS = ("llvm", *([{"kind": "llvm", "mcpu": "x86-64-v3"}] if X86 else []))

HEADS, ROWS = 2, 1039  # whose scores leave a core's cache of 2 MiB


def attention(
    columns: int,
    length: int,
    mask: tuple[int, ...] | None,
    *,
    scaled: str = "Mul",
    outputs: Any = (),
) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["q", "k"], ["s"])]
    nodes.append(helper.make_node(scaled, ["s", "c"], ["z"]) if scaled else nodes.pop())
    last = "z" if scaled else "s"
    inputs = {
        "q": (1, HEADS, ROWS, 24),
        "k": (1, HEADS, 24, columns),
        "v": (1, HEADS, columns, length),
    }
    if mask is not None:
        inputs["mask"] = mask
        nodes.append(helper.make_node("Add", ["mask", last], ["a"]))
        last = "a"
    nodes += [
        helper.make_node("Softmax", [last], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    number = {"c": np.array([0.3], "float32")} if scaled else {}
    return make_model(nodes, inputs, ["y", *outputs], number)


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng()
    shapes = {
        each.name: [d.dim_value for d in each.type.tensor_type.shape.dim]
        for each in model.graph.input
    }
    return {name: random.standard_normal(s).astype("float32") for name, s in shapes.items()}


def expected(values: dict[str, np.ndarray], scale: float) -> np.ndarray:
    wide = {name: value.astype("float64") for name, value in values.items()}
    with np.errstate(invalid="ignore"):
        scores = wide["q"] @ wide["k"] * scale + wide.get("mask", 0)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ wide["v"]


def kernels(model: tvm_edge.CompiledModel) -> set[str]:
    return {kernel.rule for kernel in model.report.kernels}


@pytest.mark.parametrize(
    ("columns", "length", "mask", "scaled"),
    [
        (257, 32, None, "Mul"),  # rows and columns that tiles do not divide
        (272, 48, (1, 1, ROWS, 272), "Div"),
        (320, 16, (1, HEADS, 1, 320), ""),
    ],
)
def test_one_kernel(columns: int, length: int, mask: tuple[int, ...] | None, scaled: str) -> None:
    model = attention(columns, length, mask, scaled=scaled)
    values = feeds(model)
    values["q"] *= 10  # exponentials of the scores themselves would overflow
    scale = {"Mul": np.float32(0.3), "Div": 1 / np.float32(0.3), "": 1.0}[scaled]
    wanted = expected(values, float(scale))
    for target in TARGETS:
        compiled = tvm_edge.compile(model, target)
        assert "attention" in kernels(compiled)
        actual = compiled.run(values)["y"]
        np.testing.assert_allclose(actual, wanted, atol=5e-5 * abs(wanted).max())


def test_masked_rows() -> None:
    """Columns without weight, and rows without any: not a number, as in ONNX Runtime."""
    model = attention(256, 16, (1, 1, ROWS, 256))
    values = feeds(model)
    values["mask"][..., 5, 20:] = -np.inf
    values["mask"][..., 7, :] = -np.inf
    actual, wanted = tvm_edge.compile(model, "llvm").run(values)["y"], expected(values, 0.3)
    assert np.isnan(actual[:, :, 7]).all()
    np.testing.assert_allclose(actual, wanted, atol=1e-5 * np.nanmax(abs(wanted)))


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": 16},  # the cache holds its scores
        {"columns": 257, "mask": (1, 1, ROWS, 257)},
        {"columns": 256, "length": 20},
        {"columns": 256, "outputs": ["p"]},  # somebody else reads the weights
    ],
    ids=str,
)
def test_others_stay_separate(changed: dict[str, Any]) -> None:
    model = attention(**{"length": 16, "mask": None, **changed})
    assert "attention" not in kernels(tvm_edge.compile(model, "llvm"))
