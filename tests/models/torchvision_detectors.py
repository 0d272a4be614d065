"""Detectors as torch exports torchvision's, their numbers of boxes known at run time only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported

SIZE = 32
CHANNELS = 8


def where(g: ExportGraph, mask: str) -> str:
    """``torch.where(mask)[0]``: NonZero, Transpose, Split, Squeeze."""
    places = g.transpose(g.op("NonZero", mask), 1, 0)
    if g.opset < 13:
        (column,) = g.ops("Split", places, outputs=1, axis=1, split=[1])
    else:
        (column,) = g.ops("Split", places, g.const([1]), outputs=1, axis=1)
    return g.squeeze(column, 1)


def smallest(g: ExportGraph, number: int, x: str, axis: int) -> str:
    """``min(number, x.size(axis))`` as torchvision's ``_topk_min`` traces it."""
    length = g.unsqueeze(g.dim(x, axis), 0)
    both = g.op("Concat", g.const([number]), length, axis=0)
    return g.view(g.op("ReduceMin", both, keepdims=0), -1)


def at_least(g: ExportGraph, x: str, limit: float) -> str:
    """``x >= limit``, which is no operator before opset 12."""
    if g.opset < 12:
        return g.op("Not", g.op("Less", x, g.const(limit)))
    return g.op("GreaterOrEqual", x, g.const(limit))


def column(g: ExportGraph, x: str, index: int) -> str:
    """``x[:, index]``."""
    return g.op("Gather", x, g.const(index), axis=1)


def anchors(g: ExportGraph, feature: str, image: str, sides: Sequence[float]) -> str:
    """``AnchorGenerator``: strides by division of sizes, shifts by Range, one base per side."""
    shifts = []
    for axis in (3, 2):
        count = g.dim(feature, axis)
        stride = g.op("Div", g.dim(image, axis), count)
        numbers = g.op("Range", g.const(0), count, g.const(1))
        shifts.append(
            g.op("Mul", g.op("Cast", numbers, to=TensorProto.INT32),
                 g.op("Cast", stride, to=TensorProto.INT32))
        )  # fmt: skip
    xs, ys = shifts
    grid = g.op("Concat", g.op("Shape", ys), g.op("Shape", xs), axis=0)
    rows = g.op("Expand", g.view(ys, -1, 1), grid)
    columns = g.op("Expand", g.view(xs, 1, -1), grid)
    flat = [g.view(each, -1) for each in (columns, rows)] * 2
    shift = g.op("Concat", *(g.unsqueeze(each, 1) for each in flat), axis=1)
    base = np.array([[-s / 2, -s / 2, s / 2, s / 2] for s in sides], "float32")
    boxes = g.op(
        "Add",
        g.view(g.op("Cast", shift, to=TensorProto.FLOAT), -1, 1, 4),
        g.view(g.const(base), 1, -1, 4),
    )
    return g.view(boxes, -1, 4)


def decoded(g: ExportGraph, deltas: str, boxes: str, weights: Sequence[float]) -> str:
    """``BoxCoder.decode_single`` to (n, 4)."""
    low, high = ([column(g, boxes, i + a) for a in (0, 1)] for i in (0, 2))
    corners: list[list[str]] = [[], []]
    for axis in (0, 1):
        size = g.op("Sub", high[axis], low[axis])
        centre = g.op("Add", low[axis], g.op("Mul", g.const(0.5), size))
        move = g.op("Div", g.slice(deltas, axis, INT64_MAX, 1, 4), g.const(weights[axis]))
        grow = g.op("Div", g.slice(deltas, axis + 2, INT64_MAX, 1, 4), g.const(weights[axis + 2]))
        grow = g.op("Clip", grow, "", g.const(4.135))
        wide = g.unsqueeze(size, 1)
        middle = g.op("Add", g.op("Mul", move, wide), g.unsqueeze(centre, 1))
        half = g.op("Mul", g.const(0.5), g.op("Mul", g.op("Exp", grow), wide))
        corners[0].append(g.op("Sub", middle, half))
        corners[1].append(g.op("Add", middle, half))
    stacked = [g.unsqueeze(each, 2) for each in (*corners[0], *corners[1])]
    return g.op("Flatten", g.op("Concat", *stacked, axis=2), axis=1)


def clipped(g: ExportGraph, boxes: str, image: str) -> str:
    """``clip_boxes_to_image``: Max and Min with the picture's size, on strided slices."""
    sides = []
    for start, axis in ((0, 3), (1, 2)):
        side = g.slice(boxes, start, INT64_MAX, 1, 2)
        limit = g.op("Cast", g.dim(image, axis), to=TensorProto.FLOAT)
        sides.append(g.unsqueeze(g.op("Min", g.op("Max", side, g.const(0.0)), limit), 2))
    return g.view(g.op("Concat", *sides, axis=2), g.dim(boxes, 0), g.dim(boxes, 1))


def large(g: ExportGraph, boxes: str, limit: float) -> str:
    """``remove_small_boxes``: which are kept."""
    wide, high = (
        at_least(g, g.op("Sub", column(g, boxes, i + 2), column(g, boxes, i)), limit)
        for i in (0, 1)
    )
    return where(g, g.op("And", wide, high))


def batched_nms(g: ExportGraph, boxes: str, scores: str, classes: str, limit: float) -> str:
    """``_batched_nms_coordinate_trick``: an If of whether there are boxes, as the script has it."""
    count = g.op("ReduceProd", g.op("Shape", boxes), keepdims=0)
    empty = g.op("Cast", g.op("Equal", count, g.const(0)), to=TensorProto.BOOL)
    none, some = g.branch(), g.branch()
    nothing = none.op("ConstantOfShape", none.const([0]))
    nothing = none.op("Cast", nothing, to=TensorProto.INT64)
    largest = some.op("ReduceMax", boxes, keepdims=0)
    offsets = some.op(
        "Mul",
        some.op("Cast", classes, to=TensorProto.FLOAT),
        some.op("Add", largest, some.const(1.0)),
    )
    moved = some.op("Add", boxes, some.unsqueeze(offsets, 1))
    chosen = some.op(
        "NonMaxSuppression",
        some.unsqueeze(moved, 0),
        some.unsqueeze(some.unsqueeze(scores, 0), 0),
        some.const([INT64_MAX]),
        some.const([limit]),
    )
    kept = some.squeeze(some.op("Gather", chosen, some.const([2]), axis=1), 1)
    kinds = TensorProto.INT64
    return g.op(
        "If",
        empty,
        then_branch=none.body("none", nothing, kind=kinds),
        else_branch=some.body("some", kept, kind=kinds),
    )


def flat(g: ExportGraph, x: str, classes: int) -> str:
    """``permute_and_flatten``: (n, a·c, h, w) to (n, h·w·a, c)."""
    split = g.view(x, g.dim(x, 0), -1, classes, g.dim(x, 2), g.dim(x, 3))
    return g.view(g.transpose(split, 0, 3, 4, 1, 2), g.dim(x, 0), -1, classes)


def backbone(g: ExportGraph, image: str) -> list[str]:
    """Two feature maps, of a quarter and an eighth of the picture."""
    mean = g.const(np.array([0.485, 0.456, 0.406], "float32").reshape(3, 1, 1))
    x = g.op("Div", g.op("Sub", image, mean), g.const(np.full((3, 1, 1), 0.225, "float32")))
    x = g.op("Relu", g.conv(x, 3, CHANNELS, 3, stride=2))
    fine = g.op("Relu", g.conv(x, CHANNELS, CHANNELS, 3, stride=2))
    coarse = g.op("Relu", g.conv(fine, CHANNELS, CHANNELS, 3, stride=2))
    return [fine, coarse]


@exported
def torchvision_faster_rcnn(seed: int) -> Exported:
    """A region proposal network, RoiAlign on two levels, and a box head's results."""
    g = ExportGraph(seed, 17)
    picture = g.random.random((1, 3, SIZE, SIZE)).astype("float32")
    image = g.input("images", picture, [1, 3, "height", "width"])
    levels = backbone(g, image)
    weight, delta = g.weight(3, CHANNELS, 1, 1), g.weight(12, CHANNELS, 1, 1, scale=0.1)
    logits, deltas, counts = [], [], []
    for level in levels:
        hidden = g.op("Relu", g.conv(level, CHANNELS, CHANNELS, 3))
        logits.append(flat(g, g.op("Conv", hidden, weight, kernel_shape=[1, 1]), 1))
        deltas.append(flat(g, g.op("Conv", hidden, delta, kernel_shape=[1, 1]), 4))
        counts.append(g.dim(logits[-1], 1))
    boxes = g.op(
        "Concat",
        *(anchors(g, level, image, np.array([6, 9, 12]) * 2**i) for i, level in enumerate(levels)),
        axis=0,
    )
    objectness = g.view(g.op("Concat", *logits, axis=1), 1, -1)
    proposals = decoded(
        g, g.view(g.op("Concat", *deltas, axis=1), -1, 4), boxes, (1.0, 1.0, 1.0, 1.0)
    )
    # The best of each level.
    tops, names, start = [], [], g.const(0)
    for i, count in enumerate(counts):
        end = g.op("Add", start, count)
        part = g.op("Slice", objectness, g.unsqueeze(start, 0), g.unsqueeze(end, 0), g.const([1]))
        k = smallest(g, 40, part, 1)
        _, index = g.ops("TopK", part, k, outputs=2, axis=1, largest=1, sorted=1)
        tops.append(g.op("Add", index, start))
        name = g.op("ConstantOfShape", g.op("Shape", index))
        names.append(g.op("Add", g.op("Cast", name, to=TensorProto.INT64), g.const(i)))
        start = end
    best = g.squeeze(g.op("Concat", *tops, axis=1), 0)
    level_names = g.squeeze(g.op("Concat", *names, axis=1), 0)
    scores = g.op("Sigmoid", g.op("Gather", g.squeeze(objectness, 0), best, axis=0))
    proposals = clipped(g, g.op("Gather", proposals, best, axis=0), image)
    kept = large(g, proposals, 1e-3)
    proposals, scores, level_names = (
        g.op("Gather", each, kept, axis=0) for each in (proposals, scores, level_names)
    )
    kept = where(g, at_least(g, scores, 0.4))
    proposals, scores, level_names = (
        g.op("Gather", each, kept, axis=0) for each in (proposals, scores, level_names)
    )
    kept = g.slice(batched_nms(g, proposals, scores, level_names, 0.7), 0, 20, 0)
    rois = g.op("Gather", proposals, kept, axis=0)
    pooled = regions(g, levels, rois)
    # The box head and what it says.
    x = g.op("Flatten", pooled, axis=1)
    x = g.op("Relu", g.gemm(x, CHANNELS * 9, 16))
    classes = 4
    scores = g.op("Softmax", g.gemm(x, 16, classes), axis=-1)
    found = decoded(g, g.gemm(x, 16, 4 * classes), rois, (10.0, 10.0, 5.0, 5.0))
    found = g.view(found, g.dim(found, 0), -1, 4)
    found = g.view(g.slice(clipped3(g, found, image), 1, INT64_MAX, 1), -1, 4)
    labels = g.op("Expand", g.view(g.op("Range", g.const(0), g.const(classes), g.const(1)), 1, -1),
                  g.op("Shape", scores))  # fmt: skip
    labels = g.view(g.slice(labels, 1, INT64_MAX, 1), -1)
    scores = g.view(g.slice(scores, 1, INT64_MAX, 1), -1)
    kept = where(g, g.op("Greater", scores, g.const(0.2)))
    found, scores, labels = (g.op("Gather", each, kept, axis=0) for each in (found, scores, labels))
    kept = large(g, found, 0.01)
    found, scores, labels = (g.op("Gather", each, kept, axis=0) for each in (found, scores, labels))
    kept = g.slice(batched_nms(g, found, scores, labels, 0.5), 0, 100, 0)
    results = (g.op("Gather", each, kept, axis=0) for each in (found, labels, scores))
    return g.model(*results, ranks=(2, 1, 1))


def clipped3(g: ExportGraph, boxes: str, image: str) -> str:
    """Boxes (n, classes, 4) within the picture."""
    sides = []
    for start, axis in ((0, 3), (1, 2)):
        side = g.slice(boxes, start, INT64_MAX, 2, 2)
        limit = g.op("Cast", g.dim(image, axis), to=TensorProto.FLOAT)
        sides.append(g.unsqueeze(g.op("Min", g.op("Max", side, g.const(0.0)), limit), 3))
    shape = [g.dim(boxes, axis) for axis in (0, 1, 2)]
    return g.view(g.op("Concat", *sides, axis=3), *shape)


def regions(g: ExportGraph, levels: Sequence[str], rois: str) -> str:
    """``MultiScaleRoIAlign``: each box on the level of its size, merged in the boxes' order."""
    first = g.op("ConstantOfShape", g.op("Shape", g.slice(rois, 0, 1, 1)))
    numbered = g.op("Concat", first, rois, axis=1)
    wide, high = (g.op("Sub", column(g, rois, i + 2), column(g, rois, i)) for i in (0, 1))
    side = g.op("Sqrt", g.op("Mul", wide, high))
    octave = g.op("Div", g.op("Log", g.op("Div", side, g.const(16.0))), g.const(0.6931471824645996))
    target = g.op("Floor", g.op("Add", g.op("Add", octave, g.const(3.0)), g.const(1e-6)))
    target = g.op("Clip", target, g.const(2.0), g.const(3.0))
    level_of = g.op("Sub", g.op("Cast", target, to=TensorProto.INT64), g.const(2))
    results, places = [], []
    for i, level in enumerate(levels):
        chosen = where(g, g.op("Equal", level_of, g.const(i)))
        own = g.op("Gather", numbered, chosen, axis=0)
        batch = g.squeeze(g.op("Gather", own, g.const([0]), axis=1), 1)
        results.append(
            g.op(
                "RoiAlign",
                level,
                g.op("Gather", own, g.const([1, 2, 3, 4]), axis=1),
                g.op("Cast", batch, to=TensorProto.INT64),
                coordinate_transformation_mode="output_half_pixel",
                mode="avg",
                output_height=3,
                output_width=3,
                sampling_ratio=2,
                spatial_scale=0.25 / 2**i,
            )
        )
        places.append(chosen)
    # ``_onnx_merge_levels``: rows of each level scattered to where its boxes stood.
    shape = [g.dim(results[0], axis) for axis in (1, 2, 3)]
    merged = g.op("ConstantOfShape", g.vector(g.dim(level_of, 0), *shape))
    for rows, place in zip(results, places, strict=True):
        index = g.op("Expand", g.view(place, -1, 1, 1, 1), g.op("Shape", rows))
        merged = g.op("ScatterElements", merged, index, rows, axis=0)
    return merged


@exported
def torchvision_retinanet(seed: int) -> Exported:
    """Per level: scores above a limit, the best ``min(k, n)`` of them, boxes; then suppression."""
    g = ExportGraph(seed, 12)
    image = g.image(size=SIZE)
    classes, per_place = 3, 2
    boxes, scores, labels = [], [], []
    for i, level in enumerate(backbone(g, image)):
        tower = g.op("Relu", g.conv(level, CHANNELS, CHANNELS, 3))
        logits = flat(g, g.conv(tower, CHANNELS, per_place * classes, 3), classes)
        deltas = flat(g, g.conv(tower, CHANNELS, per_place * 4, 3), 4)
        first = g.const(0)
        logits, deltas = (g.op("Gather", each, first, axis=0) for each in (logits, deltas))
        probable = g.op("Flatten", g.op("Sigmoid", logits), axis=0)
        probable = g.view(probable, -1)
        kept = where(g, g.op("Greater", probable, g.const(0.5)))
        score = g.op("Gather", probable, kept, axis=0)
        k = smallest(g, 20, score, 0)
        score, order = g.ops("TopK", score, k, outputs=2, axis=0, largest=1, sorted=1)
        kept = g.op("Gather", kept, order, axis=0)
        place = g.op("Div", kept, g.const(classes))
        label = g.op("Mod", kept, g.const(classes), fmod=0)
        box = decoded(
            g,
            g.op("Gather", deltas, place, axis=0),
            g.op("Gather", anchors(g, level, image, (6 * 2**i, 9 * 2**i)), place, axis=0),
            (1.0, 1.0, 1.0, 1.0),
        )
        boxes.append(clipped(g, box, image))
        scores.append(score)
        labels.append(label)
    found, score, label = (g.op("Concat", *each, axis=0) for each in (boxes, scores, labels))
    kept = g.slice(batched_nms(g, found, score, label, 0.5), 0, 100, 0)
    results = (g.op("Gather", each, kept, axis=0) for each in (found, score, label))
    return g.model(*results, ranks=(2, 1, 1))


@exported
def torchvision_ssd(seed: int) -> Exported:
    """Scores of each class above a limit, the best ``min(k, n)`` of them, one suppression."""
    g = ExportGraph(seed, 11)
    image = g.image(size=SIZE)
    classes, per_place = 4, 2
    logits, deltas, boxes = [], [], []
    for i, level in enumerate(backbone(g, image)):
        logits.append(flat(g, g.conv(level, CHANNELS, per_place * classes, 3), classes))
        deltas.append(flat(g, g.conv(level, CHANNELS, per_place * 4, 3), 4))
        boxes.append(anchors(g, level, image, (6 * 2**i, 9 * 2**i)))
    scores = g.op("Softmax", g.squeeze(g.op("Concat", *logits, axis=1), 0), axis=1)
    delta = g.squeeze(g.op("Concat", *deltas, axis=1), 0)
    found = decoded(g, delta, g.op("Concat", *boxes, axis=0), (10.0, 10.0, 5.0, 5.0))
    found = clipped(g, found, image)
    all_boxes, all_scores, all_labels = [], [], []
    for label in range(1, classes):
        score = column(g, scores, label)
        kept = g.squeeze(
            g.transpose(g.op("NonZero", g.op("Greater", score, g.const(0.25))), 1, 0), 1
        )
        score, box = (g.op("Gather", each, kept, axis=0) for each in (score, found))
        k = smallest(g, 25, score, 0)
        score, order = g.ops("TopK", score, k, outputs=2, axis=0, largest=1, sorted=1)
        all_boxes.append(g.op("Gather", box, order, axis=0))
        all_scores.append(score)
        full = g.op("ConstantOfShape", g.op("Shape", score))
        full = g.op("Add", g.op("Cast", full, to=TensorProto.INT64), g.const(label))
        all_labels.append(full)
    box, score, names = (
        g.op("Concat", *each, axis=0) for each in (all_boxes, all_scores, all_labels)
    )
    kept = g.slice(batched_nms(g, box, score, names, 0.45), 0, 100, 0)
    results = (g.op("Gather", each, kept, axis=0) for each in (box, score, names))
    return g.model(*results, ranks=(2, 1, 1))
