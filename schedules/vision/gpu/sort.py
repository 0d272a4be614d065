"""Stable argsort of rows (ICPP'19 §3.1.1, Figure 2).

Rows are cut into tiles of one size. Each tile is sorted by itself. Then passes merge lists of tiles
and double their length, each tile of the result by its own work-group. A tile that holds several
short rows sorts them at once, by words that begin with the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, function, hold, when
from tvm_edge.schedules.vision.gpu.merge import (
    LAST,
    Lists,
    Read,
    Tile,
    choose_tile,
    merge_tile,
    pack_in_tile,
    position_in_tile,
    sort_tile,
)
from tvm_edge.schedules.vision.keys import WORD, keys_of, pack, position_of, word_count

__all__ = ["Emit", "argsort_rows", "ordered_rows", "sort_long_rows", "sort_tiles", "sort_words"]

Emit = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], None]
"""Store the index of an element, given its row, its rank in the row, its position in the row."""

Word = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
"""Return the element to sort of a row at a position."""

Count = Callable[[tirx.Expr], tirx.Expr]
"""Return the number of elements of a row."""

LongRows = Callable[[Tile, int, int, Read, Emit, Any], None]
"""Put rows of several tiles in order: tile, rows, length, keys, storing callback, workspace."""


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
    """Build the kernels of the indices that put each row in order.

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
    return ordered_rows(
        rows, length, length, dtype, spec, descending, index_dtype, values, sort_long_rows
    )


def ordered_rows(
    rows: int,
    length: int,
    k: int,
    dtype: str,
    spec: DeviceSpec,
    descending: bool,
    index_dtype: str,
    values: bool,
    finish: LongRows,
) -> Kernel:
    """Order the first `k` elements of each row; `finish` orders long rows."""
    total = rows * length
    tile = choose_tile(spec, length, rows)
    outputs = [([rows * k], index_dtype)] + [([rows * k], dtype)] * values
    words = word_count(dtype)
    # Several words: sorted by the last one first, and by the first one last, as sorts are stable.
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
            _sort_rows(tile, rows, length, key, emit, space, finish)
            return
        low, high = keys_of(dtype, descending, data.__getitem__)
        order = taken[0]

        def remember(row: tirx.Expr, rank: tirx.Expr, position: tirx.Expr) -> None:
            order[row * length + rank] = position

        def permuted(row: tirx.Expr, position: tirx.Expr) -> tirx.Expr:
            return order[row * length + position]

        _sort_rows(tile, rows, length, low, remember, space, sort_long_rows)
        _sort_rows(
            tile,
            rows,
            length,
            lambda at: high(at // length * length + order[at]),
            lambda row, rank, position: emit(row, rank, permuted(row, position)),
            space,
            finish,
        )

    return function([([total], dtype)], [*outputs, *orders, *buffers], body)


def _sort_rows(
    tile: Tile, rows: int, length: int, key: Read, emit: Emit, space: Any, finish: LongRows
) -> None:
    if length <= tile.size:
        _sort_short_rows(tile, rows, length, key, emit)
    else:
        finish(tile, rows, length, key, emit, space)


def _sort_short_rows(tile: Tile, rows: int, length: int, key: Read, emit: Emit) -> None:
    """Sort rows of which a tile holds one or more."""
    held = tile.size // length

    def one(index: tirx.Expr, item: tirx.Expr) -> None:
        first = hold(index * held)

        def inside(slot: tirx.Expr) -> tirx.Expr:
            return tirx.all(slot < held * length, first * length + slot < rows * length)

        def load(slot: tirx.Expr) -> tirx.Expr:
            row = tirx.floordiv(slot, length)
            word = pack_in_tile(tile, row, key(first * length + slot), tirx.floormod(slot, length))
            return tirx.if_then_else(inside(slot), word, LAST)

        def store(slot: tirx.Expr, word: tirx.Expr) -> None:
            with when(inside(slot)):
                row, rank = tirx.floordiv(slot, length), tirx.floormod(slot, length)
                emit(first + row, rank, hold(position_in_tile(tile, word)))

        sort_tile(tile, item, load, store)

    tile.for_each(-(-rows // held), one)


def sort_tiles(
    tile: Tile,
    rows: int,
    length: int,
    word: Word,
    store: Callable[..., None],
    count: Count | None = None,
) -> None:
    """Sort the tiles of long rows; `store` gets row, tile in the row, slot and word."""
    each = -(-length // tile.size)

    def one(index: tirx.Expr, item: tirx.Expr) -> None:
        row = hold(tirx.floordiv(index, each))
        part = hold(tirx.floormod(index, each))

        def sort(stop: Any) -> None:
            def load(slot: tirx.Expr) -> tirx.Expr:
                at = part * tile.size + slot
                return tirx.if_then_else(at < stop, word(row, at), LAST)

            sort_tile(tile, item, load, lambda slot, found: store(row, part, slot, found))

        if count is None:
            sort(length)
            return
        stop = hold(count(row))
        with when(part * tile.size < stop):
            sort(stop)

    tile.for_each(rows * each, one)


def sort_long_rows(tile: Tile, rows: int, length: int, key: Read, emit: Emit, space: Any) -> None:
    """Sort rows of several tiles."""
    sort_words(tile, rows, length, lambda row, at: pack(key(row * length + at), at), emit, space)


def sort_words(
    tile: Tile,
    rows: int,
    length: int,
    word: Word,
    emit: Emit,
    space: Any,
    count: Count | None = None,
) -> None:
    """Sort the tiles of rows, then merge lists of tiles, twice as long each time.

    Parameters
    ----------
    tile : Tile
    rows, length : int
    word : callable
        The element of a row at a position. It may read the second buffer of `space`.
    emit : Emit
    space : sequence of buffers
        Two, of all rows' elements.
    count : callable, optional
        How many elements a row has, where that is not `length` but less.
    """
    stop = count if count is not None else lambda row: length

    def store(row: tirx.Expr, part: tirx.Expr, slot: tirx.Expr, found: tirx.Expr) -> None:
        at = part * tile.size + slot
        with when(at < stop(row)):
            if length <= tile.size:
                emit(row, at, hold(position_of(found)))
            else:
                space[0][row * length + at] = found

    sort_tiles(tile, rows, length, word, store, count)
    source, target, width = space[0], space[1], tile.size
    while width < length:
        last = 2 * width >= length
        _merge_rows(tile, rows, length, width, source, None if last else target, emit, count)
        source, target, width = target, source, 2 * width


def _merge_rows(
    tile: Tile,
    rows: int,
    length: int,
    width: int,
    source: Any,
    target: Any,
    emit: Emit,
    count: Count | None,
) -> None:
    """Merge pairs of lists of `width` elements; the last merger (no target) emits indices."""
    each = -(-length // tile.size)

    def one(index: tirx.Expr, item: tirx.Expr) -> None:
        row = hold(tirx.floordiv(index, each))
        first = hold(tirx.floormod(index, each) * tile.size)
        start = hold(tirx.floordiv(first, 2 * width) * (2 * width))

        def store(at: tirx.Expr, word: tirx.Expr) -> None:
            if target is None:
                emit(row, at, hold(position_of(word)))
            else:
                target[row * length + at] = word

        def merge(end: Any) -> None:
            lists = Lists(
                start,
                hold(tirx.min(start + width, end)),
                hold(tirx.min(start + 2 * width, end)),
                first,
                hold(tirx.min(first + tile.size, end)),
            )
            merge_tile(tile, item, lists, lambda at: source[row * length + at], store)

        if count is None:
            merge(length)
            return
        end = hold(count(row))
        with when(first < end):
            merge(end)

    tile.for_each(rows * each, one)
