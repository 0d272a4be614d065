"""Elements moved, picked and put together."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.growing_graph import FLOAT, INT, GrowingGraph
from tests.fuzz.recipes.recipe import ints, maybe, node, recipe


@recipe
def _reshape(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    shape = list(g.values[x][1])
    g.rng.shuffle(shape)
    size = int(np.prod(shape))
    target = g.rng.choice(
        (shape, [-1], [size], [1, -1], [0, -1], [size, 1, 1], [], [-1, 2], [2, -1, 1], [1, 0, -1])
    )
    zero = maybe(g, 1, 0.1) if g.opset >= 14 else None
    if g.opset < 5:
        return node(g, "Reshape", [x], shape=target or None)
    return node(g, "Reshape", [x, ints(g, target)], allowzero=zero)


@recipe
def _transpose(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    order = list(range(len(g.values[x][1])))
    g.rng.shuffle(order)
    return node(g, "Transpose", [x], perm=maybe(g, order, 0.8) or None)


@recipe
def _squeeze(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    op = g.rng.choice(("Squeeze", "Unsqueeze"))
    shape = g.values[x][1]
    axes = [i for i, d in enumerate(shape) if d == 1]
    if op == "Unsqueeze":
        rank = len(shape) + g.rng.choice((1, 1, 2))
        axes = g.rng.sample(range(-rank, rank), rank - len(shape))
    if g.opset >= 13:
        return node(g, op, [x, ints(g, axes)] if axes or op == "Unsqueeze" else [x])
    return node(g, op, [x], axes=axes or None)


@recipe
def _concat(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    kind, shape = g.values[x]
    axis = g.axis(x)
    parts = [x]
    for _ in range(g.rng.choice((0, 1, 1, 2, 4))):
        other = list(shape)
        other[axis] = g.rng.choice((1, 2, 3, shape[axis]))
        parts.append(g.new(kind, tuple(other)))
    return node(g, "Concat", parts, axis=axis)


@recipe
def _split(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    axis, shape = g.axis(x), g.values[x][1]
    first = g.rng.randint(0, shape[axis])
    sizes = [first, shape[axis] - first]
    if g.rng.random() < 0.3:
        parts = g.rng.choice((1, 2, 3))
        count = {"num_outputs": parts} if g.opset >= 18 else {}
        return node(g, "Split", [x], parts, axis=axis, **count)
    if g.opset >= 13:
        return node(g, "Split", [x, ints(g, sizes)], 2, axis=axis)
    return node(g, "Split", [x], 2, axis=axis, split=sizes)


@recipe
def _slice(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    shape = g.values[x][1]
    axes = g.axes(x) or [0]
    starts = [g.rng.choice((0, 1, -1, 2, -3, 100, -100, 2**62)) for _ in axes]
    ends = [g.rng.choice((0, 1, -1, 3, 100, 2**31 - 1, 2**63 - 1, -(2**63))) for _ in axes]
    steps = [g.rng.choice((1, 1, 1, 2, -1, -2, 3, 2**40)) for _ in axes]
    if g.opset < 10:
        return node(g, "Slice", [x], starts=starts, ends=ends, axes=axes)
    inputs = [x, ints(g, starts), ints(g, ends)]
    if g.rng.random() < 0.8 or len(axes) != len(shape):
        inputs.append(ints(g, axes))
        if g.rng.random() < 0.7:
            inputs.append(ints(g, steps))
    return node(g, "Slice", inputs)


@recipe
def _pad(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT + INT)
    mode = g.rng.choice((None, "constant", "reflect", "edge", "wrap"))
    rank = len(g.values[x][1])
    pads = [g.rng.choice((0, 0, 1, 2, -1, 5)) for _ in range(2 * rank)]
    if g.opset < 11:
        return node(g, "Pad", [x], mode=mode, pads=pads, value=maybe(g, 1.5))
    inputs = [x, ints(g, pads)]
    if g.rng.random() < 0.4:
        dtype = helper.tensor_dtype_to_np_dtype(g.values[x][0])
        inputs.append(g.constant(np.asarray(3, dtype)))
    return node(g, "Pad", inputs, mode=mode)


@recipe
def _grow(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    rank = len(g.values[x][1])
    if g.rng.random() < 0.5:
        return node(g, "Tile", [x, ints(g, [g.rng.choice((0, 1, 1, 2, 3)) for _ in range(rank)])])
    shape = [d if d != 1 or g.rng.random() < 0.5 else 3 for d in g.values[x][1]]
    front = [g.rng.choice((1, 2))] if g.rng.random() < 0.4 else []
    return node(g, "Expand", [x, ints(g, [*front, *shape])])


@recipe
def _gather(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick()
    op = g.rng.choice(("Gather", "Gather", "GatherElements", "GatherND"))
    shape, axis = g.values[x][1], g.axis(x)
    length = shape[axis]
    generator = np.random.default_rng(g.rng.getrandbits(32))
    if op == "GatherND":
        depth = g.rng.randint(1, len(shape))
        value = np.stack([generator.integers(-d, d, (3,)) for d in shape[:depth]], -1)
        return node(g, op, [x, g.constant(value)])
    wanted = shape if op == "GatherElements" else g.shape(g.rng.choice((0, 1, 2)))
    value = np.asarray(generator.integers(-length, length, wanted))
    if value.size and g.rng.random() < 0.05:
        value.reshape(-1)[0] = g.rng.choice((length, -length - 1, 2**62, -(2**63)))
    if g.rng.random() < 0.7:
        value = value.astype(g.rng.choice(("int32", "int64")))
        return node(g, op, [x, g.constant(value)], axis=axis)
    return node(g, op, [x, g.new(TensorProto.INT64, value.shape)], axis=axis)


@recipe
def _scatter(g: GrowingGraph) -> onnx.NodeProto:
    x = g.pick(FLOAT + INT)
    kind, shape = g.values[x]
    axis = g.axis(x)
    generator = np.random.default_rng(g.rng.getrandbits(32))
    reduction = None
    if g.opset >= 16:
        reduction = g.rng.choice((None, "none", "add", "mul", "max", "min"))
    if g.rng.random() < 0.4:
        value = np.stack([generator.integers(-d, d, (2,)) for d in shape[:1]], -1)
        updates = g.new(kind, (2, *shape[1:]))
        return node(g, "ScatterND", [x, g.constant(value), updates], reduction=reduction)
    value = np.asarray(generator.integers(-shape[axis], shape[axis], shape))
    if value.size and g.rng.random() < 0.1:
        value.reshape(-1)[0] = g.rng.choice((shape[axis], -shape[axis] - 1, 2**62, -(2**63)))
    updates = g.new(kind, value.shape)
    indices = g.constant(value) if g.rng.random() < 0.8 else g.new(TensorProto.INT64, value.shape)
    op = "Scatter" if g.opset < 11 else "ScatterElements"
    return node(g, op, [x, indices, updates], axis=axis, reduction=reduction)
