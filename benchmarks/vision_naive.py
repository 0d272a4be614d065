"""Vision operators as GPUs had them before ICPP'19: one work-item for each segment, line or class.

What :mod:`benchmarks.vision` puts beside Table 4's "before". The algorithms are good ones for a
single thread, a merge sort and a greedy sweep that stops at the first box that suppresses; only the
distribution over work-items is naive. Keys and scores without NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold, register, when
from tvm_edge.schedules.vision.boxes import Box, Overlap, load_box

__all__ = ["argsort_segments", "scan_lines", "select_boxes"]

_ZERO = tirx.IntImm("int32", 0)


def argsort_segments(elements: int, segments: int, spec: DeviceSpec) -> Kernel:
    """A work-item for each segment: positions of float32 elements, ascending and stable.

    Returns
    -------
    Kernel
        ``(data[elements], offsets[segments + 1], order[elements], workspace[elements])``
    """

    def body(data: Any, offsets: Any, order: Any, merged: Any) -> None:
        def sort(segment: tirx.Expr) -> None:
            start = hold(offsets[segment])
            count = hold(offsets[segment + 1] - start)
            with T.serial(0, count) as j:
                order[start + j] = start + j
            _merge_sort(order, merged, start, count, lambda a, b: data[a] < data[b])

        each(spec, segments, sort)

    return function(
        [((elements,), "float32"), ((segments + 1,), "int32")],
        [((elements,), "int32"), ((elements,), "int32")],
        body,
    )


def scan_lines(before: int, length: int, after: int, spec: DeviceSpec) -> Kernel:
    """A work-item for each line: sums so far along the middle axis of float32 elements.

    Returns
    -------
    Kernel
        ``(data[before * length * after], sums[before * length * after])``
    """

    def body(data: Any, sums: Any) -> None:
        def scan(line: tirx.Expr) -> None:
            start = hold(line // after * (length * after) + line % after)
            total = register(tirx.const(0, "float32"))
            with T.serial(0, length) as j:
                total[0] = total[0] + data[start + j * after]
                sums[start + j * after] = total[0]

        each(spec, before * after, scan)

    elements = before * length * after
    return function([((elements,), "float32")], [((elements,), "float32")], body)


def select_boxes(
    batch: int,
    classes: int,
    boxes: int,
    spec: DeviceSpec,
    *,
    max_selected: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> Kernel:
    """A work-item for each class of each picture: sort, then sweep.

    Parameters and parameters of the kernel are those of
    :func:`tvm_edge.schedules.vision.nms.select_boxes`, so that it can stand in its place.
    """
    overlap, lists = Overlap(iou_threshold), batch * classes

    def body(box: Any, score: Any, picked: Any, counts: Any, order: Any, merged: Any) -> None:
        def load(line: tirx.Expr, at: tirx.Expr) -> Box:
            first = hold((line // classes * boxes + at) * 4)
            return load_box(lambda i: box[first + i], center=center_point_box)

        def select(line: tirx.Expr) -> None:
            start = hold(line * boxes)
            found = register(_ZERO)
            with T.serial(0, boxes) as j:
                takes_part = (
                    tirx.const(True, "bool")
                    if score_threshold is None
                    else score[start + j] > tirx.const(score_threshold, "float32")
                )
                with when(takes_part):
                    order[start + found[0]] = j
                    found[0] = found[0] + 1
            count = hold(found[0])
            _merge_sort(
                order, merged, start, count, lambda a, b: score[start + a] > score[start + b]
            )
            kept, at = register(_ZERO), register(_ZERO)
            with T.While(tirx.all(at[0] < count, kept[0] < max_selected)):
                candidate = hold(order[start + at[0]])
                own = load(line, candidate)
                other = register(_ZERO)
                with T.While(other[0] < kept[0]):
                    better = load(line, picked[line * max_selected + other[0]])
                    goes = register(_ZERO)
                    with when(overlap.might(own, better)):
                        exact = overlap.by_residual(own, better)
                        goes[0] = exact.astype("int32")
                    # Past the end, which ends the loop and is remembered.
                    other[0] = tirx.Select(goes[0] == 1, boxes + 1, other[0] + 1)
                with when(other[0] <= boxes):
                    picked[line * max_selected + kept[0]] = candidate
                    kept[0] = kept[0] + 1
                at[0] = at[0] + 1
            counts[line] = kept[0]

        each(spec, lists, select)

    return function(
        [((batch * boxes * 4,), "float32"), ((lists * boxes,), "float32")],
        [
            ((lists * max_selected,), "int32"),
            ((lists,), "int32"),
            ((lists * boxes,), "int32"),
            ((lists * boxes,), "int32"),
        ],
        body,
    )


def _merge_sort(
    order: Any,
    merged: Any,
    start: tirx.Expr,
    count: tirx.Expr,
    before: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
) -> None:
    """Bottom-up, of ``order[start:start + count]``; the left one first where neither is before."""
    width = register(tirx.const(1, "int32"))
    with T.While(width[0] < count):
        run = register(_ZERO)
        with T.While(run[0] < count):
            middle = hold(tirx.min(run[0] + width[0], count))
            stop = hold(tirx.min(run[0] + 2 * width[0], count))
            left, right, to = register(run[0]), register(middle), register(run[0])
            with T.While(to[0] < stop):
                take = register(tirx.Select(left[0] < middle, 0, 1))  # from the right
                with when(tirx.all(left[0] < middle, right[0] < stop)):
                    later = before(order[start + right[0]], order[start + left[0]])
                    take[0] = tirx.Select(later, 1, 0)
                taken = hold(tirx.Select(take[0] == 1, right[0], left[0]))
                merged[start + to[0]] = order[start + taken]
                left[0] = left[0] + 1 - take[0]
                right[0] = right[0] + take[0]
                to[0] = to[0] + 1
            run[0] = stop
        with T.serial(0, count) as j:
            order[start + j] = merged[start + j]
        width[0] = width[0] * 2
