"""Choice of a product's tile by an estimate of a core's cycles, without a measurement.

A work-group computes its multiply-adds at the share of the peak that its registers allow, or waits
for memory in each of its steps, whichever is longer. Work-groups that run on a core together share
the computation and overlap the waits. A split reduction costs a second kernel and the memory
traffic of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.gpu.cycles import (
    ALUS,
    LATENCY,
    LATENCY_OF_LOAD,
    LOAD,
    OTHER_REGISTERS,
    PROLOGUE,
    REGISTERS,
    RESIDENT,
    STEP,
)
from tvm_edge.schedules.gpu.product import VECTOR, Tile
from tvm_edge.schedules.gpu.tensor_core import PIECE, WARP

__all__ = [
    "choose_block_tile",
    "choose_product_tile",
    "choose_warp_tile",
    "estimated_cycles",
    "fits",
    "possible_block_tiles",
    "possible_tiles",
    "ranked_tiles",
    "seconds_of",
    "streaming_cycles",
    "suits_blocks",
]

Extents = tuple[int, int, int, int]

# Work-item tiles, and their share of a core's multiply-adds, without the fixed cost of a step.
_ITEMS = {(8, 8): 0.66, (8, 4): 0.69, (4, 8): 0.58, (4, 4): 0.53, (4, 2): 0.53, (2, 4): 0.37}

# Warp tiles on tensor cores, and the share; these multiply faster than `_ITEMS` by as much.
_WARPS = {(64, 32): 3.5, (32, 64): 3.5, (32, 32): 3.0, (32, 16): 2.0, (16, 16): 1.2}

_ROWS = (128, 64, 48, 32, 24, 16, 8)
_COLUMNS = (128, 64, 56, 48, 32, 16)

_SMALLEST = 16
_LEAST_ITEMS, _MOST_ITEMS = 32, 256

# Reduction length of a step. A step has a whole window, so that only the channel moves.
_DEPTHS = (8, 16)
_DEPTHS_OF_WORDS = (4,)
_WARP_DEPTHS = (16, 32)
_WARP_SIZES = (128, 64, 32, 16)
_LONGEST_WINDOW = 25
_SHORTEST_WINDOW_STEP = 5

# The shortest reduction of a part.
_REDUCTION_OF_A_PART = 32

# Limit of the workspace for the partial sums of all results, in bytes.
_MOST_WORKSPACE = 64 << 20

# Cycles of a launch, beside those of a work-group (`cycles`).
_LAUNCH = 4090.0
# Cycles of a part's turn in the addition; traffic factors of a result and of a partial sum.
_PART, _WRITTEN, _READ = 85.0, 4.75, 0.67
_BYTES_PER_CYCLE = 16  # of a core
_CYCLES_PER_US = 1755


@cache
def choose_product_tile(
    extents: tuple[int, int, int, int], window: int, spec: DeviceSpec, together: int = 1
) -> Tile | None:
    """Choose the tile with the lowest estimated latency, ``None`` where another rule does better.

    Parameters
    ----------
    extents : (int, int, int, int)
        Batch, rows, columns and length of the reduction axis.
    window : int
        How many of the innermost reduction steps are a window's.
    spec : DeviceSpec
    together : int
        Numbers of an operand: four where it is a word of them.
    """
    return _best(possible_tiles(extents, window, spec, together), extents, spec, together)


@cache
def choose_block_tile(extents: Extents, line: int, spec: DeviceSpec) -> Tile | None:
    """Choose a tile for four reduction steps side by side, and the results of four rows."""
    return _best(possible_block_tiles(extents, line, spec), extents, spec)


def ranked_tiles(extents: Extents, window: int, spec: DeviceSpec, together: int = 1) -> list[Tile]:
    """Rank the search space by estimated latency: the first is :func:`choose_product_tile`'s."""
    if choose_product_tile(extents, window, spec, together) is None:
        return []
    tiles = possible_tiles(extents, window, spec, together)
    return sorted(tiles, key=lambda tile: estimated_cycles(tile, extents, spec))


def _best(
    tiles: Iterable[Tile], extents: Extents, spec: DeviceSpec, together: int = 1
) -> Tile | None:
    _, rows, columns, reduction = extents
    if rows < 8 or columns < 4 or reduction * together < 8:
        return None
    return min(tiles, key=lambda tile: estimated_cycles(tile, extents, spec), default=None)


def possible_tiles(
    extents: tuple[int, int, int, int], window: int, spec: DeviceSpec, together: int = 1
) -> Iterator[Tile]:
    """Yield the tiles that the device accepts."""
    depths: tuple[int, ...] = _DEPTHS if together == 1 else (*_DEPTHS_OF_WORDS, *_DEPTHS)
    if 1 < window <= _LONGEST_WINDOW:
        depths = (window if window >= _SHORTEST_WINDOW_STEP else 2 * window,)
    yield from _tiles(extents, depths, spec)


def possible_block_tiles(extents: Extents, line: int, spec: DeviceSpec) -> Iterator[Tile]:
    """Yield tiles for channel blocks; `line` reduction steps are those of a line of the window.

    A step of whole lines divides by constants where other steps divide for each reduction step.
    """
    depths: tuple[int, ...] = _DEPTHS
    if _DEPTHS[0] < line <= _LONGEST_WINDOW:
        depths = (*_DEPTHS, line)
    yield from filter(suits_blocks, _tiles(extents, tuple(dict.fromkeys(depths)), spec))


def suits_blocks(tile: Tile) -> bool:
    """Return whether loads are vectors of four reduction steps, and stores of four rows."""
    return tile.wave == 1 and tile.depth % VECTOR == tile.item_rows % VECTOR == 0


def _tiles(
    extents: Extents,
    depths: Iterable[int],
    spec: DeviceSpec,
    items: Iterable[tuple[int, int]] = _ITEMS,
    groups: tuple[Iterable[int], Iterable[int]] = (_ROWS, _COLUMNS),
    wave: int = 1,
) -> Iterator[Tile]:
    _, rows, columns, _ = extents
    for (item_rows, item_columns), depth in product(items, depths):
        for group_rows, group_columns in product(*groups):
            if group_rows % item_rows or group_columns % item_columns:
                continue
            if _is_half_empty(group_rows, rows) or _is_half_empty(group_columns, columns):
                continue
            tile = Tile(group_rows, group_columns, item_rows, item_columns, depth, wave=wave)
            if fits(tile, spec):
                yield from _in_parts(tile, extents)


@cache
def choose_warp_tile(extents: tuple[int, int, int, int], spec: DeviceSpec) -> Tile | None:
    """Choose the tile for tensor cores with the lowest estimated latency."""
    _, rows, columns, reduction = extents
    if rows < PIECE[0] or columns < PIECE[1] or reduction < PIECE[2]:
        return None
    found = _tiles(extents, _WARP_DEPTHS, spec, _WARPS, (_WARP_SIZES, _WARP_SIZES), WARP)
    return min(found, key=lambda tile: estimated_cycles(tile, extents, spec), default=None)


def fits(tile: Tile, spec: DeviceSpec) -> bool:
    """Return whether a device accepts work-groups of a tile."""
    most = min(_MOST_ITEMS, spec.max_work_group_size)
    return _LEAST_ITEMS <= tile.items <= most and tile.local_bytes <= spec.local_memory


def _in_parts(tile: Tile, extents: tuple[int, int, int, int]) -> Iterator[Tile]:
    """Yield the tile with 1, 2, 4 … work-groups that share its reduction."""
    batch, rows, columns, reduction = extents
    steps, parts = tile.steps(reduction), 1
    most = _MOST_WORKSPACE // (batch * rows * columns * 4)
    while parts == 1 or (parts <= most and steps // parts * tile.depth >= _REDUCTION_OF_A_PART):
        yield tile if parts == tile.parts else replace(tile, parts=parts)
        parts *= 2


def _is_half_empty(tile: int, extent: int) -> bool:
    return tile > _SMALLEST and tile >= 2 * extent


def estimated_cycles(tile: Tile, extents: tuple[int, int, int, int], spec: DeviceSpec) -> float:
    """Estimate the cycles of the kernels."""
    batch, rows, columns, reduction = extents
    cores, alus = max(spec.cores, 1), spec.alus or ALUS
    groups = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.parts
    own = tile.item_rows * tile.item_columns // tile.wave
    own += 2 * (tile.item_rows + tile.item_columns) // (1 if tile.wave == 1 else PIECE[1])
    resident = min(
        (spec.registers or REGISTERS) // (tile.items * (own + OTHER_REGISTERS)),
        RESIDENT // tile.items,
        # A work-group may use a third or so of a core's local memory.
        3 * spec.local_memory // tile.local_bytes,
    )
    resident = max(resident, 1)
    brought = tile.depth * (tile.rows + tile.columns) / tile.items
    waves = -(-tile.items // max(spec.wave, 1))
    share = (_ITEMS if tile.wave == 1 else _WARPS)[tile.item_rows, tile.item_columns]
    step = tile.rows * tile.columns * tile.depth / (alus * share)
    step += STEP + waves * brought * LOAD
    wait = LATENCY + brought * LATENCY_OF_LOAD
    rounds, left = divmod(-(-groups // cores), resident)
    total = _LAUNCH
    for times, together in ((rounds, resident), (min(left, 1), left)):
        total += times * (PROLOGUE + tile.steps(reduction) * max(together * step, wait))
    if tile.parts > 1:
        moved = batch * rows * columns * 4 * (_WRITTEN + _READ * tile.parts)
        total += streaming_cycles(moved, spec) + tile.parts * _PART
    return total


def streaming_cycles(nbytes: float, spec: DeviceSpec) -> float:
    """Estimate the cycles of a kernel that follows another one and moves `nbytes` bytes."""
    return spec.launch_us * _CYCLES_PER_US + nbytes / (max(spec.cores, 1) * _BYTES_PER_CYCLE)


def seconds_of(cycles: float) -> float:
    """Convert estimated cycles to seconds."""
    return cycles / _CYCLES_PER_US * 1e-6
