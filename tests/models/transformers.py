"""Vision transformers as torch exports timm's and Hugging Face's."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 16
HEADS = 2
OWN = WIDTH // HEADS


def patches(g: ExportGraph, size: int, patch: int) -> tuple[str, int]:
    """Embedded patches of a picture (1, places, width), and the places of a side."""
    x = g.op(
        "Conv",
        g.image(size=size),
        g.weight(WIDTH, 3, patch, patch),
        g.weight(WIDTH),
        kernel_shape=[patch, patch],
        strides=[patch, patch],
    )
    flat = g.op("Reshape", x, g.vector(*(g.dim(x, axis) for axis in (0, 1)), -1))
    return g.transpose(flat, 0, 2, 1), size // patch


def mlp(g: ExportGraph, x: str, inner: int = 2 * WIDTH) -> str:
    """Two products with GELU between."""
    return g.linear(g.gelu(g.linear(x, WIDTH, inner)), inner, WIDTH)


def split_heads(g: ExportGraph, qkv: str, places: int) -> list[str]:
    """``reshape(b, n, 3, heads, own).permute(2, 0, 3, 1, 4).unbind(0)`` with b from Shape."""
    x = g.view(qkv, g.dim(qkv, 0), places, 3, HEADS, OWN)
    x = g.transpose(x, 2, 0, 3, 1, 4)
    return [g.op("Gather", x, g.const(i), axis=0) for i in range(3)]


@exported
def vit(seed: int) -> Exported:
    """A class token that Expand repeats, and layer normalisation of nine operators."""
    g = ExportGraph(seed, 14)
    x, side = patches(g, 16, 4)
    places = side * side + 1
    # ``cls_token.expand(x.shape[0], -1, -1)`` with torch's Where of -1.
    shape = g.vector(g.dim(x, 0), -1, -1)
    ones = g.op("ConstantOfShape", g.const([3]), value=numpy_helper.from_array(np.array([1])))
    shape = g.op("Where", g.op("Equal", shape, g.op("Mul", ones, g.const(-1))), ones, shape)
    token = g.op("Expand", g.held(g.normal(1, 1, WIDTH)), shape)
    x = g.op("Add", g.op("Concat", token, x, axis=1), g.held(g.normal(1, places, WIDTH, scale=0.1)))
    for _ in range(2):
        y = g.linear(g.layer_norm(x, WIDTH), WIDTH, 3 * WIDTH)
        q, k, v = split_heads(g, y, places)
        shares = g.op("MatMul", g.op("Mul", q, g.const(OWN**-0.5)), g.transpose(k, 0, 1, 3, 2))
        mixed = g.transpose(g.op("MatMul", g.op("Softmax", shares, axis=-1), v), 0, 2, 1, 3)
        mixed = g.view(mixed, g.dim(x, 0), places, WIDTH)
        x = g.op("Add", x, g.linear(mixed, WIDTH, WIDTH))
        x = g.op("Add", x, mlp(g, g.layer_norm(x, WIDTH)))
    x = g.op("Gather", g.layer_norm(x, WIDTH), g.const(0), axis=1)
    return g.model(g.gemm(x, WIDTH, 5))


def rolled(g: ExportGraph, x: str, shift: int) -> str:
    """``torch.roll`` along both axes: Slice, Slice, Concat."""
    for axis in (1, 2):
        parts = g.slice(x, shift, INT64_MAX, axis), g.slice(x, 0, shift, axis)
        x = g.op("Concat", *parts, axis=axis)
    return x


def windows(g: ExportGraph, x: str, side: int, window: int, as_grid: bool = False) -> str:
    """Windows, or the grid of every n-th place, of (b, h, w, c): (b·count, places, c)."""
    count = side // window
    shape = [window, count, window, count] if as_grid else [count, window, count, window]
    x = g.view(x, g.dim(x, 0), *shape, g.dim(x, 3))
    perm = (0, 2, 4, 1, 3, 5) if as_grid else (0, 1, 3, 2, 4, 5)
    return g.view(g.transpose(x, *perm), -1, window * window, WIDTH)


def unwindowed(g: ExportGraph, x: str, side: int, window: int, as_grid: bool = False) -> str:
    """The inverse of :func:`windows`."""
    count = side // window
    x = g.view(x, -1, count, count, window, window, WIDTH)
    x = g.transpose(x, *((0, 3, 1, 4, 2, 5) if as_grid else (0, 1, 3, 2, 4, 5)))
    return g.view(x, -1, side, side, WIDTH)


def relative(window: int) -> np.ndarray:
    """Index into a table of relative places for each pair of a window."""
    places = np.stack(np.meshgrid(*[np.arange(window)] * 2, indexing="ij")).reshape(2, -1)
    apart = places[:, :, None] - places[:, None] + window - 1
    return apart[0] * (2 * window - 1) + apart[1]


def window_bias(g: ExportGraph, window: int) -> str:
    """A table gathered by the pairs' index, to (1, heads, places, places)."""
    n = window * window
    table = g.held(g.normal((2 * window - 1) ** 2, HEADS))
    bias = g.op("Gather", table, g.const(relative(window).reshape(-1)), axis=0)
    bias = g.transpose(g.view(bias, n, n, HEADS), 2, 0, 1)
    return g.unsqueeze(bias, 0)


@exported
def swin(seed: int) -> Exported:
    """Shifted windows: a roll, the mask of its seams, a table of biases; merging of patches."""
    g = ExportGraph(seed, 17)
    x, side = patches(g, 16, 2)
    window, n = 4, 16
    for shift in (0, 2):
        kept = x
        y = g.view(g.layer_norm(x, WIDTH), 1, side, side, WIDTH)
        y = rolled(g, y, shift) if shift else y
        y = windows(g, y, side, window)
        q, k, v = split_heads(g, g.linear(y, WIDTH, 3 * WIDTH), n)
        q = g.op("Mul", q, g.const(OWN**-0.5))
        shares = g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))
        shares = g.op("Add", shares, window_bias(g, window))
        if shift:
            # Added to (batch, windows, heads, n, n), and flattened again.
            count = (side // window) ** 2
            regions = np.zeros((side, side))
            parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for i, (rows, columns) in enumerate((a, b) for a in parts for b in parts):
                regions[rows, columns] = i
            blocks = regions.reshape(side // window, window, side // window, window)
            blocks = blocks.transpose(0, 2, 1, 3).reshape(count, n)
            mask = np.where(blocks[:, None] == blocks[:, :, None], 0, -100).astype("float32")
            batches = g.op("Div", g.dim(shares, 0), g.const(count))
            shares = g.view(shares, batches, count, HEADS, n, n)
            shares = g.op("Add", shares, g.const(mask[None, :, None]))
            shares = g.view(shares, -1, HEADS, n, n)
        mixed = g.transpose(g.op("MatMul", g.op("Softmax", shares, axis=-1), v), 0, 2, 1, 3)
        mixed = g.linear(g.view(mixed, -1, n, WIDTH), WIDTH, WIDTH)
        y = unwindowed(g, mixed, side, window)
        y = rolled(g, y, -shift) if shift else y
        x = g.op("Add", kept, g.view(y, 1, side * side, WIDTH))
        x = g.op("Add", x, mlp(g, g.layer_norm(x, WIDTH)))
    grid = g.view(x, 1, side, side, WIDTH)
    corners = []
    for column in (0, 1):
        for row in (0, 1):
            part = g.slice(grid, row, INT64_MAX, 1, 2)
            corners.append(g.slice(part, column, INT64_MAX, 2, 2))
    merged = g.view(g.op("Concat", *corners, axis=-1), 1, -1, 4 * WIDTH)
    merged = g.linear(g.layer_norm(merged, 4 * WIDTH), 4 * WIDTH, 2 * WIDTH, bias=False)
    pooled = g.op("ReduceMean", merged, axes=[1], keepdims=0)
    return g.model(pooled, ranks=(2,))


@exported
def levit(seed: int) -> Exported:
    """Products with BatchNormalization of flattened tokens, biases indexed by distance."""
    g = ExportGraph(seed, 13)
    x = g.conv(g.image(size=16), 3, WIDTH, 3, stride=2)
    x = g.conv(hard_swish(g, x), WIDTH, WIDTH, 3, stride=2)
    side, places = 4, 16
    flat = g.view(x, g.dim(x, 0), g.dim(x, 1), -1)
    x = g.transpose(flat, 0, 2, 1)

    def linear_norm(x: str, inputs: int, outputs: int, count: int) -> str:
        y = g.op("MatMul", x, g.held(g.normal(inputs, outputs, scale=inputs**-0.5)))
        flat = g.view(y, -1, outputs)
        return g.view(g.batch_norm(flat, outputs), 1, count, outputs)

    distances = {}
    index = np.zeros((places, places), "int64")
    points = [(i, j) for i in range(side) for j in range(side)]
    for a, p in enumerate(points):
        for b, q in enumerate(points):
            key = abs(p[0] - q[0]), abs(p[1] - q[1])
            index[a, b] = distances.setdefault(key, len(distances))
    key, value = 4, 8

    def biases(chosen: np.ndarray) -> str:
        table = g.held(g.normal(HEADS, len(distances)))
        return g.op("Gather", table, g.const(chosen), axis=1)

    # Attention, then a sub-sampling one whose queries are every second place of both axes.
    y = g.view(linear_norm(x, WIDTH, HEADS * (2 * key + value), places), 1, places, HEADS, -1)
    q, k, v = g.split(y, [key, key, value], 3)
    q, k, v = g.transpose(q, 0, 2, 1, 3), g.transpose(k, 0, 2, 3, 1), g.transpose(v, 0, 2, 1, 3)
    shares = g.op("Add", g.op("Mul", g.op("MatMul", q, k), g.const(key**-0.5)), biases(index))
    mixed = g.transpose(g.op("MatMul", g.op("Softmax", shares, axis=3), v), 0, 2, 1, 3)
    mixed = hard_swish(g, g.view(mixed, 1, places, HEADS * value))
    x = g.op("Add", x, linear_norm(mixed, HEADS * value, WIDTH, places))
    y = g.view(linear_norm(x, WIDTH, HEADS * (key + value), places), 1, places, HEADS, -1)
    k, v = g.split(y, [key, value], 3)
    k, v = g.transpose(k, 0, 2, 3, 1), g.transpose(v, 0, 2, 1, 3)
    grid = g.view(x, 1, side, side, WIDTH)
    few = g.slice(g.slice(grid, 0, INT64_MAX, 1, 2), 0, INT64_MAX, 2, 2)
    few = g.view(few, 1, 4, WIDTH)
    q = g.transpose(g.view(linear_norm(few, WIDTH, HEADS * key, 4), 1, 4, HEADS, key), 0, 2, 1, 3)
    chosen = index.reshape(side, side, places)[::2, ::2].reshape(4, places)
    shares = g.op("Add", g.op("Mul", g.op("MatMul", q, k), g.const(key**-0.5)), biases(chosen))
    mixed = g.transpose(g.op("MatMul", g.op("Softmax", shares, axis=3), v), 0, 2, 1, 3)
    x = linear_norm(hard_swish(g, g.view(mixed, 1, 4, HEADS * value)), HEADS * value, WIDTH, 4)
    pooled = g.op("ReduceMean", x, axes=[1], keepdims=0)
    # Two heads, averaged, as the distilled network has them.
    both = [g.gemm(g.batch_norm(pooled, WIDTH), WIDTH, 5) for _ in range(2)]
    return g.model(g.op("Div", g.op("Add", *both), g.const(2.0)))


def hard_swish(g: ExportGraph, x: str) -> str:
    """torch's before opset 14: HardSigmoid and Mul."""
    return g.op("Mul", x, g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


@exported
def maxvit(seed: int) -> Exported:
    """An inverted residual block, then attention in windows and on the grid; biases by Einsum."""
    g = ExportGraph(seed, 17)
    x = g.conv(g.image(size=16), 3, WIDTH, 3, stride=2)
    side, window, n = 8, 4, 16
    y = g.silu(g.conv(x, WIDTH, 2 * WIDTH))
    y = g.silu(g.conv(y, 2 * WIDTH, 2 * WIDTH, 3, group=2 * WIDTH))
    pooled = g.op("ReduceMean", y, axes=[2, 3], keepdims=1)
    gate = g.silu(g.conv(pooled, 2 * WIDTH, 4))
    y = g.op("Mul", y, g.op("Sigmoid", g.conv(gate, 4, 2 * WIDTH)))
    x = g.op("Add", x, g.conv(y, 2 * WIDTH, WIDTH))
    x = g.transpose(x, 0, 2, 3, 1)
    steps = np.clip(np.arange(window)[:, None] - np.arange(window) + window - 1, 0, 2 * window - 2)
    lookup = np.eye(2 * window - 1, dtype="float32")[steps]
    for as_grid in (False, True):
        y = windows(g, g.layer_norm(x, WIDTH), side, window, as_grid)
        q, k, v = split_heads(g, g.linear(y, WIDTH, 3 * WIDTH), n)
        shares = g.op("Einsum", q, k, equation="bhid,bhjd->bhij")
        shares = g.op("Mul", shares, g.const(OWN**-0.5))
        table = g.held(g.normal(HEADS, 2 * window - 1, 2 * window - 1))
        bias = g.op("Einsum", table, g.const(lookup), equation="nhw,ixh->nixw")
        bias = g.op("Einsum", bias, g.const(lookup), equation="nixw,jyw->nijxy")
        shares = g.op("Add", shares, g.view(bias, HEADS, n, n))
        mixed = g.op("Einsum", g.op("Softmax", shares, axis=-1), v, equation="bhij,bhjd->bihd")
        mixed = g.linear(g.view(mixed, -1, n, WIDTH), WIDTH, WIDTH)
        x = g.op("Add", x, unwindowed(g, mixed, side, window, as_grid))
        x = g.op("Add", x, mlp(g, g.layer_norm(x, WIDTH)))
    pooled = g.op("GlobalAveragePool", g.transpose(x, 0, 3, 1, 2))
    return g.model(g.op("Flatten", pooled, axis=1), ranks=(2,))


def attended(
    g: ExportGraph, queries: str, keys: str, values: str, counts: tuple[int, int], mask: str = ""
) -> str:
    """``nn.MultiheadAttention`` of (length, batch, channels), with heads beside the batch."""
    many, few = counts[1], counts[0]
    q, k, v = (g.linear(x, WIDTH, WIDTH) for x in (queries, keys, values))
    batch = g.dim(queries, 1)
    rows = g.op("Mul", batch, g.const(HEADS))
    q = g.transpose(g.view(q, few, rows, OWN), 1, 0, 2)
    k, v = (g.transpose(g.view(x, many, rows, OWN), 1, 0, 2) for x in (k, v))
    shares = g.op("MatMul", g.op("Mul", q, g.const(OWN**-0.5)), g.transpose(k, 0, 2, 1))
    shares = g.op("Add", shares, mask) if mask else shares
    mixed = g.op("MatMul", g.op("Softmax", shares, axis=-1), v)
    mixed = g.view(g.transpose(mixed, 1, 0, 2), g.op("Mul", batch, g.const(few)), WIDTH)
    return g.view(g.gemm(mixed, WIDTH, WIDTH), few, batch, WIDTH)


@exported
def detr(seed: int) -> Exported:
    """Sine positions by CumSum of a mask, an encoder, queries, a decoder, boxes of a sigmoid."""
    g = ExportGraph(seed, 12)
    image = g.image(size=32)
    x = g.op("Relu", g.conv(image, 3, WIDTH, 3, stride=2))
    x = g.conv(x, WIDTH, WIDTH, 3, stride=4)
    side, places, queries = 4, 16, 6
    shape = g.vector(g.dim(x, 0), g.dim(x, 2), g.dim(x, 3))
    inside = g.op("Not", g.op("Cast", g.op("ConstantOfShape", shape), to=TensorProto.BOOL))
    inside = g.op("Cast", inside, to=TensorProto.FLOAT)
    waves = []
    for axis in (1, 2):
        count = g.op("CumSum", inside, g.const(axis, "int32"))
        last = g.slice(count, -1, INT64_MAX, axis)
        phase = g.op("Div", count, g.op("Add", last, g.const(1e-6)))
        phase = g.unsqueeze(g.op("Mul", phase, g.const(2 * np.pi)), 3)
        divisor = g.op("Pow", g.const(10000.0), g.const(np.repeat(np.arange(4) / 4, 2)))
        phase = g.op("Div", phase, divisor)
        pair = [
            g.unsqueeze(g.op(kind, g.slice(phase, start, INT64_MAX, 3, 2)), 4)
            for start, kind in enumerate(("Sin", "Cos"))
        ]
        both = g.op("Concat", *pair, axis=4)
        waves.append(g.view(both, g.dim(x, 0), side, side, OWN))
    position = g.transpose(g.op("Concat", *waves, axis=3), 0, 3, 1, 2)
    memory, position = (g.transpose(g.view(each, 1, WIDTH, -1), 2, 0, 1) for each in (x, position))
    keys = g.op("Add", memory, position)
    y = attended(g, keys, keys, memory, (places, places))
    memory = g.layer_norm(g.op("Add", memory, y), WIDTH)
    hidden = g.op("Relu", g.linear(memory, WIDTH, 2 * WIDTH))
    memory = g.layer_norm(g.op("Add", memory, g.linear(hidden, 2 * WIDTH, WIDTH)), WIDTH)
    # ``query_embed.weight.unsqueeze(1).repeat(1, batch, 1)``.
    repeats = g.vector(1, g.dim(x, 0), 1)
    query = g.op("Tile", g.unsqueeze(g.held(g.normal(queries, WIDTH)), 1), repeats)
    target = g.op("ConstantOfShape", g.op("Shape", query))
    y = g.op("Add", target, query)
    y = attended(g, y, y, target, (queries, queries))
    target = g.layer_norm(g.op("Add", target, y), WIDTH)
    keys = g.op("Add", memory, position)
    y = attended(g, g.op("Add", target, query), keys, memory, (queries, places))
    target = g.layer_norm(g.op("Add", target, y), WIDTH)
    target = g.transpose(target, 1, 0, 2)
    logits = g.linear(target, WIDTH, 5)
    boxes = g.op("Sigmoid", g.linear(g.op("Relu", g.linear(target, WIDTH, WIDTH)), WIDTH, 4))
    return g.model(logits, boxes, ranks=(3, 3))


@exported
def rt_detr(seed: int) -> Exported:
    """The best queries of two levels by TopK and GatherElements; deformable attention."""
    g = ExportGraph(seed, 16)
    fine = g.op("Relu", g.conv(g.image(size=32), 3, WIDTH, 3, stride=4))
    coarse = g.op("Relu", g.conv(fine, WIDTH, WIDTH, 3, stride=2))
    sides, queries, points = (8, 4), 7, 2
    flat = [
        g.transpose(g.op("Reshape", x, g.const([0, WIDTH, -1])), 0, 2, 1) for x in (fine, coarse)
    ]
    memory = g.op("Concat", *flat, axis=1)
    scores = g.linear(g.layer_norm(memory, WIDTH), WIDTH, 4)
    best = g.op("ReduceMax", scores, axes=[-1], keepdims=0)
    _, index = g.ops("TopK", best, g.const([queries]), outputs=2, axis=1, largest=1, sorted=1)
    index = g.unsqueeze(index, -1)
    repeats = g.vector(1, 1, g.dim(memory, 2))
    query = g.op("GatherElements", memory, g.op("Tile", index, repeats), axis=1)
    centres = np.concatenate(
        [(np.stack(np.meshgrid(*[np.arange(s)] * 2), -1).reshape(-1, 2) + 0.5) / s for s in sides]
    )
    anchors = g.const(np.log(centres / (1 - centres))[None].astype("float32"))
    reference = g.op("GatherElements", anchors, g.op("Tile", index, g.const([1, 1, 2])), axis=1)
    reference = g.op("Sigmoid", reference)
    # Multi-scale deformable attention: a GridSample for each level.
    value = g.view(g.linear(memory, WIDTH, WIDTH), 1, -1, HEADS, OWN)
    moves = g.view(g.linear(query, WIDTH, HEADS * 2 * points * 2), 1, queries, HEADS, 2, points, 2)
    shares = g.view(g.linear(query, WIDTH, HEADS * 2 * points), 1, queries, HEADS, 2 * points)
    shares = g.op("Softmax", shares, axis=-1)
    lengths = g.const(np.array(sides, "float32").reshape(1, 1, 1, 2, 1, 1))
    base = g.view(reference, 1, queries, 1, 1, 1, 2)
    places = g.op("Add", base, g.op("Div", moves, lengths))
    places = g.op("Sub", g.op("Mul", places, g.const(2.0)), g.const(1.0))
    values = g.split(value, [s * s for s in sides], 1)
    found = []
    for level, side in enumerate(sides):
        part = g.view(g.transpose(values[level], 0, 2, 3, 1), HEADS, OWN, side, side)
        grid = g.op("Gather", places, g.const(level), axis=3)
        grid = g.view(g.transpose(grid, 0, 2, 1, 3, 4), HEADS, queries, points, 2)
        found.append(
            g.op("GridSample", part, grid, align_corners=0, mode="bilinear", padding_mode="zeros")
        )
    stacked = g.op("Concat", *(g.unsqueeze(each, -2) for each in found), axis=-2)
    flat_points = g.op("Reshape", stacked, g.const([HEADS, OWN, queries, 2 * points]))
    weight = g.view(g.transpose(shares, 0, 2, 1, 3), HEADS, 1, queries, 2 * points)
    mixed = g.view(g.sum(g.op("Mul", flat_points, weight), -1), 1, WIDTH, queries)
    target = g.layer_norm(g.op("Add", query, g.transpose(mixed, 0, 2, 1)), WIDTH)
    boxes = g.op("Sigmoid", g.linear(target, WIDTH, 4))
    return g.model(g.op("Concat", boxes, g.op("Sigmoid", g.linear(target, WIDTH, 4)), axis=-1))
