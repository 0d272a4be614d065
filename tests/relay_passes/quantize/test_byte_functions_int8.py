"""Functions of one 8-bit number are tables, with ONNX Runtime's numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import reference
from tests.quantized_models import QuantizedGraph, assert_same_numbers
from tvm_edge.hardware import resolve_target

pytestmark = pytest.mark.skipif(
    not resolve_target("llvm").spec.byte_tables, reason="this CPU has no permutations of bytes"
)


def tables(model: tvm_edge.CompiledModel) -> list[str]:
    return [kernel.name for kernel in model.report.kernels if "byte_table" in kernel.name]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    "name", ["hard swish", "by parts", "silu", "leaky", "gelu", "elu", "power"]
)
def test_an_activation_with_roundings_inside(name: str, dtype: str) -> None:
    graph = QuantizedGraph(dtype=dtype)
    data = graph.conv(graph.input(1, 24, 7, 9), (40, 24, 3, 3), name="conv", pads=[1] * 4)
    middle = 0 if dtype == "int8" else 128
    x = graph.quantized(data, 0.05, middle)
    if name in ("hard swish", "silu"):
        gate = graph.op("Sigmoid" if name == "silu" else "HardSigmoid", x, name="gate")
        result = graph.op("Mul", x, graph.quantized(gate, 1 / 256, -128 if dtype == "int8" else 0))
    elif name == "by parts":  # as PaddlePaddle exports it; the tool quantises constants as well
        three = graph.real(graph.constant([255], "uint8"), 3 / 255, 0, "uint8")
        low, high = graph.constant(0.0, "float32"), graph.constant(6.0, "float32")
        sum_ = graph.quantized(graph.op("Add", x, three), 6 / 255, -128 if dtype == "int8" else 0)
        gate = graph.op("Clip", sum_, low, high)
        product = graph.quantized(graph.op("Mul", x, gate), 0.2, middle)
        result = graph.op("Div", product, graph.constant(6.0, "float32"))
    elif name == "power":
        result = graph.op("Pow", x, graph.constant(2.0, "float32"))
    else:
        kind = {"leaky": "LeakyRelu", "elu": "Elu", "gelu": "Erf"}[name]
        result = graph.op(kind, x)
    graph.quantized(result, 0.04, middle)
    model = graph.model()
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    assert tables(compiled)
    assert not [k.name for k in compiled.report.kernels if "dequantize" in k.name], "real numbers"
    assert_same_numbers(compiled, model, graph.values)


def test_it_is_part_of_the_convolution() -> None:
    """Nothing but the last number is stored."""
    graph = QuantizedGraph()
    data = graph.conv(graph.input(1, 16, 6, 35), (32, 16, 1, 1), name="conv")
    scale, zero = graph.constant(0.05, "float32"), graph.constant(120, "uint8")
    x = graph.real(graph.op("QuantizeLinear", data, scale, zero), 0.05, 120, "uint8")
    graph.quantized(graph.op("Tanh", x, name="tanh"), 0.008, 128)
    compiled = tvm_edge.compile(graph.model(), "llvm", tuning_logs=False)
    (name,) = tables(compiled)
    assert "conv2d_int8" in name
    assert len(compiled.report.kernels) == 3, "and one before and one after it for the layout"
    assert_same_numbers(compiled, graph.model(), graph.values)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 64), (2, 3, 211)])
def test_every_number_of_any_shape(shape: tuple[int, ...]) -> None:
    graph = QuantizedGraph(seed=len(shape))
    graph.quantized(graph.op("Sigmoid", graph.input(*shape)), 1 / 200, 30)
    compiled = tvm_edge.compile(graph.model(), "llvm", tuning_logs=False)
    assert tables(compiled)
    for seed in range(3):
        random = np.random.default_rng(seed)
        values = {"x0": random.permutation(np.resize(np.arange(256), shape).ravel())}
        values = {"x0": values["x0"].reshape(shape).astype("uint8")}
        expected = reference(graph.model(), values)
        for name, value in compiled.run(values).items():
            np.testing.assert_array_equal(value, expected[name])


def test_what_is_no_table() -> None:
    """Bounds of the numbers as they are, and functions of two tensors."""
    graph = QuantizedGraph()
    one, other = (graph.input(1, 16, 5, 5, zero=100) for _ in range(2))
    low, high = graph.constant(-2.0, "float32"), graph.constant(3.0, "float32")
    graph.quantized(graph.op("Clip", one, low, high), 0.05, 100)
    graph.quantized(graph.op("Relu", other), 0.05, 100)
    graph.quantized(graph.op("Mul", one, other), 0.1, 128)
    compiled = tvm_edge.compile(graph.model(), "llvm", tuning_logs=False)
    assert not tables(compiled)
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_numbers_of_another_scale() -> None:
    graph = QuantizedGraph()
    x = graph.input(1, 16, 5, 5, zero=100)
    graph.quantized(graph.op("Relu", x), 0.03, 10)
    nearest = {"mode": "nearest", "nearest_mode": "floor"}
    nearest["coordinate_transformation_mode"] = "asymmetric"
    scales = graph.constant([1, 1, 2, 2], "float32")
    larger = graph.op("Resize", x, "", scales, name="larger", **nearest)
    graph.quantized(graph.op("Concat", larger, larger, axis=1), 0.04, 90)
    compiled = tvm_edge.compile(graph.model(), "llvm", tuning_logs=False)
    assert len(tables(compiled)) >= 2
    assert not [k.name for k in compiled.report.kernels if "dequantize" in k.name], "real numbers"
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_a_cpu_without_the_instruction_calculates() -> None:
    graph = QuantizedGraph()
    data = graph.conv(graph.input(1, 16, 6, 6), (16, 16, 3, 3), name="conv")
    graph.quantized(graph.op("Sigmoid", graph.quantized(data, 0.05, 128)), 1 / 256, 0)
    report = tvm_edge.analyze(graph.model(), {"kind": "llvm", "mcpu": "cascadelake"})
    named = [kernel.name for kernel in report.kernels]
    assert named and not any("byte_table" in name for name in named)
