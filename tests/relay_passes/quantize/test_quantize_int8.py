"""Quantised models are calculated in whole numbers, and as ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full
from tests.quantized_models import (
    AWKWARD,
    QuantizedGraph,
    assert_same_numbers,
    inputs_of,
    network,
    quantized,
    rules_of,
    with_intermediates,
)
from tvm_edge.hardware import resolve_target

pytestmark = pytest.mark.skipif(
    not resolve_target("llvm").spec.dot_product, reason="this CPU has no dot products of 8 bits"
)

INT8 = {"conv2d_int8", "depthwise_int8"}


@pytest.mark.parametrize(
    ("form", "activations", "per_channel"),
    [
        ("QDQ", "uint8", True),
        ("QOperator", "int8", False),
        *in_full(("QDQ", "int8", True), ("QOperator", "uint8", True), ("QDQ", "uint8", False)),
    ],
)
def test_a_network_in_int8(form: str, activations: str, per_channel: bool) -> None:
    options = {"form": form, "activations": activations, "per_channel": per_channel}
    model = with_intermediates(quantized(network(), **options))  # type: ignore[arg-type]
    compiled = tvm_edge.compile(model, "llvm")
    taken = [kernel.rule for kernel in compiled.report.kernels if kernel.rule in INT8]
    assert taken.count("conv2d_int8") == 6 and taken.count("depthwise_int8") == 2, "5, a Gemm, 2"
    other = {kernel.rule for kernel in compiled.report.kernels} - INT8
    assert not other & {"conv2d_blocked", "conv2d", "winograd", "dense", "depthwise"}
    assert_same_numbers(compiled, model, inputs_of(model, 7))


@pytest.mark.parametrize("dtype", ["uint8", *in_full("int8")])
def test_awkward_shapes_with_zero_points_as_padding(dtype: str) -> None:
    graph = QuantizedGraph(dtype=dtype)
    for number, (image, filters, attributes) in enumerate(AWKWARD.values()):
        name = f"conv{number}"
        result = graph.conv(
            graph.input(*image), filters, name=name, per_channel=number % 2 == 0, **attributes
        )
        graph.quantized(graph.op("Relu", result) if number % 3 == 0 else result, 0.04)
    compiled = tvm_edge.compile(graph.model(), "llvm")
    for number, (case, (_, filters, attributes)) in enumerate(AWKWARD.items()):
        wanted = "depthwise_int8" if attributes.get("group", 1) == filters[0] else "conv2d_int8"
        assert wanted in rules_of(compiled, f"conv{number}"), case
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_what_has_no_kernel_is_calculated_in_float32() -> None:
    """Few filters, dilated lines of a depthwise one, filters that leave the range of int8."""
    graph = QuantizedGraph()
    few = graph.conv(graph.input(1, 8, 6, 6), (4, 8, 3, 3), name="few")
    wide = graph.conv(
        graph.input(1, 16, 9, 9), (16, 1, 3, 3), name="wide", group=16, dilations=[1, 2]
    )
    numbers = graph.random.integers(0, 256, (16, 16, 3, 3), "uint8")
    unsigned = graph.real(graph.constant(numbers, "uint8"), 0.001, 3, "uint8")
    large = graph.op("Conv", graph.input(1, 16, 5, 5), unsigned, name="large")
    for result, scale in ((few, 0.06), (wide, 0.06), (large, 0.6)):
        graph.quantized(result, scale, 100)
    compiled = tvm_edge.compile(graph.model(), "llvm")
    for name in ("few", "wide", "large"):
        assert not rules_of(compiled, name) & INT8
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_unsigned_weights_around_their_middle_are_signed_ones() -> None:
    graph = QuantizedGraph()
    numbers = graph.random.integers(0, 256, (16, 16, 3, 3), "uint8")
    weights = graph.real(graph.constant(numbers, "uint8"), 0.001, 128, "uint8")
    graph.quantized(graph.op("Conv", graph.input(1, 16, 7, 7), weights, name="conv"), 0.06)
    compiled = tvm_edge.compile(graph.model(), "llvm")
    assert "conv2d_int8" in rules_of(compiled, "conv")
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_quantize_goes_in_front_of_what_only_moves_numbers() -> None:
    """One kernel sums, rounds, bounds and stores bytes; a maximum is one of bytes."""
    graph = QuantizedGraph()
    data = graph.conv(graph.input(1, 16, 8, 8), (32, 16, 3, 3), name="conv", pads=[1] * 4)
    low, high = graph.constant(-0.4, "float32"), graph.constant(0.9, "float32")
    clipped = graph.op("Clip", data, low, high, name="clip")
    pooled = graph.op("MaxPool", clipped, name="pool", kernel_shape=[2, 2], strides=[2, 2])
    moved = graph.op("Transpose", pooled, name="transposed", perm=[0, 2, 3, 1])
    graph.quantized(moved, 0.01, 60)
    compiled = tvm_edge.compile(graph.model(), "llvm")
    of_conv = [k for k in compiled.report.kernels if k.rule == "conv2d_int8"]
    assert len(of_conv) == 1 and "quantize" in of_conv[0].name
    assert "window_blocked" in rules_of(compiled, "pool")
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_a_sum_that_others_read_too_stays_real() -> None:
    graph = QuantizedGraph()
    data = graph.conv(graph.input(1, 16, 6, 6), (16, 16, 3, 3), name="conv")
    graph.quantized(data, 0.05)
    graph.output(graph.op("Sigmoid", data))
    compiled = tvm_edge.compile(graph.model(), "llvm")
    assert "conv2d_int8" in rules_of(compiled, "conv")
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_sums_that_are_added_are_stored_in_bytes() -> None:
    """The later of two convolutions goes on in registers, the earlier one is stored."""
    graph = QuantizedGraph(dtype="int8")
    image = graph.input(1, 32, 7, 6)
    beside = graph.quantized(graph.conv(image, (64, 32, 1, 1), name="beside"), 0.05)
    first = graph.op("Relu", graph.conv(image, (32, 32, 1, 1), name="first"))
    inner = graph.quantized(first, 0.04, -128)
    last = graph.quantized(graph.conv(inner, (64, 32, 3, 3), name="last", pads=[1] * 4), 0.05)
    graph.quantized(graph.op("Relu", graph.op("Add", last, beside, name="sum")), 0.0613, -128)
    model = graph.model()
    del model.graph.output[:-1]
    compiled = tvm_edge.compile(model, "llvm")
    stored = {kernel.operators: kernel.results for kernel in compiled.report.kernels}
    (own,) = (size for operators, size in stored.items() if "beside" in operators)
    assert own == 64 * 7 * 6
    assert any({"last", "sum"} <= set(operators) for operators in stored)
    assert_same_numbers(compiled, model, graph.values)


@pytest.mark.parametrize("rows", [1, 5])
def test_products_with_a_constant_matrix(rows: int) -> None:
    graph = QuantizedGraph(seed=rows)
    numbers = graph.random.integers(-128, 128, (40, 48), "int8")
    scales = graph.random.uniform(1e-3, 2e-3, 48).astype("float32")
    matrix = graph.real(
        graph.constant(numbers, "int8"), scales, np.zeros(48, "int8"), "int8", axis=1
    )
    product = graph.op("MatMul", graph.input(rows, 40), matrix, name="product")
    shift = graph.constant(graph.random.normal(size=48), "float32")
    graph.quantized(graph.op("Add", product, shift, name="shift"), 0.1)
    compiled = tvm_edge.compile(graph.model(), "llvm")
    assert "conv2d_int8" in rules_of(compiled, "product")
    assert_same_numbers(compiled, graph.model(), graph.values)


def test_a_transposed_convolution_of_one_filter_knows_its_weights() -> None:
    """By a filter for each phase; TVM's own takes ten times as long."""
    graph = QuantizedGraph()
    numbers = graph.random.integers(-128, 128, (16, 1, 2, 2), "int8")
    weights = graph.real(graph.constant(numbers, "int8"), [0.01], [0], "int8", axis=1)
    made = graph.op("ConvTranspose", graph.input(1, 16, 6, 7), weights, strides=[2, 2])
    graph.quantized(made, 0.2, 128)
    compiled = tvm_edge.compile(graph.model(), "llvm", tuning_logs=False)
    assert not [k.name for k in compiled.report.kernels if "conv2d_transpose" in k.name]
    assert_same_numbers(compiled, graph.model(), graph.values)
