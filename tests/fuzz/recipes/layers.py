"""Layers of networks: convolutions, pooling, normalisation, products, images."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.growing_graph import FLOAT, GrowingGraph
from tests.fuzz.recipes.recipe import ints, maybe, node, recipe


@recipe
def _conv(g: GrowingGraph) -> onnx.NodeProto:
    space = g.rng.choice((1, 2, 2, 2, 3))
    x = g.pick(FLOAT, (space + 2,))
    kind, shape = g.values[x]
    channels = shape[1]
    groups = g.rng.choice([n for n in (1, 1, 2, 3, channels) if n and channels % n == 0])
    kernel = [g.rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(space)]
    out = groups * g.rng.choice((1, 2, 4))
    transposed = g.rng.random() < 0.3
    weight = (
        (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    )
    inputs = [x, g.new(kind, weight, g.rng.random() < 0.8)]
    if g.rng.random() < 0.5:
        inputs.append(g.new(kind, (out,), True))
    extra: dict[str, Any] = {}
    if transposed and g.rng.random() < 0.3:
        extra["output_padding"] = [g.rng.choice((0, 1)) for _ in range(space)]
    op = "ConvTranspose" if transposed else "Conv"
    return node(g, op, inputs, **_window(g, space, kernel), group=groups, **extra)


def _window(g: GrowingGraph, space: int, kernel: list[int]) -> dict[str, Any]:
    attrs: dict[str, Any] = {"kernel_shape": maybe(g, kernel)}
    if g.rng.random() < 0.4:
        attrs["strides"] = [g.rng.choice((1, 2, 3)) for _ in range(space)]
    if g.rng.random() < 0.25:
        attrs["dilations"] = [g.rng.choice((1, 2)) for _ in range(space)]
    match g.rng.randrange(4):
        case 0:
            attrs["auto_pad"] = g.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
        case 1 | 2:
            attrs["pads"] = [g.rng.choice((0, 1, 1, 2)) for _ in range(2 * space)]
    return attrs


@recipe
def _pool(g: GrowingGraph) -> onnx.NodeProto:
    space = g.rng.choice((1, 2, 2, 2, 3))
    x = g.pick(FLOAT, (space + 2,))
    op = g.rng.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        return node(g, op, [x])
    kernel = [g.rng.choice((1, 2, 3)) for _ in range(space)]
    attrs = {**_window(g, space, kernel), "kernel_shape": kernel}
    if g.opset < 10 or (op == "AveragePool" and g.opset < 19):
        attrs.pop("dilations", None)
    if g.opset >= 10:
        attrs["ceil_mode"] = maybe(g, 1, 0.3)
    if op == "AveragePool" and g.opset >= 7:
        attrs["count_include_pad"] = maybe(g, 1, 0.4)
    if op == "LpPool":
        attrs["p"] = g.rng.choice((None, 1, 2, 3))
    return node(g, op, [x], 2 if op == "MaxPool" and g.rng.random() < 0.2 else 1, **attrs)


@recipe
def _normalise(g: GrowingGraph) -> onnx.NodeProto:
    op = g.rng.choice(
        "BatchNormalization InstanceNormalization LRN GroupNormalization LayerNormalization "
        "LpNormalization MeanVarianceNormalization RMSNormalization".split()
    )
    x = g.pick(FLOAT, (2, 3, 4, 5))
    kind, shape = g.values[x]
    channel = (shape[1],)
    epsilon = g.rng.choice((None, 1e-3, 0.0))
    if op == "BatchNormalization":
        parts = [g.new(kind, channel, g.rng.random() < 0.8) for _ in range(3)]
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        return node(g, op, [x, *parts, g.constant(np.ones(channel, dtype))], epsilon=epsilon)
    if op == "InstanceNormalization":
        return node(g, op, [x, g.new(kind, channel), g.new(kind, channel)], epsilon=epsilon)
    if op == "LRN":
        return node(g, op, [x], size=g.rng.choice((1, 2, 3, 5, 9)))
    if op == "GroupNormalization":
        groups = g.rng.choice([n for n in (1, 2, 3, channel[0]) if n and channel[0] % n == 0])
        length = channel if g.opset >= 21 else (groups,)
        parts = [g.new(kind, length), g.new(kind, length)]
        return node(g, op, [x, *parts], num_groups=groups, epsilon=epsilon)
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = g.axis(x)
        parts = [g.new(kind, shape[axis:])]
        if op[0] == "L" and g.rng.random() < 0.5:
            parts.append(g.new(kind, shape[axis:]))
        return node(g, op, [x, *parts], axis=axis, epsilon=epsilon)
    if op == "LpNormalization":
        return node(g, op, [x], axis=g.axis(x), p=g.rng.choice((1, 2)))
    return node(g, op, [x], axes=g.axes(x) or None)


@recipe
def _matmul(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick((*FLOAT, TensorProto.INT32), (1, 2, 2, 3, 4))
    kind, shape = g.values[x]
    columns = g.rng.choice((1, 2, 5, 16))
    if g.rng.random() < 0.5 and len(shape) == 2:
        swap_a, swap_b = g.rng.random() < 0.3, g.rng.random() < 0.5
        inner = shape[0] if swap_a else shape[1]
        inputs = [x, g.new(kind, (columns, inner) if swap_b else (inner, columns))]
        if g.rng.random() < 0.6:
            inputs.append(g.new(kind, g.rng.choice(((columns,), (1,), (), (1, columns)))))
        flags = {"alpha": maybe(g, 0.5, 0.3), "beta": maybe(g, 2.0, 0.3)}
        return node(g, "Gemm", inputs, transA=int(swap_a), transB=int(swap_b), **flags)
    other = g.rng.choice(((shape[-1],), (shape[-1], columns), (*shape[:-2], shape[-1], columns)))
    return node(g, "MatMul", [x, g.new(kind, other)])


@recipe
def _resize(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT, (3, 4, 4, 4, 5))
    shape = g.values[x][1]
    scales = [1.0, 1.0, *(g.rng.choice((0.5, 1.0, 1.5, 2.0, 2.6)) for _ in shape[2:])]
    mode = g.rng.choice(("nearest", "linear", "cubic"))
    if g.opset < 10:
        if g.opset < 9:
            return node(g, "Upsample", [x], mode=mode, scales=scales)
        return node(g, "Upsample", [x, g.constant(np.float32(scales))], mode=mode)
    if g.opset < 11:
        return node(g, "Resize", [x, g.constant(np.float32(scales))], mode=mode)
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": g.rng.choice(
            (None, "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
        ),
        "nearest_mode": g.rng.choice((None, "floor", "ceil", "round_prefer_ceil")),
        "antialias": maybe(g, 1, 0.1) if g.opset >= 18 else None,
        "exclude_outside": maybe(g, 1, 0.1),
    }
    roi = "" if g.opset >= 13 else g.constant(np.zeros(0, "float32"))
    if g.rng.random() < 0.5:
        return node(g, "Resize", [x, roi, g.constant(np.float32(scales))], **attrs)
    sizes = [*shape[:2], *(g.rng.choice((1, 3, 8)) for _ in shape[2:])]
    return node(g, "Resize", [x, roi, "", ints(g, sizes)], **attrs)


@recipe
def _sample(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT, (4,))
    kind, shape = g.values[x]
    if g.rng.random() < 0.5:
        boxes = g.new(kind, (2, 4))
        index = g.constant(np.zeros(2, "int64"))
        return node(g, "RoiAlign", [x, boxes, index], output_height=g.rng.choice((None, 2)))
    grid = g.new(kind, (shape[0], 3, 2, 2))
    mode = g.rng.choice((None, "bilinear" if g.opset < 20 else "linear", "nearest"))
    padding = g.rng.choice((None, "zeros", "border", "reflection"))
    return node(
        g, "GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=maybe(g, 1)
    )


@recipe
def _blocks(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT, (4,))
    op = g.rng.choice(("DepthToSpace", "SpaceToDepth"))
    return node(g, op, [x], blocksize=g.rng.choice((1, 2, 2, 3)))
