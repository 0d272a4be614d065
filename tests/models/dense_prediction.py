"""Networks with a result for each place: segmentation, peaks, pyramids, depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8


def resized(g: ExportGraph, x: str, height: str, width: str, mode: str = "linear") -> str:
    """``F.interpolate(x, size=…)``: the channels' half of Shape beside Cast sizes."""
    sizes = g.vector(height, width)
    sizes = g.op("Cast", sizes, to=TensorProto.INT64)
    lead = g.op("Slice", g.op("Shape", x), g.const([0]), g.const([2]), g.const([0]))
    wanted = g.op("Concat", lead, sizes, axis=0)
    how = "pytorch_half_pixel" if mode == "linear" else "asymmetric"
    if g.opset < 13:
        empty = [g.const(np.zeros(0, "float32")) for _ in range(2)]
    else:
        empty = ["", ""]
    return g.op(
        "Resize", x, *empty, wanted, coordinate_transformation_mode=how, cubic_coeff_a=-0.75,
        mode=mode, nearest_mode="floor",
    )  # fmt: skip


def stem(g: ExportGraph, image: str, count: int) -> list[str]:
    """Feature maps, each of half the last one's size."""
    maps = [g.op("Relu", g.conv(image, 3, WIDTH, 3, stride=2))]
    for _ in range(count - 1):
        maps.append(g.op("Relu", g.conv(maps[-1], WIDTH, WIDTH, 3, stride=2)))
    return maps


@exported
def deeplab(seed: int) -> Exported:
    """Dilated convolutions side by side, a pooled one enlarged again, logits of the full size."""
    g = ExportGraph(seed, 11)
    image = g.image(dynamic=True)
    x = stem(g, image, 2)[-1]
    branches = [g.op("Relu", g.conv(x, WIDTH, WIDTH))]
    for rate in (2, 4):
        y = g.conv(x, WIDTH, WIDTH, 3, dilation=rate, bias=False)
        branches.append(g.op("Relu", g.batch_norm(y, WIDTH)))
    pooled = g.op("Relu", g.conv(g.op("GlobalAveragePool", x), WIDTH, WIDTH))
    branches.append(resized(g, pooled, g.dim(x, 2), g.dim(x, 3)))
    x = g.op("Relu", g.conv(g.op("Concat", *branches, axis=1), 4 * WIDTH, WIDTH))
    logits = resized(g, g.conv(x, WIDTH, 4, bias=False), g.dim(image, 2), g.dim(image, 3))
    return g.model(logits, g.op("ArgMax", logits, axis=1, keepdims=0), ranks=(4, 3))


@exported
def feature_pyramid(seed: int) -> Exported:
    """Lateral convolutions, nearest upsampling to the other level's Shape, sums, one more level."""
    g = ExportGraph(seed, 13)
    levels = stem(g, g.image(dynamic=True), 3)
    lateral = [g.conv(level, WIDTH, WIDTH) for level in levels]
    merged = [lateral[-1]]
    for fine in reversed(lateral[:-1]):
        up = resized(g, merged[0], g.dim(fine, 2), g.dim(fine, 3), "nearest")
        merged.insert(0, g.op("Add", fine, up))
    results = [g.conv(each, WIDTH, WIDTH, 3) for each in merged]
    results.append(g.op("MaxPool", results[-1], kernel_shape=[1, 1], strides=[2, 2]))
    return g.model(*results, ranks=(4,) * 4)


def of_places(g: ExportGraph, x: str, index: str, channels: int) -> str:
    """``_transpose_and_gather_feat``: (1, c, h, w) at flat places, (1, k, c)."""
    flat = g.view(g.transpose(x, 0, 2, 3, 1), 1, -1, channels)
    shape = g.vector(g.dim(index, 0), g.dim(index, 1), channels)
    return g.op("GatherElements", flat, g.op("Expand", g.unsqueeze(index, 2), shape), axis=1)


@exported
def centernet(seed: int) -> Exported:
    """Peaks that a pooling leaves as they are; the best of classes, then of all."""
    g = ExportGraph(seed, 12)
    x = stem(g, g.image(size=24), 1)[0]
    side, classes, most = 12, 3, 8
    heat = g.op("Sigmoid", g.conv(x, WIDTH, classes, 3))
    sizes, offsets = g.conv(x, WIDTH, 2, 3), g.conv(x, WIDTH, 2, 3)
    largest = g.op("MaxPool", heat, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    peaks = g.op("Cast", g.op("Equal", largest, heat), to=TensorProto.FLOAT)
    flat = g.view(g.op("Mul", heat, peaks), 1, classes, -1)
    score, place = g.ops("TopK", flat, g.const([most]), outputs=2, axis=2, largest=1, sorted=1)
    # Row and column in float, as the old code divides.
    row = g.op("Cast", g.op("Div", place, g.const(side)), to=TensorProto.FLOAT)
    column = g.op("Cast", g.op("Mod", place, g.const(side)), to=TensorProto.FLOAT)
    score, index = g.ops(
        "TopK", g.view(score, 1, -1), g.const([most]), outputs=2, axis=1, largest=1, sorted=1
    )
    label = g.op("Cast", g.op("Div", index, g.const(most)), to=TensorProto.FLOAT)
    picked = []
    for each in (place, row, column):
        rows = g.view(each, 1, -1, 1)
        picked.append(g.view(of_rows(g, rows, index), 1, most))
    place, row, column = picked
    shift, size = (of_places(g, each, place, 2) for each in (offsets, sizes))
    centre = g.op("Add", g.op("Concat", g.unsqueeze(column, 2), g.unsqueeze(row, 2), axis=2), shift)
    half = g.op("Div", size, g.const(2.0))
    corners = [g.op(kind, centre, half) for kind in ("Sub", "Add")]
    last = [g.unsqueeze(each, 2) for each in (score, label)]
    return g.model(g.op("Concat", *corners, *last, axis=2), ranks=(3,))


def of_rows(g: ExportGraph, rows: str, index: str) -> str:
    """Rows (1, n, 1) at places (1, k)."""
    return g.op("GatherElements", rows, g.unsqueeze(index, 2), axis=1)


@exported
def depth_anything(seed: int) -> Exported:
    """DPT: tokens made pictures again at several scales, fused with bilinear enlargements."""
    g = ExportGraph(seed, 17)
    image = g.image(size=16)
    side = 4
    x = g.op(
        "Conv", image, g.weight(WIDTH, 3, 4, 4), g.weight(WIDTH), kernel_shape=[4, 4],
        strides=[4, 4],
    )  # fmt: skip
    tokens = tokens_of(g, x)
    token = g.held(g.normal(1, 1, WIDTH))
    tokens = g.op("Concat", token, tokens, axis=1)
    maps = []
    for level in range(3):
        y = g.layer_norm(tokens, WIDTH)
        tokens = g.op("Add", tokens, g.linear(g.gelu(g.linear(y, WIDTH, WIDTH)), WIDTH, WIDTH))
        # The class token read beside each: repeated, joined and projected.
        rest = g.slice(tokens, 1, INT64_MAX, 1)
        first = g.unsqueeze(g.op("Gather", tokens, g.const(0), axis=1), 1)
        first = g.op("Expand", first, g.op("Shape", rest))
        both = g.linear(g.op("Concat", rest, first, axis=-1), 2 * WIDTH, WIDTH)
        picture = g.view(g.transpose(g.gelu(both), 0, 2, 1), 1, WIDTH, side, side)
        maps.append(rescaled(g, picture, level))
    x = None
    for level in reversed(range(3)):
        y = maps[level] if x is None else g.op("Add", x, maps[level])
        y = g.op("Add", y, g.conv(g.op("Relu", y), WIDTH, WIDTH, 3))
        target = maps[level - 1] if level else y
        height, width = (g.dim(target, axis) for axis in (2, 3)) if level else doubled(g, y)
        x = g.conv(aligned(g, y, height, width), WIDTH, WIDTH)
    assert x is not None
    return g.model(g.op("Relu", g.conv(x, WIDTH, 1, 3)), ranks=(4,))


def tokens_of(g: ExportGraph, x: str) -> str:
    return g.transpose(g.view(x, g.dim(x, 0), g.dim(x, 1), -1), 0, 2, 1)


def doubled(g: ExportGraph, x: str) -> Sequence[str]:
    """Twice the lengths, by way of floats, as ``scale_factor=2`` is traced."""
    results = []
    for axis in (2, 3):
        real = g.op("Mul", g.op("Cast", g.dim(x, axis), to=TensorProto.FLOAT), g.const(2.0))
        results.append(g.op("Cast", g.op("Floor", real), to=TensorProto.INT64))
    return results


def aligned(g: ExportGraph, x: str, height: str, width: str) -> str:
    """A bilinear enlargement that keeps the corners."""
    lead = g.slice(g.op("Shape", x), 0, 2, 0)
    wanted = g.op("Concat", lead, g.vector(height, width), axis=0)
    return g.op(
        "Resize", x, "", "", wanted, coordinate_transformation_mode="align_corners", mode="linear",
        cubic_coeff_a=-0.75, nearest_mode="floor",
    )  # fmt: skip


def rescaled(g: ExportGraph, x: str, level: int) -> str:
    """Twice the size, the same, or half."""
    if level == 0:
        return g.op(
            "ConvTranspose", x, g.weight(WIDTH, WIDTH, 2, 2), g.weight(WIDTH), kernel_shape=[2, 2],
            strides=[2, 2],
        )  # fmt: skip
    return g.conv(x, WIDTH, WIDTH, 3, stride=level)
