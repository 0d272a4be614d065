"""Proposals of a region proposal network (Ren et al., Faster R-CNN, NeurIPS 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, Box, Candidates, Overlap, exactly, load_box
from tvm_edge.schedules.vision.keys import ordered_words
from tvm_edge.schedules.vision.nms import suppression

__all__ = ["base_anchors", "propose"]


def base_anchors(
    stride: int, scales: Sequence[float], ratios: Sequence[float]
) -> NDArray[np.float32]:
    """Return the anchors of the cell in the corner, as py-faster-rcnn makes them.

    Returns
    -------
    NDArray
        ``(len(ratios) * len(scales), 4)`` corners x1, y1, x2, y2, in pixels that belong to the box.
    """
    centre, area = (stride - 1) / 2, float(stride * stride)
    found = []
    for ratio in ratios:
        width = np.floor(np.sqrt(area / ratio) + 0.5)
        height = np.floor(width * ratio + 0.5)
        for scale in scales:
            half = np.array([width * scale - 1, height * scale - 1]) / 2
            found.append([*(centre - half), *(centre + half)])
    return np.array(found, np.float32)


def propose(
    batch: int,
    size: tuple[int, int],
    spec: DeviceSpec,
    *,
    scales: Sequence[float],
    ratios: Sequence[float],
    stride: int,
    considered: int,
    most: int,
    iou_threshold: float,
    min_size: float,
) -> Kernel:
    """Decode, clip and choose.

    Parameters
    ----------
    batch : int
    size : tuple of int
        Height and width of the maps.
    spec : DeviceSpec
    scales, ratios : sequence of float
        Of the anchors: A of them in each cell.
    stride : int
        Pixels of a cell.
    considered, most : int
        Regions before and after the suppression, at most.
    iou_threshold : float
    min_size : float
        Shorter sides, times the picture's scale, go to the end of the list.

    Returns
    -------
    Kernel
        ``(probabilities[batch, 2A, H, W], encodings[batch, 4A, H, W], pictures[batch, 3],
        regions[batch * most, 5], counts[batch], decoded, kept, workspace...)``, all flat.
    """
    height, width = size
    anchors = base_anchors(stride, scales, ratios)
    count, cells = len(anchors), height * width
    length = count * cells
    plan = suppression(spec)(
        batch, length, most, Overlap(iou_threshold), spec, considered=considered
    )

    def const(number: float) -> tirx.Expr:
        return tirx.const(float(number), BOX_DTYPE)

    def anchor(which: tirx.Expr, column: int) -> tirx.Expr:
        """Return a number of an anchor, chosen from constants: there are few."""
        value = exactly(anchors[-1, column])
        for i in range(count - 2, -1, -1):
            value = tirx.Select(which == i, exactly(anchors[i, column]), value)
        return hold(value)

    def body(
        probabilities: Any,
        encodings: Any,
        pictures: Any,
        regions: Any,
        counts: Any,
        decoded: Any,
        kept: Any,
        *space: Any,
    ) -> None:
        def decode(index: tirx.Expr) -> None:
            """Decode a region, in the order of cells, and of anchors within a cell."""
            picture, at = hold(tirx.floordiv(index, length)), hold(tirx.floormod(index, length))
            cell, which = hold(tirx.floordiv(at, count)), hold(tirx.floormod(at, count))
            row, column = hold(tirx.floordiv(cell, width)), hold(tirx.floormod(cell, width))
            info = [hold(pictures[picture * 3 + i]) for i in range(3)]
            corners: dict[int, tirx.Expr] = {}
            for axis, offset in ((0, column), (1, row)):
                low = anchor(which, axis) + offset.astype(BOX_DTYPE) * const(stride)
                extent = hold(anchor(which, axis + 2) - anchor(which, axis) + const(1))
                code = [
                    encodings[((picture * count + which) * 4 + axis + i) * cells + cell]
                    for i in (0, 2)
                ]
                centre = hold(code[0] * extent + low + const(0.5) * (extent - const(1)))
                half = hold(const(0.5) * (tirx.exp(code[1]) * extent - const(1)))
                last = hold(info[1 - axis] - const(1))
                for end, value in ((axis, centre - half), (axis + 2, centre + half)):
                    corners[end] = hold(tirx.max(tirx.min(value, last), const(0)))
            shortest = hold(const(min_size) * info[2])
            sides = [hold(corners[i + 2] - corners[i] + const(1)) for i in (0, 1)]
            small = hold(tirx.any(sides[0] < shortest, sides[1] < shortest).astype("int32"))
            inside = tirx.all(
                row.astype(BOX_DTYPE) < tirx.floor(info[0] / const(stride)),
                column.astype(BOX_DTYPE) < tirx.floor(info[1] / const(stride)),
            )
            score = probabilities[((picture * 2 + 1) * count + which) * cells + cell]
            for i in range(4):
                grown = const(0.5) * shortest * const(-1 if i < 2 else 1)
                decoded[index * 5 + i] = corners[i] + tirx.Select(small != 0, grown, const(0))
            decoded[index * 5 + 4] = tirx.if_then_else(
                tirx.all(small == 0, inside), score, const(-1)
            )

        each(spec, batch * length, decode)

        def key(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return ordered_words(decoded[(line * length + at) * 5 + 4], BOX_DTYPE, True)[0]

        def load(line: tirx.Expr, at: tirx.Expr) -> Box:
            first = hold((line * length + at) * 5)
            # The last pixel belongs to the box.
            return load_box(lambda i: decoded[first + i] + const(i // 2), center=False)

        plan.write(Candidates(None, key, load), kept, counts, space)

        def write(index: tirx.Expr) -> None:
            line, rank = hold(tirx.floordiv(index, most)), hold(tirx.floormod(index, most))
            regions[index * 5] = line.astype(BOX_DTYPE)
            # Too few: from the first one on again.
            source = hold(kept[line * most + tirx.floormod(rank, tirx.max(counts[line], 1))])
            for i in range(4):
                regions[index * 5 + 1 + i] = decoded[(line * length + source) * 5 + i]

        each(spec, batch * most, write)

    return function(
        [
            ([batch * 2 * length], BOX_DTYPE),
            ([batch * 4 * length], BOX_DTYPE),
            ([batch * 3], BOX_DTYPE),
        ],
        [
            ([batch * most * 5], BOX_DTYPE),
            ([batch], "int32"),
            ([batch * length * 5], BOX_DTYPE),
            ([batch * most], "int32"),
            *plan.workspace,
        ],
        body,
    )
