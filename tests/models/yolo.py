"""YOLO as Ultralytics and Megvii export it: heads for boxes, masks, poses, and suppression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8
CLASSES = 3
BINS = 16  # of a side's distribution
STRIDES = (4, 8)
SIZE = 32
PLACES = sum((SIZE // stride) ** 2 for stride in STRIDES)


def block(
    g: ExportGraph, x: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1
) -> str:
    """Convolution and SiLU."""
    return g.silu(g.conv(x, inputs, outputs, kernel, stride=stride))


def c2f(g: ExportGraph, x: str, channels: int) -> str:
    """Two halves by Split, a bottleneck of the second with a sum, and Concat of all."""
    half = channels // 2
    first, second = g.split(block(g, x, channels, channels), [half, half], 1)
    inner = block(g, block(g, second, half, half, 3), half, half, 3)
    merged = g.op("Concat", first, second, g.op("Add", second, inner), axis=1)
    return block(g, merged, 3 * half, channels)


def sppf(g: ExportGraph, x: str, channels: int) -> str:
    """Three poolings in a row, and Concat of all."""
    steps = [block(g, x, channels, channels)]
    for _ in range(3):
        steps.append(
            g.op("MaxPool", steps[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1],
                 ceil_mode=0, dilations=[1, 1])
        )  # fmt: skip
    return block(g, g.op("Concat", *steps, axis=1), 4 * channels, channels)


def attention(g: ExportGraph, x: str, channels: int, side: int) -> str:
    """YOLO11's C2PSA: attention with a convolution of the values for positions."""
    heads, key, own = 2, 2, channels // 2
    qkv = g.conv(x, channels, heads * (2 * key + own), 1)
    qkv = g.view(qkv, 1, heads, 2 * key + own, side * side)
    q, k, v = g.split(qkv, [key, key, own], 2)
    product = g.op("MatMul", g.transpose(q, 0, 1, 3, 2), k)
    shares = g.op("Softmax", g.op("Mul", product, g.const(key**-0.5)), axis=-1)
    mixed = g.op("MatMul", v, g.transpose(shares, 0, 1, 3, 2))
    mixed = g.view(mixed, 1, channels, side, side)
    place = g.conv(g.view(v, 1, channels, side, side), channels, channels, 3, group=channels)
    return g.op("Add", x, g.conv(g.op("Add", mixed, place), channels, channels, 1))


def pyramid(g: ExportGraph, with_attention: bool = False) -> list[str]:
    """Two levels: a backbone, an upsampling path with Resize, and features of both strides."""
    x = block(g, g.image(size=SIZE), 3, WIDTH, 3, 2)
    fine = c2f(g, block(g, x, WIDTH, WIDTH, 3, 2), WIDTH)
    coarse = sppf(g, block(g, fine, WIDTH, WIDTH, 3, 2), WIDTH)
    if with_attention:
        coarse = attention(g, coarse, WIDTH, SIZE // 8)
    up = g.op(
        "Resize",
        coarse,
        "",
        g.const(np.array([1, 1, 2, 2], "float32")),
        coordinate_transformation_mode="asymmetric",
        cubic_coeff_a=-0.75,
        mode="nearest",
        nearest_mode="floor",
    )
    merged = block(g, g.op("Concat", up, fine, axis=1), 2 * WIDTH, WIDTH)
    return [merged, coarse]


def grid() -> tuple[np.ndarray, np.ndarray]:
    """Centres (1, 2, places) and strides (1, places), which the exporter folds."""
    centres, strides = [], []
    for stride in STRIDES:
        side = np.arange(SIZE // stride) + 0.5
        y, x = np.meshgrid(side, side, indexing="ij")
        centres.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full((1, x.size), stride))
    return np.concatenate(centres, 1)[None].astype("float32"), np.concatenate(strides, 1).astype(
        "float32"
    )


def distances(g: ExportGraph, sides: str) -> str:
    """Distribution focal loss: softmax of each side's bins, their mean by a convolution."""
    x = g.transpose(g.view(sides, 1, 4, BINS, PLACES), 0, 2, 1, 3)
    x = g.op("Softmax", x, axis=1)
    weight = g.held(np.arange(BINS, dtype="float32").reshape(1, BINS, 1, 1), "dfl.conv.weight")
    x = g.op("Conv", x, weight, dilations=[1, 1], group=1, kernel_shape=[1, 1], pads=[0] * 4,
             strides=[1, 1])  # fmt: skip
    return g.view(x, 1, 4, PLACES)


def halves(g: ExportGraph, x: str) -> tuple[str, str]:
    """``chunk(2, 1)`` of four: half of the length is counted from Shape."""
    half = g.op("Div", g.op("Add", g.dim(x, 1), g.const(1)), g.const(2))
    ends = [g.unsqueeze(g.op("Mul", half, g.const(n)), 0) for n in (1, 2)]
    axis = g.const([1])
    return (
        g.op("Slice", x, g.const([0]), ends[0], axis),
        g.op("Slice", x, ends[0], ends[1], axis),
    )


def joined(g: ExportGraph, levels: Sequence[str], count: int, last: str = "") -> str:
    """A small tower per level, flattened, side by side."""
    towers = []
    for level in levels:
        x = g.conv(block(g, level, WIDTH, WIDTH, 3), WIDTH, count, 1)
        towers.append(g.view(x, 1, count, -1))
    joint = g.op("Concat", *towers, axis=2)
    return g.op(last, joint) if last else joint


def boxes_and_scores(g: ExportGraph, levels: Sequence[str]) -> tuple[str, str, str, str]:
    """Sides, scores, and the constants of the grid."""
    maps = []
    for level in levels:
        sides = g.conv(block(g, level, WIDTH, WIDTH, 3), WIDTH, 4 * BINS, 1)
        scores = g.conv(block(g, level, WIDTH, WIDTH, 3), WIDTH, CLASSES, 1)
        both = g.op("Concat", sides, scores, axis=1)
        maps.append(g.view(both, 1, 4 * BINS + CLASSES, -1))
    sides, scores = g.split(g.op("Concat", *maps, axis=2), [4 * BINS, CLASSES], 1)
    centres, strides = grid()
    return distances(g, sides), g.op("Sigmoid", scores), g.const(centres), g.const(strides)


def centred(g: ExportGraph, sides: str, centres: str, strides: str) -> str:
    """Boxes as centre and size."""
    low, high = halves(g, sides)
    low, high = g.op("Sub", centres, low), g.op("Add", centres, high)
    middle = g.op("Div", g.op("Add", low, high), g.const(2.0))
    box = g.op("Concat", middle, g.op("Sub", high, low), axis=1)
    return g.op("Mul", box, strides)


@exported
def ultralytics_detect(seed: int) -> Exported:
    """YOLO11: boxes of distributions beside scores, with attention in the backbone."""
    g = ExportGraph(seed, 19)
    sides, scores, centres, strides = boxes_and_scores(g, pyramid(g, with_attention=True))
    return g.model(g.op("Concat", centred(g, sides, centres, strides), scores, axis=1))


@exported
def ultralytics_segment(seed: int) -> Exported:
    """Boxes, scores and coefficients, and the masks that they weigh."""
    g = ExportGraph(seed, 17)
    levels = pyramid(g)
    masks = 4
    coefficients = joined(g, levels, masks)
    sides, scores, centres, strides = boxes_and_scores(g, levels)
    box = centred(g, sides, centres, strides)
    x = block(g, levels[0], WIDTH, WIDTH, 3)
    x = g.op(
        "ConvTranspose",
        x,
        g.weight(WIDTH, WIDTH, 2, 2),
        g.weight(WIDTH),
        dilations=[1, 1],
        group=1,
        kernel_shape=[2, 2],
        pads=[0] * 4,
        strides=[2, 2],
    )
    prototypes = block(g, block(g, x, WIDTH, WIDTH, 3), WIDTH, masks)
    return g.model(g.op("Concat", box, scores, coefficients, axis=1), prototypes)


@exported
def ultralytics_pose(seed: int) -> Exported:
    """Boxes and key points with visibility: slices of every third channel."""
    g = ExportGraph(seed, 17)
    levels = pyramid(g)
    points = joined(g, levels, 3 * 5)
    sides, scores, centres, strides = boxes_and_scores(g, levels)
    box = centred(g, sides, centres, strides)
    points = g.view(points, 1, 5, 3, -1)
    place = g.op("Mul", g.slice(points, 0, 2, 2), g.const(2.0))
    shifted = g.op("Add", place, g.op("Sub", centres, g.const(0.5)))
    seen = g.op("Sigmoid", g.slice(points, 2, 3, 2))
    both = g.op("Concat", g.op("Mul", shifted, strides), seen, axis=2)
    return g.model(g.op("Concat", box, scores, g.view(both, 1, 15, -1), axis=1))


@exported
def ultralytics_obb(seed: int) -> Exported:
    """Boxes turned by an angle: sine and cosine of a sigmoid."""
    g = ExportGraph(seed, 17)
    levels = pyramid(g)
    angle = g.op("Sub", joined(g, levels, 1, "Sigmoid"), g.const(0.25))
    angle = g.op("Mul", angle, g.const(float(np.pi)))
    sides, scores, centres, strides = boxes_and_scores(g, levels)
    low, high = g.split(sides, [2, 2], 1)
    cosine, sine = g.op("Cos", angle), g.op("Sin", angle)
    shift = g.op("Div", g.op("Sub", high, low), g.const(2.0))
    x, y = g.split(shift, [1, 1], 1)
    turned = g.op(
        "Concat",
        g.op("Sub", g.op("Mul", x, cosine), g.op("Mul", y, sine)),
        g.op("Add", g.op("Mul", x, sine), g.op("Mul", y, cosine)),
        axis=1,
    )
    middle = g.op("Add", turned, centres)
    box = g.op("Concat", middle, g.op("Add", low, high), axis=1)
    box = g.op("Mul", box, strides)
    return g.model(g.op("Concat", box, scores, angle, axis=1))


@exported
def ultralytics_nms(seed: int) -> Exported:
    """The export with ``nms=True``: GatherND by a mask, suppression, Pad to the most boxes."""
    g = ExportGraph(seed, 17)
    sides, scores, centres, strides = boxes_and_scores(g, pyramid(g))
    low, high = halves(g, sides)
    corners = g.op("Concat", g.op("Sub", centres, low), g.op("Add", centres, high), axis=1)
    found = g.op("Concat", g.op("Mul", corners, strides), scores, axis=1)
    found = g.transpose(found, 0, 2, 1)
    boxes, scores = g.slice(found, 0, 4, 2), g.slice(found, 4, INT64_MAX, 2)
    best = g.reduce("ReduceMax", scores, -1, keepdims=0)
    label = g.op("ArgMax", scores, axis=-1, keepdims=0, select_last_index=0)
    first = g.const(0)
    boxes, label, best = (g.op("Gather", each, first, axis=0) for each in (boxes, label, best))
    places = g.transpose(g.op("NonZero", g.op("Greater", best, g.const(0.5))), 1, 0)
    boxes, best, label = (g.op("GatherND", each, places) for each in (boxes, best, label))
    scaled = g.op("Mul", g.op("Div", boxes, g.const(float(SIZE))), g.const(2.0))
    shape = g.op("Concat", g.unsqueeze(g.dim(label, 0), 0), g.const([4]), axis=0)
    ones = g.op("ConstantOfShape", g.const([2]), value=numpy_helper.from_array(np.array([1])))
    wanted = g.op("Where", g.op("Equal", shape, g.op("Mul", ones, g.const(-1))), ones, shape)
    offsets = g.op("Cast", g.op("Expand", g.view(label, -1, 1), wanted), to=TensorProto.FLOAT)
    moved = g.op("Add", g.slice(scaled, 0, 4, 1), g.op("Mul", offsets, g.const(2.0)))
    chosen = g.op(
        "NonMaxSuppression",
        g.unsqueeze(moved, 0),
        g.unsqueeze(best, 0, 1),
        g.const([INT64_MAX]),
        g.const([0.7]),
    )
    kept = g.slice(g.squeeze(g.op("Gather", chosen, g.const([2]), axis=1), 1), 0, 50, 0)
    boxes, best, label = (g.op("Gather", each, kept, axis=0) for each in (boxes, best, label))
    rows = g.op(
        "Concat",
        boxes,
        g.view(best, -1, 1),
        g.op("Cast", g.view(label, -1, 1), to=TensorProto.FLOAT),
        axis=-1,
    )
    return g.model(padded(g, rows, 50))


def padded(g: ExportGraph, rows: str, most: int) -> str:
    """``F.pad`` to `most` rows, with the chain that reverses torch's pairs, into a ScatterND."""
    left = g.op("Sub", g.const(most), g.dim(rows, 0))
    pads = g.op("Concat", g.const([0, 0, 0]), g.unsqueeze(left, 0), axis=0)
    pairs = g.slice(g.view(pads, -1, 2), -1, -INT64_MAX, 0, -1)
    pads = g.op("Cast", g.view(g.transpose(pairs, 1, 0), -1), to=TensorProto.INT64)
    full = g.op("Pad", rows, pads, "", mode="constant")
    places = g.const(np.zeros((1, 1), "int64"))
    empty = g.const(np.zeros((1, most, 6), "float32"))
    return g.op("ScatterND", empty, places, g.view(full, 1, most, 6))


@exported
def yolox(seed: int) -> Exported:
    """Megvii's YOLOX: Focus by strided slices, decoupled heads, boxes of a grid."""
    g = ExportGraph(seed, 11)
    image = g.image(size=SIZE)
    rows = [g.slice(image, start, INT64_MAX, 2, 2) for start in (0, 1)]
    corners = [g.slice(row, start, INT64_MAX, 3, 2) for start in (0, 1) for row in rows]
    fine = block(g, block(g, g.op("Concat", *corners, axis=1), 12, WIDTH, 3), WIDTH, WIDTH, 3, 2)
    coarse = block(g, fine, WIDTH, WIDTH, 3, 2)
    outputs = []
    for level in (fine, coarse):
        stem = block(g, level, WIDTH, WIDTH)
        classes, regression = block(g, stem, WIDTH, WIDTH, 3), block(g, stem, WIDTH, WIDTH, 3)
        maps = [
            g.conv(regression, WIDTH, 4),
            g.op("Sigmoid", g.conv(regression, WIDTH, 1)),
            g.op("Sigmoid", g.conv(classes, WIDTH, CLASSES)),
        ]
        joint = g.op("Concat", *maps, axis=1)
        outputs.append(g.view(joint, g.dim(joint, 0), g.dim(joint, 1), -1))
    x = g.transpose(g.op("Concat", *outputs, axis=2), 0, 2, 1)
    centres, strides = grid()
    places = g.const(np.transpose(centres - 0.5, (0, 2, 1)))
    steps = g.const(strides[:, :, None])
    middle = g.op("Mul", g.op("Add", g.slice(x, 0, 2, 2), places), steps)
    size = g.op("Mul", g.op("Exp", g.slice(x, 2, 4, 2)), steps)
    found = g.op("Concat", middle, size, g.slice(x, 4, INT64_MAX, 2), axis=2)
    return g.model(found, ranks=(3,))
