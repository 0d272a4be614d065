"""Convolutional classifiers as torch exports them, one of them quantised."""

from __future__ import annotations

import numpy as np

from tests.models.export_graph import ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8


@exported
def efficientnet(seed: int) -> Exported:
    """Inverted residuals with SiLU and squeeze-and-excitation, two sizes of kernel."""
    g = ExportGraph(seed, 17)
    x = g.silu(g.conv(g.image(dynamic=True), 3, WIDTH, 3, stride=2))
    for kernel, stride in ((3, 1), (5, 2), (3, 1)):
        y = g.silu(g.conv(x, WIDTH, 4 * WIDTH))
        y = g.silu(g.conv(y, 4 * WIDTH, 4 * WIDTH, kernel, stride=stride, group=4 * WIDTH))
        pooled = g.op("GlobalAveragePool", y)
        gate = g.conv(g.silu(g.conv(pooled, 4 * WIDTH, 2)), 2, 4 * WIDTH)
        y = g.conv(g.op("Mul", g.op("Sigmoid", gate), y), 4 * WIDTH, WIDTH)
        x = g.op("Add", y, x) if stride == 1 else y
    x = g.silu(g.conv(x, WIDTH, 4 * WIDTH))
    return g.model(g.gemm(g.op("Flatten", g.op("GlobalAveragePool", x), axis=1), 4 * WIDTH, 5))


def shuffled(g: ExportGraph, x: str, channels: int) -> str:
    """``channel_shuffle``: lengths from Shape, a view of groups, and back."""
    batch, height, width = (g.dim(x, axis) for axis in (0, 2, 3))
    grouped = g.view(x, batch, 2, channels // 2, height, width)
    return g.view(g.transpose(grouped, 0, 2, 1, 3, 4), batch, channels, height, width)


@exported
def shufflenet(seed: int) -> Exported:
    """Halves by Split or Slice, a depthwise branch, a shuffle of channels."""
    g = ExportGraph(seed, 11)
    x = g.op("Relu", g.conv(g.image(dynamic=True), 3, WIDTH, 3, stride=2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    left = g.op("Relu", g.conv(g.conv(x, WIDTH, WIDTH, 3, stride=2, group=WIDTH), WIDTH, WIDTH))
    right = g.op("Relu", g.conv(x, WIDTH, WIDTH))
    right = g.conv(right, WIDTH, WIDTH, 3, stride=2, group=WIDTH)
    right = g.op("Relu", g.conv(right, WIDTH, WIDTH))
    x = shuffled(g, g.op("Concat", left, right, axis=1), 2 * WIDTH)
    kept, y = g.split(x, [WIDTH, WIDTH], 1)
    y = g.op("Relu", g.conv(y, WIDTH, WIDTH))
    y = g.conv(g.conv(y, WIDTH, WIDTH, 3, group=WIDTH), WIDTH, WIDTH)
    x = shuffled(g, g.op("Concat", kept, g.op("Relu", y), axis=1), 2 * WIDTH)
    pooled = g.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    return g.model(g.gemm(pooled, 2 * WIDTH, 5), ranks=(2,))


@exported
def quantized_mobilenet(seed: int) -> Exported:
    """ONNX Runtime's QDQ form: weights by channel, ReLU6 between, a residual sum.

    Scales are powers of two and inputs are multiples of them: no sum lies between two numbers of
    the integer type where a last bit would decide, but in the last product.
    """
    g = ExportGraph(seed, 13, "onnx.quantize")

    def dequantized(x: str, scale: str, zero: str, axis: int = 0) -> str:
        return g.op("DequantizeLinear", x, scale, zero, axis=axis)

    def activation(x: str, exponent: int, zero: int) -> str:
        scale, point = g.held(np.float32(2.0**exponent)), g.held(np.uint8(zero))
        return dequantized(g.op("QuantizeLinear", x, scale, point), scale, point)

    def conv(x: str, inputs: int, outputs: int, kernel: int, exponent: int, group: int = 1) -> str:
        shape = (outputs, inputs // group, kernel, kernel)
        numbers = g.held(g.random.integers(-127, 128, shape, "int8"))
        exponents = g.random.integers(-9, -7, outputs).astype("float32")
        scales = np.exp2(exponents).astype("float32")
        weight = dequantized(numbers, g.held(scales), g.held(np.zeros(outputs, "int8")))
        bias = g.held(g.random.integers(-200, 200, outputs, "int32"))
        products = (scales * np.float32(2.0**exponent)).astype("float32")
        shift = dequantized(bias, g.held(products), g.held(np.zeros(outputs, "int32")))
        return g.op(
            "Conv", x, weight, shift, group=group, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4
        )

    def relu6(x: str) -> str:
        return g.op("Clip", x, g.held(np.float32(0)), g.held(np.float32(6)))

    x = activation(g.image(3, 16), -8, 0)
    x = activation(relu6(conv(x, 3, WIDTH, 3, -8)), -5, 0)
    y = activation(relu6(conv(x, WIDTH, 2 * WIDTH, 1, -5)), -5, 0)
    y = activation(relu6(conv(y, 2 * WIDTH, 2 * WIDTH, 3, -5, group=2 * WIDTH)), -5, 0)
    y = activation(conv(y, 2 * WIDTH, WIDTH, 1, -5), -4, 128)
    x = activation(g.op("Add", x, y), -4, 120)
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
    return g.model(g.gemm(pooled, WIDTH, 5))
