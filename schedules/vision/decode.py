"""Decoding of a detector's predictions to boxes and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold, register, when
from tvm_edge.schedules.vision.compaction import Compaction

__all__ = ["decode_locations", "ssd_boxes", "yolo_boxes", "yolo_scores"]


def ssd_boxes(
    encodings: te.Tensor, anchors: te.Tensor, variances: Sequence[float], anchor_format: str
) -> te.Tensor:
    """Compute corners from centre-size encodings; see :func:`tvm_edge.ops.ssd_decode`."""
    dtype = str(encodings.dtype)
    lead = len(encodings.shape) - len(anchors.shape)

    def element(*i: tirx.Expr) -> tirx.Expr:
        box, side = i[:-1], i[-1]
        axis = tirx.floormod(side, 2)
        own = [
            tirx.const(0, "int64") if _is_one(size) else at
            for size, at in zip(anchors.shape[:-1], box[lead:], strict=True)
        ]
        first, second = anchors(*own, axis), anchors(*own, axis + 2)
        centre, size = _centre_and_size(first, second, anchor_format)
        low, high = _ends(
            encodings(*box, axis),
            encodings(*box, axis + 2),
            centre,
            size,
            _constant_of(axis, variances[:2], dtype),
            _constant_of(axis, variances[2:], dtype),
        )
        return tirx.Select(side < 2, low, high)

    return te.compute(encodings.shape, element, name="ssd_boxes")


def _centre_and_size(
    first: tirx.Expr, second: tirx.Expr, anchor_format: str
) -> tuple[tirx.Expr, tirx.Expr]:
    if anchor_format == "center":
        return first, second
    return (first + second) / tirx.const(2, first.ty.dtype), second - first


def _ends(
    shift: tirx.Expr, growth: tirx.Expr, centre: Any, size: Any, of_shift: Any, of_growth: Any
) -> tuple[tirx.Expr, tirx.Expr]:
    """Solve SSD's equation 2 for the box: its beginning and end on one axis."""
    middle = shift * of_shift * size + centre
    half = tirx.exp(growth * of_growth) * size / tirx.const(2, size.ty.dtype)
    return middle - half, middle + half


def _constant_of(axis: tirx.Expr, values: Sequence[float], dtype: str) -> tirx.Expr:
    first, second = (tirx.const(value, dtype) for value in values)
    return first if values[0] == values[1] else tirx.Select(axis == 0, first, second)


def _is_one(size: Any) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1


# -------------------------------------------------------------------------------------------- YOLO


def yolo_boxes(
    features: te.Tensor,
    *,
    anchors: Sequence[tuple[float, float]],
    classes: int,
    strides: tuple[float, float],
    scale_x_y: float,
    growth: str,
) -> te.Tensor:
    """Compute ``(batch, height * width * anchors, 4)``; see :func:`tvm_edge.ops.yolo_decode`."""
    dtype = str(features.dtype)
    predicted = _predictions(features, len(anchors), classes)
    width, half = features.shape[3], tirx.const(0.5, dtype)

    def element(b: tirx.Expr, box: tirx.Expr, side: tirx.Expr) -> tirx.Expr:
        cell, which = tirx.floordiv(box, len(anchors)), tirx.floormod(box, len(anchors))
        is_y = tirx.floormod(side, 2) == 0
        place = tirx.Select(is_y, tirx.floordiv(cell, width), tirx.floormod(cell, width))
        axis = tirx.Select(is_y, 1, 0)  # Darknet: x, y, width, height
        shift = te.sigmoid(predicted(b, box, axis))
        if scale_x_y != 1:
            scale = tirx.const(scale_x_y, dtype)
            shift = (shift - half) * scale + half
        stride = _constant_of(axis, strides[::-1], dtype)
        size = _constant_of(axis, anchors[0], dtype)
        for index, anchor in enumerate(anchors[1:], 1):
            size = tirx.Select(which == index, _constant_of(axis, anchor, dtype), size)
        grown = predicted(b, box, axis + 2)
        if growth == "exp":
            factor = tirx.exp(grown)
        else:
            factor = te.sigmoid(grown) * tirx.const(2, dtype)
            factor = factor * factor
        middle, extent = (place.astype(dtype) + shift) * stride, factor * size * half
        return tirx.Select(side < 2, middle - extent, middle + extent)

    boxes = features.shape[2] * width * len(anchors)
    return te.compute((features.shape[0], boxes, 4), element, name="yolo_boxes")


def yolo_scores(features: te.Tensor, *, anchors: int, classes: int) -> te.Tensor:
    """Compute ``(batch, classes, height * width * anchors)``: objectness times class."""
    predicted = _predictions(features, anchors, classes)
    boxes = features.shape[2] * features.shape[3] * anchors

    def element(b: tirx.Expr, c: tirx.Expr, box: tirx.Expr) -> tirx.Expr:
        return te.sigmoid(predicted(b, box, 4)) * te.sigmoid(predicted(b, box, 5 + c))

    return te.compute((features.shape[0], classes, boxes), element, name="yolo_scores")


def _predictions(features: te.Tensor, anchors: int, classes: int) -> Callable[..., tirx.Expr]:
    """Return the predictions of a box: x, y, width, height, objectness, classes."""
    width = features.shape[3]

    def predicted(b: tirx.Expr, box: tirx.Expr, what: Any) -> tirx.Expr:
        cell, which = tirx.floordiv(box, anchors), tirx.floormod(box, anchors)
        y, x = tirx.floordiv(cell, width), tirx.floormod(cell, width)
        return features(b, which * (5 + classes) + what, y, x)

    return predicted


# ----------------------------------------------------------------------------------------- MultiBox


def decode_locations(
    batch: int,
    classes: int,
    anchors: int,
    dtype: str,
    spec: DeviceSpec,
    *,
    clip: bool,
    threshold: float,
    variances: Sequence[float],
) -> Kernel:
    """Find each anchor's best class, and move the boxes that pass to the front.

    Parameters and meaning as of :func:`tvm_edge.ops.multibox_transform_loc`.

    Returns
    -------
    Kernel
        ``(probabilities, locations, anchors, rows, counts, workspace...)``.
    """
    plan = Compaction(batch, anchors, spec)
    none, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def clipped(end: tirx.Expr) -> tirx.Expr:
        # NaN, with which all comparisons are false, stays on every device.
        value = hold(end)
        return tirx.Select(value < none, none, tirx.Select(value > one, one, value))

    def body(
        probabilities: Any,
        locations: Any,
        priors: Any,
        rows: Any,
        counts: Any,
        classes_of: Any,
        scores: Any,
        *space: Any,
    ) -> None:
        def choose(anchor: tirx.Expr) -> None:
            b, at = hold(tirx.floordiv(anchor, anchors)), hold(tirx.floormod(anchor, anchors))
            best = register(tirx.const(-1, dtype))
            which = register(tirx.const(0, "int32"))
            with T.serial(1, classes) as c:
                score = hold(probabilities[b, c, at])
                with when(score > best[0]):
                    best[0] = score
                    which[0] = c
            passes = best[0] >= tirx.const(threshold, dtype)
            classes_of[anchor] = tirx.Select(passes, which[0], tirx.const(0, "int32"))
            scores[anchor] = best[0]

        each(spec, batch * anchors, choose, work=classes)

        def wanted(b: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return classes_of[b * anchors + at] > 0

        def keep(b: tirx.Expr, at: tirx.Expr, slot: tirx.Expr) -> None:
            rows[b, slot, 0] = (classes_of[b * anchors + at] - 1).astype(dtype)
            rows[b, slot, 1] = scores[b * anchors + at]
            for axis in (0, 1):
                ends = _ends(
                    locations[b, at * 4 + axis],
                    locations[b, at * 4 + axis + 2],
                    *_centre_and_size(priors[0, at, axis], priors[0, at, axis + 2], "corner"),
                    *(tirx.const(variances[k], dtype) for k in (axis, axis + 2)),
                )
                for side, end in enumerate(ends):
                    rows[b, slot, 2 + axis + 2 * side] = clipped(end) if clip else end

        def fill(b: tirx.Expr, slot: tirx.Expr) -> None:
            with T.serial(0, 6) as k:
                rows[b, slot, k] = tirx.const(-1, dtype)

        def count(b: tirx.Expr, kept: tirx.Expr) -> None:
            counts[b] = kept

        plan.write(wanted, keep, fill, count, space)

    shapes = [[batch, classes, anchors], [batch, 4 * anchors], [1, anchors, 4]]
    outputs = [([batch, anchors, 6], dtype), ([batch], "int32")]
    workspace = [([batch * anchors], "int32"), ([batch * anchors], dtype)]
    inputs = [(shape, dtype) for shape in shapes]
    return function(inputs, [*outputs, *workspace, *plan.workspace], body)
