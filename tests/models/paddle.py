"""PaddleOCR's three networks as paddle2onnx writes them: detection, recognition, classification."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8


def graph(seed: int) -> ExportGraph:
    return ExportGraph(seed, 11, "PaddlePaddle")


def hard_swish(g: ExportGraph, x: str) -> str:
    """paddle2onnx's: Add 3, Clip to 6, Mul, Div by 6."""
    gate = g.op("Clip", g.op("Add", x, g.const([3.0])), g.const(0.0), g.const(6.0))
    return g.op("Div", g.op("Mul", x, gate), g.const([6.0]))


def conv_bn(
    g: ExportGraph, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1
) -> str:
    """A convolution without bias, and the normalisation that paddle2onnx leaves beside it."""
    y = g.conv(x, inputs, outputs, kernel, stride=stride, group=group, bias=False)
    return g.batch_norm(y, outputs)


def residual(g: ExportGraph, x: str, channels: int, inner: int) -> str:
    """MobileNetV3's block: expand, depthwise, squeeze-and-excitation, project, add."""
    wide = hard_swish(g, conv_bn(g, x, channels, inner, 1))
    deep = hard_swish(g, conv_bn(g, wide, inner, inner, 3, group=inner))
    pooled = g.op("GlobalAveragePool", deep)
    hidden = g.op("Relu", g.conv(pooled, inner, channels))
    gate = g.op("HardSigmoid", g.conv(hidden, channels, inner), alpha=0.2, beta=0.5)
    return g.op("Add", x, conv_bn(g, g.op("Mul", deep, gate), inner, channels, 1))


def upsampled(g: ExportGraph, x: str, scale: int) -> str:
    """``nearest_interp_v2``."""
    scales = g.op("Concat", g.const([1.0, 1.0]), g.const([float(scale)] * 2), axis=0)
    return g.op(
        "Resize",
        x,
        g.const(np.zeros(0, "float32")),
        scales,
        coordinate_transformation_mode="asymmetric",
        mode="nearest",
        nearest_mode="floor",
    )


@exported
def paddle_text_detection(seed: int) -> Exported:
    """Differentiable binarisation: a pyramid, two transposed convolutions, sigmoid."""
    g = graph(seed)
    x = g.image(name="x", dynamic=True)
    x = hard_swish(g, conv_bn(g, x, 3, WIDTH, 3, 2))
    fine = residual(g, x, WIDTH, 2 * WIDTH)
    coarse = hard_swish(g, conv_bn(g, fine, WIDTH, 2 * WIDTH, 3, 2))
    fine = g.conv(fine, WIDTH, WIDTH, bias=False)
    coarse = g.conv(coarse, 2 * WIDTH, WIDTH, bias=False)
    merged = g.op("Add", fine, upsampled(g, coarse, 2))
    levels = [g.conv(each, WIDTH, WIDTH // 2, 3, bias=False) for each in (merged, coarse)]
    joint = g.op("Concat", upsampled(g, levels[1], 2), levels[0], axis=1)
    x = g.op("Relu", conv_bn(g, joint, WIDTH, WIDTH, 3))
    x = g.op(
        "ConvTranspose",
        x,
        g.weight(WIDTH, 4, 2, 2),
        dilations=[1, 1],
        group=1,
        kernel_shape=[2, 2],
        pads=[0] * 4,
        strides=[2, 2],
    )
    bias = g.op("Reshape", g.weight(4), g.const([1, 4, 1, 1]))
    x = g.op("Relu", g.batch_norm(g.op("Add", x, bias), 4))
    return g.model(g.op("Sigmoid", g.conv(x, 4, 1)))


def bidirectional(g: ExportGraph, x: str, inputs: int, hidden: int) -> str:
    """paddle's LSTM layer of (t, n, c): both directions beside each other."""
    states = [g.held(np.zeros((2, 1, hidden), "float32")) for _ in range(2)]
    y, _, _ = g.ops(
        "LSTM",
        x,
        g.weight(2, 4 * hidden, inputs, scale=inputs**-0.5),
        g.weight(2, 4 * hidden, hidden, scale=hidden**-0.5),
        g.weight(2, 8 * hidden, scale=0.1),
        "",
        *states,
        outputs=3,
        direction="bidirectional",
        hidden_size=hidden,
    )
    return g.op("Reshape", g.transpose(y, 0, 2, 1, 3), g.const([0, 0, -1]))


@exported
def paddle_text_recognition(seed: int) -> Exported:
    """CRNN: columns of a line of text through two layers of LSTM, softmax of characters."""
    g = graph(seed)
    x = g.input("x", g.random.random((1, 3, 16, 40)).astype("float32"), [1, 3, 16, "width"])
    x = hard_swish(g, conv_bn(g, x, 3, WIDTH, 3, 2))
    x = residual(g, x, WIDTH, 2 * WIDTH)
    x = g.op("MaxPool", x, kernel_shape=[8, 2], strides=[8, 2])
    x = g.transpose(g.op("Squeeze", x, axes=[2]), 2, 0, 1)
    for inputs in (WIDTH, 16):
        x = bidirectional(g, x, inputs, 8)
    x = g.transpose(x, 1, 0, 2)
    logits = g.op("Add", g.op("MatMul", x, g.weight(16, 20, scale=0.5)), g.weight(20))
    return g.model(g.op("Softmax", logits, axis=2))


@exported
def paddle_text_recognition_svtr(seed: int) -> Exported:
    """SVTR: mixing by attention over all places, with paddle's chain of shapes."""
    g = graph(seed)
    x = g.input("x", g.random.random((1, 3, 16, 32)).astype("float32"), ["batch", 3, 16, "width"])
    x = hard_swish(g, conv_bn(g, x, 3, WIDTH, 3, 2))
    x = hard_swish(g, conv_bn(g, x, WIDTH, WIDTH, 3, 2))
    shape = g.op("Shape", x)
    height, width = (g.slice(shape, axis, axis + 1, 0) for axis in (2, 3))
    tokens = g.op("Concat", g.const([0]), g.const([WIDTH]), g.const([-1]), axis=0)
    x = g.transpose(g.op("Reshape", x, tokens), 0, 2, 1)
    heads, own = 2, WIDTH // 2
    y = g.layer_norm(x, WIDTH)
    qkv = g.op("Add", g.op("MatMul", y, g.weight(WIDTH, 3 * WIDTH, scale=0.4)), g.weight(3 * WIDTH))
    qkv = g.transpose(g.op("Reshape", qkv, g.const([0, -1, 3, heads, own])), 2, 0, 3, 1, 4)
    q, k, v = (
        g.op("Squeeze", g.op("Slice", qkv, g.const([i]), g.const([i + 1]), g.const([0])), axes=[0])
        for i in range(3)
    )
    q = g.op("Mul", q, g.const([own**-0.5]))
    shares = g.op("Softmax", g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)), axis=3)
    mixed = g.transpose(g.op("MatMul", shares, v), 0, 2, 1, 3)
    mixed = g.op("Reshape", mixed, g.const([0, -1, WIDTH]))
    x = g.op("Add", x, g.op("MatMul", mixed, g.weight(WIDTH, WIDTH, scale=0.4)))
    x = g.layer_norm(x, WIDTH)
    back = g.op("Concat", g.const([0]), height, width, g.const([WIDTH]), axis=0)
    x = g.transpose(g.op("Reshape", x, back), 0, 3, 1, 2)
    x = g.op("ReduceMean", x, axes=[2], keepdims=0)
    x = g.transpose(x, 0, 2, 1)
    logits = g.op("Add", g.op("MatMul", x, g.weight(WIDTH, 12, scale=0.5)), g.weight(12))
    return g.model(g.op("Softmax", logits, axis=2), ranks=(3,))


@exported
def paddle_text_direction(seed: int) -> Exported:
    """A small MobileNetV3 with hard-swish, flattened by Shape, Slice and Concat."""
    g = graph(seed)
    x = g.input("x", g.random.random((1, 3, 24, 32)).astype("float32"), ["batch", 3, 24, 32])
    x = hard_swish(g, conv_bn(g, x, 3, WIDTH, 3, 2))
    for _ in range(2):
        x = residual(g, x, WIDTH, 2 * WIDTH)
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("GlobalAveragePool", x)
    batch = g.op("Cast", g.slice(g.op("Shape", x), 0, 1, 0), to=TensorProto.INT64)
    x = g.op("Reshape", x, g.op("Concat", batch, g.const([-1]), axis=0))
    x = g.op("Add", g.op("MatMul", x, g.weight(WIDTH, 2, scale=0.5)), g.weight(2))
    # `Slice` without an end, as paddle.argmax's neighbours have it.
    return g.model(g.slice(g.op("Softmax", x, axis=1), 0, INT64_MAX, 1), ranks=(2,))
