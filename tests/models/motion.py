"""Optical flow and video: correlation, lookups by GridSample, convolutional GRUs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8
SIDE = 8


def conv_gru(g: ExportGraph, h: str, x: str, inputs: int, kernel: tuple[int, int]) -> str:
    """One step of a convolutional GRU."""
    both = g.op("Concat", h, x, axis=1)
    update = g.op("Sigmoid", g.conv(both, WIDTH + inputs, WIDTH, kernel))
    reset = g.op("Sigmoid", g.conv(both, WIDTH + inputs, WIDTH, kernel))
    kept = g.op("Concat", g.op("Mul", reset, h), x, axis=1)
    new = g.op("Tanh", g.conv(kept, WIDTH + inputs, WIDTH, kernel))
    old = g.op("Mul", g.op("Sub", g.const(1.0), update), h)
    return g.op("Add", old, g.op("Mul", update, new))


def sampled(g: ExportGraph, volume: str, places: str) -> str:
    """torchvision's ``grid_sample`` in pixels: to -1 … 1 by Shape, then GridSample."""
    parts = []
    for axis, place in zip((3, 2), g.split(places, [1, 1], 3), strict=True):
        last = g.op("Sub", g.dim(volume, axis), g.const(1))
        last = g.op("Cast", last, to=TensorProto.FLOAT)
        part = g.op("Div", g.op("Mul", place, g.const(2.0)), last)
        parts.append(g.op("Sub", part, g.const(1.0)))
    grid = g.op("Concat", *parts, axis=3)
    return g.op("GridSample", volume, grid, align_corners=1, mode="bilinear", padding_mode="zeros")


def instance_norm(g: ExportGraph, x: str) -> str:
    """An InstanceNorm2d without parameters: ones and zeros."""
    ones, zeros = (g.const(np.full(WIDTH, v, "float32")) for v in (1, 0))
    return g.op("InstanceNormalization", x, ones, zeros, epsilon=1e-5)


def coordinates(g: ExportGraph, like: str) -> str:
    """``make_coords_grid``: Range of both lengths, Expand, stacked as x and y."""
    height, width = g.dim(like, 2), g.dim(like, 3)
    zero, one = g.const(0), g.const(1)
    shape = g.vector(height, width)
    xs = g.op("Expand", g.view(g.op("Range", zero, width, one), 1, -1), shape)
    ys = g.op("Expand", g.view(g.op("Range", zero, height, one), -1, 1), shape)
    stacked = g.op("Concat", g.unsqueeze(xs, 0), g.unsqueeze(ys, 0), axis=0)
    return g.unsqueeze(g.op("Cast", stacked, to=TensorProto.FLOAT), 0)


@exported
def raft(seed: int) -> Exported:
    """torchvision's RAFT: a correlation pyramid, two steps of its GRU, convex upsampling."""
    g = ExportGraph(seed, 16)
    pictures = [g.image(size=4 * SIDE, name=f"image{i}") for i in (1, 2)]
    first, second = g.weight(WIDTH, 3, 3, 3), g.weight(WIDTH, WIDTH, 3, 3)
    features = []
    for picture in pictures:
        x = picture
        for weight in (first, second):
            x = g.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
            x = g.op("Relu", instance_norm(g, x))
        features.append(x)
    # All pairs of places.
    batch, channels, height, width = (g.dim(features[0], axis) for axis in range(4))
    left, right = (g.view(each, batch, channels, g.op("Mul", height, width)) for each in features)
    product = g.op("MatMul", g.transpose(left, 0, 2, 1), right)
    scale = g.op("Sqrt", g.op("Cast", channels, to=TensorProto.FLOAT))
    volume = g.view(g.op("Div", product, scale), SIDE * SIDE, 1, SIDE, SIDE)
    half = g.op("AveragePool", volume, kernel_shape=[2, 2], strides=[2, 2])
    context = g.conv(features[0], WIDTH, 2 * WIDTH, 3)
    hidden, context = g.split(context, [WIDTH, WIDTH], 1)
    hidden, context = g.op("Tanh", hidden), g.op("Relu", context)
    start = coordinates(g, features[0])
    now = start
    near = np.stack(np.meshgrid(*[np.arange(-1, 2)] * 2, indexing="ij"), -1)
    window = g.const(near.reshape(1, 3, 3, 2).astype("float32"))
    for _ in range(2):
        centres = g.view(g.transpose(now, 0, 2, 3, 1), SIDE * SIDE, 1, 1, 2)
        found = []
        for level, each in enumerate((volume, half)):
            places = g.op("Div", centres, g.const(2.0**level)) if level else centres
            looked = sampled(g, each, g.op("Add", places, window))
            found.append(g.view(looked, 1, SIDE, SIDE, 9))
        lookup = g.transpose(g.op("Concat", *found, axis=3), 0, 3, 1, 2)
        flow = g.op("Sub", now, start)
        motion = g.op("Relu", g.conv(g.op("Concat", lookup, flow, axis=1), 20, WIDTH - 2, 3))
        motion = g.op("Concat", motion, flow, context, axis=1)
        for kernel in ((1, 5), (5, 1)):
            hidden = conv_gru(g, hidden, motion, 2 * WIDTH, kernel)
        now = g.op("Add", now, g.conv(hidden, WIDTH, 2, 3))
    flow = g.op("Sub", now, start)
    return g.model(upsampled(g, flow, g.conv(hidden, WIDTH, 9 * 4, 1)), ranks=(4,))


def unfolded(g: ExportGraph, x: str) -> str:
    """``F.unfold(x, 3, padding=1)``: Pad, and Gather by sums of Range along both axes."""
    padded = g.op("Pad", x, g.const([0, 0, 1, 1, 0, 0, 1, 1]), mode="constant")
    places = []
    for axis in (2, 3):
        steps = g.op("Range", g.const(0), g.dim(x, axis), g.const(1))
        kernel = g.view(g.op("Range", g.const(0), g.const(3), g.const(1)), 3, 1)
        places.append(g.op("Add", g.unsqueeze(steps, 0), kernel))
    rows = g.op("Gather", padded, places[0], axis=2)
    blocks = g.op("Gather", rows, places[1], axis=4)
    blocks = g.transpose(blocks, 0, 1, 2, 4, 3, 5)
    channels = g.op("Mul", g.dim(x, 1), g.const(9))
    return g.view(blocks, g.dim(x, 0), channels, -1)


def upsampled(g: ExportGraph, flow: str, mask: str) -> str:
    """RAFT's convex combination of the nine places around each."""
    mask = g.op("Softmax", g.view(mask, 1, 1, 9, 2, 2, SIDE, SIDE), axis=2)
    around = g.view(unfolded(g, g.op("Mul", flow, g.const(2.0))), 1, 2, 9, 1, 1, SIDE, SIDE)
    fine = g.sum(g.op("Mul", mask, around), 2)
    return g.view(g.transpose(fine, 0, 1, 4, 2, 5, 3), 1, 2, 2 * SIDE, 2 * SIDE)


@exported
def video_matting(seed: int) -> Exported:
    """Robust Video Matting: half of the channels pass a convolutional GRU with a state."""
    g = ExportGraph(seed, 12)
    image = g.image(name="src", dynamic=True, size=16)
    old = g.input("r1i", g.normal(1, 4, 8, 8), ["batch", 4, "h1", "w1"])
    x = g.op("Clip", g.conv(image, 3, WIDTH, 3, stride=2), g.const(0.0), g.const(6.0))
    kept, passed = g.split(x, [4, 4], 1)
    both = g.op("Concat", passed, old, axis=1)
    gates = g.op("Sigmoid", g.conv(both, 8, 8, 3))
    reset, update = g.split(gates, [4, 4], 1)
    new = g.op("Concat", passed, g.op("Mul", reset, old), axis=1)
    new = g.op("Tanh", g.conv(new, 8, 4, 3))
    ones = g.op("Sub", g.const(1.0), update)
    state = g.op("Add", g.op("Mul", ones, old), g.op("Mul", update, new))
    x = g.op("Concat", kept, state, axis=1)
    x = g.op(
        "Resize",
        x,
        g.const(np.zeros(0, "float32")),
        g.const([1.0, 1.0, 2.0, 2.0]),
        coordinate_transformation_mode="pytorch_half_pixel",
        cubic_coeff_a=-0.75,
        mode="linear",
        nearest_mode="floor",
    )
    # Cropped to the picture's size, as an odd one needs it.
    ends = [g.unsqueeze(g.dim(image, axis), 0) for axis in (2, 3)]
    for axis, end in zip((2, 3), ends, strict=True):
        x = g.op("Slice", x, g.const([0]), end, g.const([axis]))
    x = g.conv(g.op("Concat", x, image, axis=1), WIDTH + 3, 4, 3)
    alpha = g.op("Clip", g.slice(x, 3, INT64_MAX, 1), g.const(0.0), g.const(1.0))
    colour = g.op("Add", g.slice(x, 0, 3, 1), image)
    return g.model(colour, alpha, state, ranks=(4, 4, 4))
