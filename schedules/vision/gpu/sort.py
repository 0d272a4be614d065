"""Stable argsort of rows, of ragged segments, and the first of each row (ICPP'19 §3.1.1, Figure 2).

Elements lie flat and are cut into tiles of one size, whatever the lengths of the segments. Each
tile is sorted by itself; then lists of tiles are merged in passes that double their length, each
tile of the result by a group of its own. A tile with several short rows or segments sorts
them at once, by words that begin with the segment. Where segments are ragged, a pass moves only
the one that lies across the interface of two lists; all others are in order already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.vision.emit import Kernel, barrier, function, hold, register, when
from tvm_edge.schedules.vision.gpu.merge import (
    LAST,
    Lists,
    Read,
    Tile,
    choose_tile,
    merge_tile,
    sort_tile,
)
from tvm_edge.schedules.vision.keys import WORD, keys_of, pack, position_of, word_count

__all__ = ["argsort_rows", "argsort_segments", "top_k_rows"]

Emit = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], None]
"""Take the index of an element: its row, its rank in the row, its position in the row."""


def argsort_rows(
    rows: int,
    length: int,
    dtype: str,
    spec: DeviceSpec,
    *,
    descending: bool,
    index_dtype: str,
    values: bool = False,
) -> Kernel:
    """Indices that put each row in order.

    Parameters
    ----------
    rows, length : int
        At least 1.
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
        ``(data, indices, [values,] workspace...)``, all flat.
    """
    return _ordered_rows(rows, length, length, dtype, spec, descending, index_dtype, values)


def top_k_rows(
    rows: int,
    length: int,
    k: int,
    dtype: str,
    spec: DeviceSpec,
    *,
    largest: bool,
    index_dtype: str,
) -> Kernel:
    """The first `k` of each row in order, and where they were.

    A small `k` is selected: every tile keeps its first `k`, and what is kept fills fewer tiles.

    Returns
    -------
    Kernel
        ``(data, indices, values, workspace...)``, all flat.
    """
    return _ordered_rows(rows, length, k, dtype, spec, largest, index_dtype, True)


def _ordered_rows(
    rows: int,
    length: int,
    k: int,
    dtype: str,
    spec: DeviceSpec,
    descending: bool,
    index_dtype: str,
    values: bool,
) -> Kernel:
    total = rows * length
    tile = choose_tile(spec, length, rows)
    outputs = [([rows * k], index_dtype)] + [([rows * k], dtype)] * values
    words = word_count(dtype)
    # Several words: by the last one first, and as every sort is stable, by the first one at last.
    orders = [([total], "int32")] * (words - 1)
    buffers = [([total], WORD)] * 2

    def body(data: Any, *out: Any) -> None:
        taken, last = out[len(outputs) :], len(outputs) + words - 1
        space = out[last:]

        def emit(row: tirx.Expr, rank: tirx.Expr, position: tirx.Expr) -> None:
            with when(rank < k):
                out[0][row * k + rank] = position.astype(index_dtype)
                if values:
                    out[1][row * k + rank] = data[row * length + position]

        if words == 1:
            key = keys_of(dtype, descending, data.__getitem__)[0]
            _sort_rows(tile, rows, length, k, key, emit, space)
            return
        low, high = keys_of(dtype, descending, data.__getitem__)
        order = taken[0]

        def remember(row: tirx.Expr, rank: tirx.Expr, position: tirx.Expr) -> None:
            order[row * length + rank] = position

        def permuted(row: tirx.Expr, position: tirx.Expr) -> tirx.Expr:
            return order[row * length + position]

        _sort_rows(tile, rows, length, length, low, remember, space)
        _sort_rows(
            tile,
            rows,
            length,
            k,
            lambda at: high(at // length * length + order[at]),
            lambda row, rank, position: emit(row, rank, permuted(row, position)),
            space,
        )

    return function([([total], dtype)], [*outputs, *orders, *buffers], body)


def _bits(tile: Tile) -> int:
    """Bits of a position in a tile."""
    return (tile.size - 1).bit_length()


def _pack_in_tile(tile: Tile, segment: tirx.Expr, key: tirx.Expr, position: tirx.Expr) -> tirx.Expr:
    """A word that sorts by the segment first; segment and position are below the tile's size."""
    # Products, not shifts: TVM does not fold a shift of constants, such as that of a row which is
    # the same for all work-items, and hands its value to the kernel, which no driver takes.
    bits = _bits(tile)
    return (
        segment.astype(WORD) * tirx.const(1 << (32 + bits), WORD)
        + key.astype(WORD) * tirx.const(1 << bits, WORD)
        + position.astype(WORD)
    )


def _position_in_tile(tile: Tile, word: tirx.Expr) -> tirx.Expr:
    return (word & tirx.const((1 << _bits(tile)) - 1, WORD)).astype("int32")


# ------------------------------------------------------------------------------------------- rows


def _sort_rows(
    tile: Tile, rows: int, length: int, k: int, key: Read, emit: Emit, space: Any
) -> None:
    if length <= tile.size:
        _sort_short_rows(tile, rows, length, key, emit)
    elif 2 * k <= tile.size:
        _select_from_rows(tile, rows, length, k, key, emit, space)
    else:
        _sort_long_rows(tile, rows, length, key, emit, space)


def _sort_short_rows(tile: Tile, rows: int, length: int, key: Read, emit: Emit) -> None:
    """Rows of which a tile holds one or more."""
    held = tile.size // length

    def one(index: tirx.Expr, item: tirx.Expr) -> None:
        first = hold(index * held)

        def inside(slot: tirx.Expr) -> tirx.Expr:
            return tirx.all(slot < held * length, first * length + slot < rows * length)

        def load(slot: tirx.Expr) -> tirx.Expr:
            row = tirx.floordiv(slot, length)
            word = _pack_in_tile(tile, row, key(first * length + slot), tirx.floormod(slot, length))
            return tirx.if_then_else(inside(slot), word, LAST)

        def store(slot: tirx.Expr, word: tirx.Expr) -> None:
            with when(inside(slot)):
                row, rank = tirx.floordiv(slot, length), tirx.floormod(slot, length)
                emit(first + row, rank, hold(_position_in_tile(tile, word)))

        sort_tile(tile, item, load, store)

    tile.for_each(-(-rows // held), one)


def _load_tiles(tile: Tile, rows: int, length: int, word: Read, store: Callable[..., None]) -> None:
    """Sort the tiles of long rows; `store` takes row, tile in the row, slot and word."""
    each = -(-length // tile.size)

    def one(index: tirx.Expr, item: tirx.Expr) -> None:
        row = hold(tirx.floordiv(index, each))
        part = hold(tirx.floormod(index, each))

        def load(slot: tirx.Expr) -> tirx.Expr:
            at = part * tile.size + slot
            return tirx.if_then_else(at < length, word(row, at), LAST)

        sort_tile(tile, item, load, lambda slot, found: store(row, part, slot, found))

    tile.for_each(rows * each, one)


def _sort_long_rows(tile: Tile, rows: int, length: int, key: Read, emit: Emit, space: Any) -> None:
    """Rows of several tiles: sort each, then merge lists of tiles, twice as long each time."""

    def to_buffer(buffer: Any) -> Callable[..., None]:
        def store(row: tirx.Expr, part: tirx.Expr, slot: tirx.Expr, word: tirx.Expr) -> None:
            at = part * tile.size + slot
            with when(at < length):
                buffer[row * length + at] = word

        return store

    def packed(row: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        return pack(key(row * length + at), at)

    _load_tiles(tile, rows, length, packed, to_buffer(space[0]))
    source, target, width = space[0], space[1], tile.size
    while width < length:
        _merge_rows(
            tile, rows, length, width, source, None if 2 * width >= length else target, emit
        )
        source, target, width = target, source, 2 * width


def _merge_rows(
    tile: Tile, rows: int, length: int, width: int, source: Any, target: Any, emit: Emit
) -> None:
    """Merge pairs of lists of `width` elements; the last merger (no target) emits indices."""
    each = -(-length // tile.size)

    def one(index: tirx.Expr, item: tirx.Expr) -> None:
        row = hold(tirx.floordiv(index, each))
        first = hold(tirx.floormod(index, each) * tile.size)
        start = hold(tirx.floordiv(first, 2 * width) * (2 * width))
        lists = Lists(
            start,
            hold(tirx.min(start + width, length)),
            hold(tirx.min(start + 2 * width, length)),
            first,
            hold(tirx.min(first + tile.size, length)),
        )

        def store(at: tirx.Expr, word: tirx.Expr) -> None:
            if target is None:
                emit(row, at, hold(position_of(word)))
            else:
                target[row * length + at] = word

        merge_tile(tile, item, lists, lambda at: source[row * length + at], store)

    tile.for_each(rows * each, one)


def _select_from_rows(
    tile: Tile, rows: int, length: int, k: int, key: Read, emit: Emit, space: Any
) -> None:
    """The first `k` of each tile, then of tiles of those, until one is left."""

    def packed(row: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        return pack(key(row * length + at), at)

    word, left, source, target = packed, length, space[0], space[1]
    while left > tile.size:
        parts = -(-left // tile.size)

        def keep(
            row: tirx.Expr,
            part: tirx.Expr,
            slot: tirx.Expr,
            found: tirx.Expr,
            kept: Any = source,
            each: int = parts * k,
        ) -> None:
            with when(slot < k):
                kept[row * each + part * k + slot] = found

        _load_tiles(tile, rows, left, word, keep)

        def kept_word(
            row: tirx.Expr, at: tirx.Expr, kept: Any = source, each: int = parts * k
        ) -> tirx.Expr:
            return kept[row * each + at]

        word, left, source, target = kept_word, parts * k, target, source

    def last(row: tirx.Expr, _part: tirx.Expr, slot: tirx.Expr, found: tirx.Expr) -> None:
        with when(slot < k):
            emit(row, slot, hold(position_of(found)))

    _load_tiles(tile, rows, left, word, last)


# --------------------------------------------------------------------------------------- segments


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
    """Indices that put each segment of a flat tensor in order.

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
    """Where segments start and stop; offsets that make no sense still give ranges inside."""

    def __init__(self, bounds: Any, count: int, dtype: str, length: int) -> None:
        self._bounds, self._dtype = bounds, dtype
        self.count, self.length = count, length

    def bound(self, index: tirx.Expr) -> tirx.Expr:
        """An offset, inside of the tensor."""
        offset = self._bounds[index]
        inside = tirx.min(
            tirx.max(offset, tirx.const(0, self._dtype)), tirx.const(self.length, self._dtype)
        )
        return inside.astype("int32")

    def find(self, at: tirx.Expr, low: tirx.Expr, high: tirx.Expr) -> tirx.Expr:
        """The last of the offsets ``[low, high)`` that is not behind a position, or ``low - 1``."""
        first, last = register(low), register(high)
        with T.While(first[0] < last[0]):
            middle = hold((first[0] + last[0]) // 2)
            reached = hold(self.bound(middle) <= at)
            first[0] = tirx.Select(reached, middle + 1, first[0])
            last[0] = tirx.Select(reached, last[0], middle)
        return hold(first[0] - 1)

    def start(self, segment: tirx.Expr) -> tirx.Expr:
        """The first position of a segment; of what lies in front of all, 0."""
        return tirx.if_then_else(segment >= 0, self.bound(tirx.max(segment, 0)), 0)

    def stop(self, segment: tirx.Expr) -> tirx.Expr:
        """The first position behind a segment."""
        following = segment + 1
        return tirx.if_then_else(
            following < self.count, self.bound(tirx.min(following, self.count - 1)), self.length
        )

    def is_real(self, segment: tirx.Expr) -> tirx.Expr:
        """Whether this is a segment, not what lies in front of or behind all of them."""
        return tirx.all(segment >= 0, segment + 1 < self.count)


def _find_both(
    tile: Tile, item: tirx.Expr, segments: _Segments, first: tirx.Expr, last: tirx.Expr
) -> tuple[tirx.Expr, tirx.Expr]:
    """The segments of two positions; in a shared tile two work-items look at the same time."""
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
    """Sort the segments' parts in each tile, merge what lies across interfaces, emit."""
    front, back, moved, edges = space
    length = segments.length
    tiles = -(-length // tile.size)

    def sort_parts(index: tirx.Expr, item: tirx.Expr) -> None:
        first = hold(index * tile.size)
        last = hold(tirx.min(first + tile.size, length) - 1)
        # The segments of the tile's first and last element: those of all others lie between.
        lowest, highest = _find_both(tile, item, segments, first, last)
        with when(item == 0):
            moved[index] = 0
            # A tile begins where two lists meet once: this is what will have to be merged there.
            edges[2 * index] = segments.start(lowest)
            edges[2 * index + 1] = segments.stop(lowest)

        def load(slot: tirx.Expr) -> tirx.Expr:
            at = hold(tirx.min(first + slot, length - 1))
            segment = segments.find(at, lowest + 1, highest + 1)
            start = hold(tirx.max(segments.start(segment) - first, 0))
            # Outside of all segments keys are equal: the elements stay where they are.
            word = tirx.if_then_else(segments.is_real(segment), key(at), tirx.const(0, "uint32"))
            packed = _pack_in_tile(tile, start, word, slot)
            return tirx.if_then_else(first + slot < length, packed, LAST)

        def store(slot: tirx.Expr, word: tirx.Expr) -> None:
            with when(first + slot < length):
                found = hold(word)
                low = (found >> tirx.const(_bits(tile), WORD)).astype("uint32")
                front[first + slot] = pack(low, first + _position_in_tile(tile, found))

        sort_tile(tile, item, load, store)

    tile.for_each(tiles, sort_parts)

    def current(flags: int) -> Read:
        """The element at a position: each tile knows in which buffer it is."""

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
            # What lies across the interface: nothing, where a segment starts at it.
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
