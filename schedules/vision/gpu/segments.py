"""Stable argsort of ragged segments (ICPP'19 §3.1.1, Figure 2).

Elements lie flat and are cut into tiles of one size, whatever the lengths of the segments. Each
tile sorts its parts of segments at once, by words that begin with the segment; then lists of tiles
are merged in passes that double their length. A pass moves only the segment that lies across the
interface of two lists; all others are in order already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, barrier, function, hold, register, when
from tvm_edge.schedules.vision.gpu.merge import (
    LAST,
    Lists,
    Read,
    Tile,
    choose_tile,
    merge_tile,
    pack_in_tile,
    position_bits,
    position_in_tile,
    sort_tile,
)
from tvm_edge.schedules.vision.keys import WORD, keys_of, pack, position_of, word_count

__all__ = ["argsort_segments"]


def argsort_segments(
    length: int,
    offsets: int,
    dtype: str,
    offset_dtype: str,
    spec: DeviceSpec,
    *,
    descending: bool,
    index_dtype: str,
) -> Kernel:
    """Build the kernels of the indices that put each segment of a flat tensor in order.

    Parameters
    ----------
    length : int
        Elements of all segments, at least 1.
    offsets : int
        Length of the second parameter: segment ``s`` is ``[offsets[s], offsets[s + 1])``.
    dtype, offset_dtype : str
    spec : DeviceSpec
    descending : bool
    index_dtype : {"int32", "int64"}

    Returns
    -------
    Kernel
        ``(data, offsets, indices, workspace...)``. Indices count from the start of the tensor;
        elements of no segment keep their own. Whatever the offsets are, nothing outside of
        the tensors is touched.
    """
    tile = choose_tile(spec, length)
    tiles = -(-length // tile.size)
    passes = (tiles - 1).bit_length()
    words = word_count(dtype)
    orders = [([length], "int32")] * (words - 1)
    flags, edges = ([(passes + 1) * tiles], "int32"), ([2 * tiles], "int32")
    workspace = [([length], WORD)] * 2 + [flags, edges]

    def body(data: Any, bounds: Any, indices: Any, *rest: Any) -> None:
        segments = _Segments(bounds, offsets, offset_dtype, length)
        space = rest[words - 1 :]

        def emit(at: tirx.Expr, position: tirx.Expr) -> None:
            indices[at] = position.astype(index_dtype)

        if words == 1:
            _sort_segments(
                tile, segments, keys_of(dtype, descending, data.__getitem__)[0], emit, space
            )
            return
        low, high = keys_of(dtype, descending, data.__getitem__)
        order = rest[0]

        def remember(at: tirx.Expr, position: tirx.Expr) -> None:
            order[at] = position

        _sort_segments(tile, segments, low, remember, space)
        _sort_segments(
            tile,
            segments,
            lambda at: high(order[at]),
            lambda at, position: emit(at, order[position]),
            space,
        )

    return function(
        [([length], dtype), ([offsets], offset_dtype)],
        [([length], index_dtype), *orders, *workspace],
        body,
    )


class _Segments:
    """Bounds of segments; invalid offsets still give ranges inside of the tensor."""

    def __init__(self, bounds: Any, count: int, dtype: str, length: int) -> None:
        self._bounds, self._dtype = bounds, dtype
        self.count, self.length = count, length

    def bound(self, index: tirx.Expr) -> tirx.Expr:
        """Return an offset, inside of the tensor."""
        offset = self._bounds[index]
        inside = tirx.min(
            tirx.max(offset, tirx.const(0, self._dtype)), tirx.const(self.length, self._dtype)
        )
        return inside.astype("int32")

    def find(self, at: tirx.Expr, low: tirx.Expr, high: tirx.Expr) -> tirx.Expr:
        """Return the last of the offsets ``[low, high)`` not after a position, or ``low - 1``."""
        first, last = register(low), register(high)
        with T.While(first[0] < last[0]):
            middle = hold((first[0] + last[0]) // 2)
            reached = hold(self.bound(middle) <= at)
            first[0] = tirx.Select(reached, middle + 1, first[0])
            last[0] = tirx.Select(reached, last[0], middle)
        return hold(first[0] - 1)

    def start(self, segment: tirx.Expr) -> tirx.Expr:
        """Return the first position of a segment; 0 for the elements before all segments."""
        return tirx.if_then_else(segment >= 0, self.bound(tirx.max(segment, 0)), 0)

    def stop(self, segment: tirx.Expr) -> tirx.Expr:
        """Return the first position after a segment."""
        following = segment + 1
        return tirx.if_then_else(
            following < self.count, self.bound(tirx.min(following, self.count - 1)), self.length
        )

    def is_real(self, segment: tirx.Expr) -> tirx.Expr:
        """Return whether this is a segment, not the elements before or after all of them."""
        return tirx.all(segment >= 0, segment + 1 < self.count)


def _find_both(
    tile: Tile, item: tirx.Expr, segments: _Segments, first: tirx.Expr, last: tirx.Expr
) -> tuple[tirx.Expr, tirx.Expr]:
    """Find the segments of two positions; in a shared tile two work-items search in parallel."""
    none, count = tirx.IntImm("int32", 0), tirx.IntImm("int32", segments.count)
    if not tile.shared:
        lowest = segments.find(first, none, count)
        return lowest, segments.find(last, lowest + 1, count)
    found = T.buffer_proxy(T.decl_buffer([2], "int32", scope="shared"))
    with when(item < 2):
        found[item] = segments.find(hold(tirx.Select(item == 0, first, last)), none, count)
    barrier()
    return hold(found[0]), hold(found[1])


def _sort_segments(
    tile: Tile,
    segments: _Segments,
    key: Read,
    emit: Callable[[tirx.Expr, tirx.Expr], None],
    space: Any,
) -> None:
    """Sort the segments' parts in each tile, merge segments across interfaces, emit."""
    front, back, moved, edges = space
    length = segments.length
    tiles = -(-length // tile.size)

    def sort_parts(index: tirx.Expr, item: tirx.Expr) -> None:
        first = hold(index * tile.size)
        last = hold(tirx.min(first + tile.size, length) - 1)
        # The segments of the tile's first and last element: all others lie between them.
        lowest, highest = _find_both(tile, item, segments, first, last)
        with when(item == 0):
            moved[index] = 0
            # A tile begins where two lists meet once: this segment will have to be merged there.
            edges[2 * index] = segments.start(lowest)
            edges[2 * index + 1] = segments.stop(lowest)

        def load(slot: tirx.Expr) -> tirx.Expr:
            at = hold(tirx.min(first + slot, length - 1))
            segment = segments.find(at, lowest + 1, highest + 1)
            start = hold(tirx.max(segments.start(segment) - first, 0))
            # Outside of all segments keys are equal: the elements stay where they are.
            word = tirx.if_then_else(segments.is_real(segment), key(at), tirx.const(0, "uint32"))
            packed = pack_in_tile(tile, start, word, slot)
            return tirx.if_then_else(first + slot < length, packed, LAST)

        def store(slot: tirx.Expr, word: tirx.Expr) -> None:
            with when(first + slot < length):
                found = hold(word)
                low = (found >> tirx.const(position_bits(tile), WORD)).astype("uint32")
                front[first + slot] = pack(low, first + position_in_tile(tile, found))

        sort_tile(tile, item, load, store)

    tile.for_each(tiles, sort_parts)

    def current(flags: int) -> Read:
        """Return the element at a position: each tile knows in which buffer it is."""

        def read(at: tirx.Expr) -> tirx.Expr:
            other = moved[flags * tiles + tirx.floordiv(at, tile.size)] != 0
            return tirx.if_then_else(other, back[at], front[at])

        return read

    width, step = tile.size, 0
    while width < length:

        def merge(index: tirx.Expr, item: tirx.Expr, width: int = width, step: int = step) -> None:
            first = hold(index * tile.size)
            last = hold(tirx.min(first + tile.size, length))
            start = hold(tirx.floordiv(first, 2 * width) * (2 * width))
            middle = hold(tirx.min(start + width, length))
            # The segment across the interface: none, where a segment starts at it.
            edge = hold(tirx.min(tirx.floordiv(start + width, tile.size), tiles - 1))
            begin = hold(tirx.max(edges[2 * edge], start))
            end = hold(
                tirx.if_then_else(
                    tirx.all(begin < middle, middle < length),
                    tirx.min(edges[2 * edge + 1], start + 2 * width),
                    begin,
                )
            )
            inner = hold(tirx.min(middle, end))
            low = hold(tirx.min(tirx.max(first, begin), end))
            high = hold(tirx.min(tirx.max(last, begin), end))
            active = hold(low < high)
            there = hold(moved[step * tiles + index])
            read = current(step)

            def write(at: tirx.Expr, word: tirx.Expr) -> None:
                value = hold(word)
                with when(there == 0):
                    back[at] = value
                with when(there != 0):
                    front[at] = value

            merge_tile(tile, item, Lists(begin, inner, end, low, high), read, write)
            with tile.slots(item) as (_, slot):
                at = hold(first + slot)
                with when(tirx.all(active, at < last, tirx.any(at < low, at >= high))):
                    write(at, read(at))
            with when(item == 0):
                moved[(step + 1) * tiles + index] = tirx.Select(active, 1 - there, there)

        tile.for_each(tiles, merge)
        width, step = 2 * width, step + 1

    def finish(index: tirx.Expr, item: tirx.Expr) -> None:
        read = current(step)
        with tile.slots(item) as (_, slot):
            at = hold(index * tile.size + slot)
            with when(at < length):
                emit(at, hold(position_of(read(at))))

    tile.for_each(tiles, finish)
