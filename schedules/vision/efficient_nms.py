"""Detections of all classes, the best of a picture, in tensors of fixed shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold, when
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, Box, Candidates, Overlap, exactly, load_box
from tvm_edge.schedules.vision.keys import ordered_words
from tvm_edge.schedules.vision.nms import suppression

__all__ = ["list_detections", "score_kept"]

_NOBODY = -np.inf


def score_kept(
    batch: int,
    classes: int,
    boxes: int,
    spec: DeviceSpec,
    *,
    most: int,
    iou_threshold: float,
    score_threshold: float,
    background: int | None,
    center: bool,
) -> Kernel:
    """Suppress within each class, and store the scores of the kept boxes.

    Returns
    -------
    Kernel
        ``(boxes[batch * boxes * 4], scores[batch * boxes * classes], values, kept, counts[batch *
        classes], workspace...)``, all flat: ``values`` and ``kept`` have `most` elements for each
        class of each picture; after a count values are minus infinity.
    """
    lists = batch * classes
    plan = suppression(spec)(lists, boxes, most, Overlap(iou_threshold), spec)

    def body(box: Any, scores: Any, values: Any, kept: Any, counts: Any, *space: Any) -> None:
        def score(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            row = tirx.floordiv(line, classes) * boxes + at
            return scores[row * classes + tirx.floormod(line, classes)]

        def takes_part(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            part = score(line, at) > exactly(score_threshold)
            if background is None:
                return part
            return tirx.all(part, tirx.floormod(line, classes) != background)

        def key(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return ordered_words(score(line, at), BOX_DTYPE, True)[0]

        def load(line: tirx.Expr, at: tirx.Expr) -> Box:
            first = hold((tirx.floordiv(line, classes) * boxes + at) * 4)
            return load_box(lambda i: box[first + i], center=center)

        plan.write(Candidates(takes_part, key, load), kept, counts, space)

        def note(index: tirx.Expr) -> None:
            line, rank = tirx.floordiv(index, most), tirx.floormod(index, most)
            found = score(line, kept[index])
            values[index] = tirx.if_then_else(rank < counts[line], found, exactly(_NOBODY))

        each(spec, lists * most, note)

    return function(
        [([batch * boxes * 4], BOX_DTYPE), ([lists * boxes], BOX_DTYPE)],
        [
            ([lists * most], BOX_DTYPE),
            ([lists * most], "int32"),
            ([lists], "int32"),
            *plan.workspace,
        ],
        body,
    )


def list_detections(
    batch: int, classes: int, boxes: int, spec: DeviceSpec, *, most: int, best: int, wanted: int
) -> Kernel:
    """Look up the detections of a picture's best values.

    Parameters
    ----------
    batch, classes, boxes, most
        As for :func:`score_kept`.
    spec : DeviceSpec
    best, wanted : int
        Values that were chosen, and detections to return: at least as many.

    Returns
    -------
    Kernel
        ``(boxes, kept, values[batch * best], positions[batch * best], number[batch],
        found[batch * wanted * 4], scores[batch * wanted], labels[batch * wanted])``, all flat;
        values descend, and positions are among the ``classes * most`` of a picture.
    """

    def body(
        box: Any,
        kept: Any,
        values: Any,
        positions: Any,
        number: Any,
        found: Any,
        scores: Any,
        labels: Any,
    ) -> None:
        def is_one(line: tirx.Expr, rank: tirx.Expr) -> tirx.Expr:
            inside = tirx.min(rank, best - 1)
            real = values[line * best + inside] > exactly(_NOBODY)
            return tirx.all(rank < best, real)

        def write(index: tirx.Expr) -> None:
            line, rank = tirx.floordiv(index, wanted), tirx.floormod(index, wanted)
            at = hold(line * best + tirx.min(rank, best - 1))
            one = hold(is_one(line, rank).astype("int32"))
            # Any position will do where there is no detection.
            position = hold(tirx.Select(one != 0, positions[at].astype("int32"), 0))
            source = hold(tirx.Select(one != 0, kept[line * (classes * most) + position], 0))
            label = tirx.floordiv(position, most)
            scores[index] = tirx.Select(one != 0, values[at], exactly(0))
            labels[index] = tirx.Select(one != 0, label, -1)
            for i in range(4):
                coordinate = box[(line * boxes + source) * 4 + i]
                found[index * 4 + i] = tirx.Select(one != 0, coordinate, exactly(0))
            with when(tirx.all(one != 0, tirx.Not(is_one(line, rank + 1)))):
                number[line] = rank + 1
            with when(tirx.all(one == 0, rank == 0)):
                number[line] = 0

        each(spec, batch * wanted, write)

    return function(
        [
            ([batch * boxes * 4], BOX_DTYPE),
            ([batch * classes * most], "int32"),
            ([batch * best], BOX_DTYPE),
            ([batch * best], "int32"),
        ],
        [
            ([batch], "int32"),
            ([batch * wanted * 4], BOX_DTYPE),
            ([batch * wanted], BOX_DTYPE),
            ([batch * wanted], "int32"),
        ],
        body,
    )
