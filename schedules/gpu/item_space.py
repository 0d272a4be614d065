"""Search space of a convolution without local memory: tiles and work-groups, best first.

The rule of :mod:`tvm_edge.schedules.gpu.direct` chooses a tile, then a work-group: a search begins
with them. An estimate ranks all others. It was fitted to no device, and only decides what to try
first.
"""

from __future__ import annotations

from itertools import product
from math import prod

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.items import ITEMS_PER_CORE, Items, ItemTile
from tvm_edge.schedules.gpu.product import VECTOR
from tvm_edge.schedules.workgroup import (
    Problem,
    WorkGroup,
    choose_work_group,
    penalties,
    ranked_work_groups,
    simultaneous_items,
)

__all__ = ["cycles_of_items", "first_items", "legal_items", "possible_items", "possible_tiles"]

_CHANNELS = (1, 2, 4, 8)
_LINES = (1, 2, 4)
# 7 divides the lines and columns of most networks' last feature maps; powers of two do not.
_COLUMNS = (1, 2, 4, 7, 8)

# 32-bit registers that compilers give a work-item of any GPU before they spill.
_MOST_REGISTERS = 128

# Limit of the unrolled multiply-adds of one input channel: larger sources take long to build.
_MOST_WRITTEN = 1024

# Work-groups kept for each tile, the least penalised by the rules: many more are equally good.
_GROUPS_OF_A_TILE = 16

# Cost of a read, of a vector or of one element, in multiply-adds.
_READ = 4.0

# Work-items of a core at which half of the latency of memory is hidden.
_HALF_HIDDEN = 32


def legal_items(conv: DirectConv) -> Items | None:
    """Return the knobs that a convolution was given, unless they are of another one's record."""
    return conv.items if conv.items is not None and _is_legal(conv, conv.items.tile) else None


def _is_legal(conv: DirectConv, tile: ItemTile) -> bool:
    """Return whether a tile fits a convolution: its image, its groups and its filters."""
    if tile.lines > conv.typical_lines or tile.columns > conv.typical_columns:
        return False
    if conv.is_depthwise:
        return tile.channels == 1
    if conv.of_block:
        return tile.channels % VECTOR == 0 and conv.channels % tile.channels == 0
    # A work-item stays in its convolution group. A single group has filters padded with zeros.
    alone = conv.is_packed and conv.conv.group == conv.channels
    readable = -(-conv.channels // VECTOR) * VECTOR if alone else conv.conv.group
    return readable % tile.channels == 0


def possible_tiles(conv: DirectConv, spec: DeviceSpec) -> list[ItemTile]:
    """Return legal tiles that a work-item's registers hold, the rule's own first."""
    chosen = conv.choose_tile(spec)
    window = prod(conv.sizes[p] for p in conv.conv.window)
    found = {chosen: None}
    # An image of few columns may be one tile wide.
    widths = sorted({*_COLUMNS, min(conv.typical_columns, _COLUMNS[-1])})
    for sizes in product(_CHANNELS, _LINES, widths):
        tile = ItemTile(*sizes)
        if tile.columns & (tile.columns - 1) and conv.typical_columns % tile.columns:
            continue  # sizes other than powers of two are for lines that they divide
        if not _is_legal(conv, tile) or tile.size * window > _MOST_WRITTEN:
            continue
        if conv.problem(tile).registers <= _MOST_REGISTERS:
            found[tile] = None
    return list(found)


def possible_items(conv: DirectConv, spec: DeviceSpec) -> list[Items]:
    """Return the search space: the rule's own choice first, all others by estimated latency."""
    first, tiles = first_items(conv, spec), possible_tiles(conv, spec)
    cycles: dict[Items, float] = {}
    for tile in tiles:
        problem = conv.problem(tile)
        of_item = _cycles_of_item(conv, tile, spec)
        for group in ranked_work_groups(problem, spec)[:_GROUPS_OF_A_TILE]:
            used = _used(problem, group, spec)
            cycles[Items.of(tile, group)] = of_item * prod(problem.space) / used
    return sorted(cycles, key=lambda items: (items != first, cycles[items]))


def first_items(conv: DirectConv, spec: DeviceSpec) -> Items:
    """Return the rule's own choice."""
    tile = conv.choose_tile(spec)
    return Items.of(tile, choose_work_group(conv.problem(tile), spec))


def cycles_of_items(conv: DirectConv, items: Items, spec: DeviceSpec) -> float:
    """Estimate the cycles of the device."""
    problem = conv.problem(items.tile)
    of_item = _cycles_of_item(conv, items.tile, spec) * _steps_of_item(conv)
    return of_item * prod(problem.space) / _used(problem, items.group, spec)


def _steps_of_item(conv: DirectConv) -> int:
    """Count how often a work-item goes through the unrolled part."""
    return prod(conv.sizes[p] for p in conv.conv.channel_sum)


def _cycles_of_item(conv: DirectConv, tile: ItemTile, spec: DeviceSpec) -> float:
    """Estimate the cycles of a work-item, in scalar steps, without factors common to all tiles.

    Reduction steps outside of the window are such a factor. A GPU whose work-items are executed one
    by one has vectors instead, which channels fill.
    """
    *rows, taps = (conv.sizes[p] for p in conv.conv.window) if conv.conv.window else (1,)
    lines = prod(rows)
    lanes = min(tile.channels, spec.lanes()) if spec.wave == 1 else 1
    adds = tile.size * lines * taps / lanes
    # Each element of an image line once, for each line that the tile and the window cover.
    beside = min(taps * tile.columns, (tile.columns - 1) * conv.conv.strides[1] + taps)
    width = VECTOR if spec.unaligned_vectors else 1
    reads = lines * tile.lines * -(-beside // width)
    reads += lines * taps * -(-tile.channels // (VECTOR if conv.is_packed else 1))
    if conv.of_block:
        reads = _reads_of_blocks(conv, tile)
    return float(adds + _READ * reads)


def _reads_of_blocks(conv: DirectConv, tile: ItemTile) -> int:
    """Count the vectors that a work-item reads for one place of the axes that are not unrolled."""
    sizes = [conv.sizes[p] for p in conv.conv.window]
    quads = tile.channels // VECTOR
    if conv.own_channels:
        lines, taps = sizes
        beside = min(taps * tile.columns, (tile.columns - 1) * conv.conv.strides[1] + taps)
        return lines * quads * (tile.lines * beside + taps)
    *places, depth = sizes
    return prod(places) * (tile.lines * tile.columns * -(-depth // VECTOR) + depth * quads)


def _used(problem: Problem, group: WorkGroup, spec: DeviceSpec) -> float:
    """Estimate the share of a device that such work-groups keep busy."""
    cores = max(spec.cores, 1)
    items = min(prod(problem.space) / cores, ITEMS_PER_CORE)
    if spec.registers:
        items = min(items, max(spec.registers / problem.registers, 1))
    kept = prod(1.0 - penalty for penalty in penalties(problem, group, spec))
    lanes = cores * simultaneous_items(spec)
    return max(kept, 1e-6) * lanes * items / (items + _HALF_HIDDEN)
