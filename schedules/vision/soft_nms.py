"""Soft suppression (Bodla et al., Soft-NMS, ICCV 2017): scores decay where boxes overlap.

Every choice depends on all before it, so one work-group or one core processes a list. The
work-group looks for the best score. Then each work-item lets those of its own boxes decay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import (
    Kernel,
    barrier,
    each,
    function,
    hold,
    launch,
    register,
    when,
)
from tvm_edge.schedules.gpu.launch import power_of_two
from tvm_edge.schedules.vision.box_nms import Rows
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, exactly, ratio
from tvm_edge.schedules.vision.keys import WORD, ordered_words, pack, position_of

__all__ = ["soft_nms"]

_ITEMS = 256
_GONE = -np.inf


def soft_nms(
    rows: Rows,
    spec: DeviceSpec,
    *,
    iou_threshold: float,
    sigma: float,
    by_class: bool,
) -> Kernel:
    """Build the kernel of rows in the order they are chosen, with their scores at that time.

    The best of the scores is chosen; then those of all boxes that overlap with it by `iou` are
    multiplied by ``exp(-iou**2 / (2 * sigma))``, or are out where that is above the threshold; and
    so on while a score is above the rows' threshold.

    Returns
    -------
    Kernel
        ``(data, result, counts[batch], workspace...)``, all flat, as
        :func:`~tvm_edge.schedules.vision.box_nms.box_nms`.
    """
    batch, length, width = rows.batch, rows.length, rows.width
    items = min(power_of_two(spec.max_work_group_size), _ITEMS) if spec.launches_grids else 1

    def body(data: Any, result: Any, counts: Any, scores: Any) -> None:
        candidates = rows.candidates(data, by_class)

        def clear(index: tirx.Expr) -> None:
            result[index] = tirx.const(-1, rows.dtype)

        each(spec, batch * length * width, clear)
        with _groups(batch, items) as (line, item):
            first = line * length
            mine = -(-length // items)

            def key(at: tirx.Expr) -> tirx.Expr:
                return pack(ordered_words(scores[first + at], BOX_DTYPE, True)[0], at)

            group = _Group(items, item)
            with T.serial(0, mine) as step:
                at = hold(step * items + item)
                with when(at < length):
                    score = data[(first + at) * width + rows.score].astype(BOX_DTYPE)
                    part = candidates.takes_part(line, at)  # type: ignore[misc]
                    scores[first + at] = tirx.if_then_else(part, score, exactly(_GONE))
            count = register(tirx.IntImm("int32", 0))
            with T.serial(0, length) as _:
                best = register(tirx.const((1 << 64) - 1, WORD))
                with T.serial(0, mine) as step:
                    at = hold(step * items + item)
                    with when(at < length):
                        best[0] = tirx.min(best[0], key(at))
                chosen = hold(position_of(group.least(best)))
                # Global memory is not fenced: the work-item that wrote the score shares it.
                owner = tirx.floormod(chosen, items) == item
                score = group.told(owner, scores[first + chosen])
                some = hold((score > exactly(rows.threshold)).astype("int32"))
                with when(some != 0):
                    box = candidates.box(line, chosen)
                    with when(item == 0):
                        target = hold((first + count[0]) * width)
                        with T.serial(0, width) as column:
                            result[target + column] = data[(first + chosen) * width + column]
                        result[target + rows.score] = score.astype(rows.dtype)
                    count[0] = count[0] + 1
                    with T.serial(0, mine) as step:
                        at = hold(step * items + item)
                        with when(at < length), when(scores[first + at] > exactly(_GONE)):
                            iou = hold(ratio(box, candidates.box(line, at)))
                            if candidates.group is not None:
                                same = candidates.group(line, at) == candidates.group(line, chosen)
                                iou = hold(tirx.Select(same, iou, exactly(0)))
                            decay = tirx.exp(iou * iou * exactly(-0.5 / sigma))
                            out = tirx.any(at == chosen, iou > exactly(iou_threshold))
                            scores[first + at] = tirx.if_then_else(
                                out, exactly(_GONE), scores[first + at] * decay
                            )
            with when(item == 0):
                counts[line] = count[0]

    size = batch * length
    return function(
        [([size * width], rows.dtype)],
        [([size * width], rows.dtype), ([batch], "int32"), ([size], BOX_DTYPE)],
        body,
    )


@contextmanager
def _groups(count: int, items: int) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
    """Yield a work-group for each list, or a core where a work-group would have one work-item."""
    if items > 1:
        with launch(count, items) as (group, item):
            yield group, item
        return
    with T.parallel(0, count) as group:
        yield group, tirx.IntImm("int32", 0)


class _Group:
    """Joint operations of the work-items of a work-group; nothing where there is one."""

    def __init__(self, items: int, item: tirx.Expr) -> None:
        self._items, self._item = items, item
        if items > 1:
            self._words = T.buffer_proxy(T.decl_buffer([items], WORD, scope="shared"))
            self._told = T.buffer_proxy(T.decl_buffer([1], BOX_DTYPE, scope="shared"))

    def told(self, teller: tirx.Expr, value: tirx.Expr) -> tirx.Expr:
        """Return the value of one work-item to all."""
        if self._items == 1:
            return T.Bind(value)
        with when(teller):
            self._told[0] = value
        barrier()
        return hold(self._told[0])

    def least(self, word: Any) -> tirx.Expr:
        """Return the least of one word of each work-item."""
        if self._items == 1:
            return T.Bind(word[0])
        self._words[self._item] = word[0]
        barrier()
        half = self._items // 2
        while half:
            with when(self._item < half):
                other = self._words[self._item + half]
                self._words[self._item] = tirx.min(self._words[self._item], other)
            barrier()
            half //= 2
        return hold(self._words[0])
