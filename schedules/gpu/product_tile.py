"""Which tile a product gets: an estimate of a core's cycles, and no measurement.

A group's work is its multiply-adds, at the share of the peak that its registers allow, or the wait
for memory in each of its steps, whichever is longer; groups that run on a core together share the
first and overlap in the second. Parts of a sum cost a second kernel and their way through memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.gpu.product import Tile

__all__ = ["choose_product_tile"]

# Work-item tiles and the share of a core's multiply-adds that they reach: the wider, the fewer
# loads from local memory for each.
_ITEMS = {(8, 8): 0.85, (8, 4): 0.72, (4, 8): 0.72, (4, 4): 0.55, (4, 2): 0.4, (2, 4): 0.4}

_ROWS = (128, 64, 48, 32, 24, 16, 8)
_COLUMNS = (128, 64, 56, 48, 32, 16)

_SMALLEST = 16
_LEAST_ITEMS, _MOST_ITEMS = 32, 256

# Terms of a step; of a window all, so that only the channel moves from step to step.
_DEPTH = 8
_LONGEST_WINDOW = 25

# Cycles: until the operands of a step are there, of a step's barrier and addresses, until a launch
# has begun, and a second one.
_LATENCY = 700.0
_STEP = 60.0
_LAUNCH = 2500.0

# Registers of a work-item beside its tile, and the fewest terms of a part.
_OTHER_REGISTERS = 40
_TERMS_OF_A_PART = 32

# Of unknown devices: registers, cores' lanes.
_REGISTERS, _ALUS, _RESIDENT = 65536, 128, 2048


@cache
def choose_product_tile(
    extents: tuple[int, int, int, int], window: int, spec: DeviceSpec
) -> Tile | None:
    """The tile of the least estimated time, ``None`` where another rule does better.

    Parameters
    ----------
    extents : (int, int, int, int)
        Batch, rows, columns and terms.
    window : int
        How many of the innermost terms are a window's.
    spec : DeviceSpec
    """
    _, rows, columns, terms = extents
    if rows < 8 or columns < 4 or terms < 8:
        return None
    return min(
        _tiles(extents, window, spec), key=lambda tile: _cycles(tile, extents, spec), default=None
    )


def _tiles(extents: tuple[int, int, int, int], window: int, spec: DeviceSpec) -> Iterator[Tile]:
    """Tiles that the device takes."""
    _, rows, columns, terms = extents
    depth = window if 1 < window <= _LONGEST_WINDOW else _DEPTH
    if depth < 5:
        depth *= 2
    for item_rows, item_columns in _ITEMS:
        for group_rows, group_columns in product(_ROWS, _COLUMNS):
            tile = Tile(group_rows, group_columns, item_rows, item_columns, depth)
            if group_rows % item_rows or group_columns % item_columns:
                continue
            if _is_half_empty(group_rows, rows) or _is_half_empty(group_columns, columns):
                continue
            if not _LEAST_ITEMS <= tile.items <= min(_MOST_ITEMS, spec.max_work_group_size):
                continue
            if tile.local_bytes > spec.local_memory:
                continue
            steps, parts = tile.steps(terms), 1
            while parts == 1 or steps // parts * depth >= _TERMS_OF_A_PART:
                yield replace(tile, parts=parts)
                parts *= 2


def _is_half_empty(tile: int, extent: int) -> bool:
    return tile > _SMALLEST and tile >= 2 * extent


def _cycles(tile: Tile, extents: tuple[int, int, int, int], spec: DeviceSpec) -> float:
    """Estimated cycles of the kernels."""
    batch, rows, columns, terms = extents
    cores, alus = max(spec.cores, 1), spec.alus or _ALUS
    groups = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.parts
    registers = tile.item_rows * tile.item_columns + 2 * (tile.item_rows + tile.item_columns)
    registers += _OTHER_REGISTERS
    resident = max(
        1,
        min(
            (spec.registers or _REGISTERS) // (tile.items * registers),
            _RESIDENT // tile.items,
            # Two steps are all that a core has room for on the smallest devices.
            max(1, 3 * spec.local_memory // max(tile.local_bytes, 1)),
        ),
    )
    share = _ITEMS[tile.item_rows, tile.item_columns]
    step = tile.rows * tile.columns * tile.depth / (alus * share) + _STEP
    on_core = -(-groups // cores)
    total = 0.0
    while on_core > 0:
        together = min(on_core, resident)
        total += tile.steps(terms) * max(together * step, _LATENCY)
        on_core -= together
    total += _LAUNCH
    if tile.parts > 1:
        results = batch * rows * columns
        bytes_per_cycle = 16.0 * cores
        total += _LAUNCH + results * 4 * (2 * tile.parts) / bytes_per_cycle
    return total
