"""Stable argsort of rows and of ragged segments on a CPU.

Many rows or segments are sorted on one core each. One that is longer than a core's share is sorted
in one piece for each core. All cores merge the pieces, so that the latency depends on the total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, function, register, spread, when
from tvm_edge.schedules.vision.cpu.radix import Read, merge, sort_keys
from tvm_edge.schedules.vision.keys import WORD, keys_of, position_of

__all__ = ["argsort_rows", "argsort_segments"]

# Elements below which merging pieces costs more than sorting them in parallel gains.
_MIN_TO_SHARE = 1 << 14
# Ranges of segments for each core: more of them balance the load.
_RANGES_PER_CORE = 4

Store = Callable[[tirx.Expr, tirx.Expr], None]
"""Store a rank, and the position of the element that has it."""


def argsort_rows(
    dtype: str, spec: DeviceSpec, *, descending: bool, index_dtype: str, values: bool
) -> Kernel:
    """Build the kernel of the indices that put each row in order.

    Parameters
    ----------
    dtype : str
        Of the elements; see :data:`~tvm_edge.schedules.vision.keys.SORTABLE`.
    spec : DeviceSpec
    descending : bool
    index_dtype : {"int32", "int64"}
    values : bool
        Whether to return the elements in order too.

    Returns
    -------
    Kernel
        ``(data, indices, [values,] front, back)`` for any number of rows of any length; the last
        two are flat workspace.
    """
    rows, length = tirx.Var("rows", "int64"), tirx.Var("length", "int64")

    def body(data: Any, *out: Any) -> None:
        front, back = out[-2:]

        def sort_row(row: tirx.Expr, sort: Callable[..., None]) -> None:
            def store(rank: tirx.Expr, position: tirx.Expr) -> None:
                out[0][row, rank] = position.astype(index_dtype)
                if values:
                    out[1][row, rank] = data[row, position]

            keys = keys_of(dtype, descending, lambda at: data[row, at])
            sort(front, back, T.Bind(row * length), length, keys, store)

        def each_alone() -> None:
            spread(rows, rows * length, lambda row: sort_row(row, _sort_alone))

        if not _can_share(dtype, spec):
            each_alone()
            return
        with T.If(tirx.all(rows < spec.cores, length >= _MIN_TO_SHARE)):
            with T.Then(), T.serial(0, rows) as row:
                sort_row(row, _sharing(spec))
            with T.Else():
                each_alone()

    shape = [rows, length]
    outputs = [(shape, index_dtype)] + [(shape, dtype)] * values
    return function([(shape, dtype)], [*outputs, *[([rows * length], WORD)] * 2], body)


def argsort_segments(
    dtype: str, offset_dtype: str, spec: DeviceSpec, *, descending: bool, index_dtype: str
) -> Kernel:
    """Build the kernel of the indices that put each segment of a flat tensor in order.

    Returns
    -------
    Kernel
        ``(data, offsets, indices, front, back)``, see
        :func:`~tvm_edge.schedules.vision.gpu.argsort_segments`.
    """
    length, count = tirx.Var("length", "int64"), tirx.Var("count", "int64")
    ranges = _RANGES_PER_CORE * max(spec.cores, 1)
    can_share = _can_share(dtype, spec)

    def body(data: Any, offsets: Any, indices: Any, front: Any, back: Any) -> None:
        width = T.Bind(tirx.floordiv(length + (ranges - 1), ranges))
        # One segment at most that is longer than two ranges starts in a range.
        long = T.buffer_proxy(T.decl_buffer([ranges], "int64"))

        def bound(index: tirx.Expr) -> tirx.Expr:
            inside = tirx.min(tirx.max(offsets[index].astype("int64"), 0), length)
            return T.Bind(inside)

        def sort_segment(start: tirx.Expr, stop: tirx.Expr, sort: Callable[..., None]) -> None:
            def store(rank: tirx.Expr, position: tirx.Expr) -> None:
                indices[start + rank] = (start + position).astype(index_dtype)

            keys = keys_of(dtype, descending, lambda at: data[start + at])
            sort(front, back, start, T.Bind(stop - start), keys, store)

        # Elements of no segment keep their place.
        with T.parallel(0, length) as at:
            indices[at] = at.astype(index_dtype)
        # Overlapping segments would have two cores sort in one place: they stay as they are.
        ordered = register(tirx.IntImm("int32", 1))
        with T.serial(0, count - 1) as i:
            ordered[0] = ordered[0] & (offsets[i] <= offsets[i + 1]).astype("int32")
        with when(ordered[0] != 0):
            with T.parallel(0, ranges) as part:
                long[part] = tirx.const(-1, "int64")
                segment = register(_lower_bound(bound, count, part * width))

                def is_mine(segment: Any = segment, part: tirx.Expr = part) -> tirx.Expr:
                    """Return whether a segment starts in this range."""
                    starts = offsets[segment[0]].astype("int64")
                    mine = starts < tirx.min((part + 1) * width, length)
                    inside = segment[0] + 1 < count
                    return tirx.if_then_else(inside, mine, tirx.const(False, "bool"))

                with T.While(is_mine()):
                    start, stop = bound(segment[0]), bound(segment[0] + 1)
                    is_long = tirx.all(stop - start > 2 * width, stop - start >= _MIN_TO_SHARE)
                    if can_share:
                        with T.If(is_long):
                            with T.Then():
                                long[part] = segment[0]
                            with T.Else(), when(start < stop):
                                sort_segment(start, stop, _sort_alone)
                    else:
                        with when(start < stop):
                            sort_segment(start, stop, _sort_alone)
                    segment[0] = segment[0] + 1
            if can_share:
                with T.serial(0, ranges) as part, when(long[part] >= 0):
                    start, stop = bound(long[part]), bound(long[part] + 1)
                    sort_segment(start, stop, _sharing(spec))

    return function(
        [([length], dtype), ([count], offset_dtype)],
        [([length], index_dtype), *[([length], WORD)] * 2],
        body,
    )


def _lower_bound(
    bound: Callable[[tirx.Expr], tirx.Expr], count: tirx.Expr, least: tirx.Expr
) -> tirx.Expr:
    """Return the first offset that is not below `least`."""
    low, high = register(tirx.const(0, "int64")), register(count)
    with T.While(low[0] < high[0]):
        middle = T.Bind(tirx.floordiv(low[0] + high[0], 2))
        below = T.Bind(bound(middle) < least)
        low[0] = tirx.Select(below, middle + 1, low[0])
        high[0] = tirx.Select(below, high[0], middle)
    return T.Bind(low[0])


def _can_share(dtype: str, spec: DeviceSpec) -> bool:
    """Return whether cores may merge pieces: words hold whole keys of 32 bits only."""
    return spec.cores > 1 and len(keys_of(dtype, False, lambda at: at)) == 1


def _sort_alone(
    front: Any, back: Any, base: tirx.Expr, count: tirx.Expr, keys: Sequence[Read], store: Store
) -> None:
    """Sort on one core."""
    sort_keys(front, back, base, count, keys)
    with T.serial(0, count) as rank:
        store(rank, T.Bind(position_of(front[base + rank])))


def _sharing(spec: DeviceSpec) -> Callable[..., None]:
    """Return :func:`_sort_alone` for all cores."""
    cores = spec.cores

    def sort(
        front: Any,
        back: Any,
        base: tirx.Expr,
        count: tirx.Expr,
        keys: Sequence[Read],
        store: Store,
    ) -> None:
        width = T.Bind(tirx.floordiv(count + (cores - 1), cores))
        with T.parallel(0, cores) as piece:
            first = T.Bind(tirx.min(piece * width, count))
            own = T.Bind(tirx.min(width, count - first))
            sort_keys(front, back, T.Bind(base + first), own, keys, first)
        source, target, pieces = front, back, cores
        while pieces > 1:
            pairs = (pieces + 1) // 2
            # Every core merges a part of each pair.
            with T.parallel(0, cores) as share, T.serial(0, pairs) as pair:
                left = T.Bind(tirx.min(2 * pair * width, count))
                right = T.Bind(tirx.min(left + width, count))
                stop = T.Bind(tirx.min(left + 2 * width, count))
                part = [tirx.floordiv((stop - left) * (share + s), cores) for s in (0, 1)]
                ends = [T.Bind(base + end) for end in (left, right, stop)]

                def keep(
                    at: tirx.Expr,
                    word: tirx.Expr,
                    left: tirx.Expr = left,
                    target: Any = target if pairs > 1 else None,
                ) -> None:
                    if target is None:
                        store(left + at, T.Bind(position_of(word)))
                    else:
                        target[base + left + at] = word

                merge(source, *ends, T.Bind(part[0]), T.Bind(part[1]), keep)
            source, target, pieces, width = target, source, pairs, T.Bind(2 * width)

    return sort
