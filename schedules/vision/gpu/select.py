"""The first k of each row: every tile keeps its own first k, and these fill fewer tiles."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, hold, when
from tvm_edge.schedules.vision.gpu.merge import Read, Tile
from tvm_edge.schedules.vision.gpu.sort import Emit, ordered_rows, sort_long_rows, sort_tiles
from tvm_edge.schedules.vision.keys import pack, position_of

__all__ = ["top_k_rows"]


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
    """Build the kernels of the first `k` of each row in order, with their indices.

    A small `k` is selected: every tile keeps its first `k`, and these fill fewer tiles.

    Returns
    -------
    Kernel
        ``(data, indices, values, workspace...)``, all flat.
    """

    def finish(tile: Tile, rows: int, length: int, key: Read, emit: Emit, space: Any) -> None:
        if 2 * k <= tile.size:
            _select_from_rows(tile, rows, length, k, key, emit, space)
        else:
            sort_long_rows(tile, rows, length, key, emit, space)

    return ordered_rows(rows, length, k, dtype, spec, largest, index_dtype, True, finish)


def _select_from_rows(
    tile: Tile, rows: int, length: int, k: int, key: Read, emit: Emit, space: Any
) -> None:
    """Select the first `k` of each tile, then of tiles of those, until one is left."""

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

        sort_tiles(tile, rows, left, word, keep)

        def kept_word(
            row: tirx.Expr, at: tirx.Expr, kept: Any = source, each: int = parts * k
        ) -> tirx.Expr:
            return kept[row * each + at]

        word, left, source, target = kept_word, parts * k, target, source

    def last(row: tirx.Expr, _part: tirx.Expr, slot: tirx.Expr, found: tirx.Expr) -> None:
        with when(slot < k):
            emit(row, slot, hold(position_of(found)))

    sort_tiles(tile, rows, left, word, last)
