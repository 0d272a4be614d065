"""Contractions in registers: each work-item keeps a tile of channels by pixels.

Neighbouring work-items have neighbouring pixels, so that their loads of the data are one
transaction. They use the same weights, which the hardware broadcasts. Nothing goes through local
memory: on Mali that is main memory, and elsewhere the first-level cache holds a work-group's tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.gpu.launch import bind_group, bind_results, power_of_two
from tvm_edge.schedules.stages import fuse
from tvm_edge.schedules.workgroup import WORK_GROUP, group_size

__all__ = ["Axes", "Tile", "choose_tile", "schedule_result_per_item", "schedule_tile"]

# Work-items for each core that hide the latency of memory: 16 warps of NVIDIA's 64, 8 threads of
# an execution unit of Intel's at SIMD 16.
_ITEMS_PER_CORE = 512
# Accumulators of a work-item. With the operands that is some 24 registers, which leaves all GPUs
# at full or half occupancy.
_CHANNELS, _PIXELS = 8, 2
# Loops over a window are unrolled up to this many steps.
_UNROLLED_WINDOW = 9
# Work-items along the columns below which a guarded, wider work-group is better.
_NARROWEST = 8


@dataclass(frozen=True)
class Axes:
    """The loops of a contraction by their meaning.

    Attributes
    ----------
    outer : sequence of LoopRV
        Batch, groups: no operand is shared along them.
    channels : LoopRV or None
        Along it the data is shared.
    columns : LoopRV
        Along it the weights are shared, and the data is contiguous.
    reduction : sequence of LoopRV
        Reduction axes; the window last.
    window : sequence of LoopRV
        Those of `reduction` that are short and can be unrolled.
    """

    outer: Sequence[LoopRV]
    channels: LoopRV | None
    columns: LoopRV
    reduction: Sequence[LoopRV]
    window: Sequence[LoopRV] = ()


@dataclass(frozen=True)
class Tile:
    """Results of a work-item, and work-items of a work-group, along channels and columns."""

    channels: int
    columns: int
    group_channels: int
    group_columns: int


def choose_tile(
    spec: DeviceSpec, *, outer: int, channels: int, columns: int, most_channels: int = _CHANNELS
) -> Tile:
    """Choose the largest tile that leaves enough work-items to fill the device.

    Parameters
    ----------
    outer, channels, columns : int
        Extents.
    most_channels : int
        Channels that share their data: those of a group of the convolution.
    """
    wanted = max(spec.cores, 1) * _ITEMS_PER_CORE
    results = outer * channels * columns
    pairs = [
        (c, p)
        for c in divisors(channels, min(_CHANNELS, most_channels))
        if most_channels % c == 0
        for p in divisors(columns, _PIXELS)
    ]
    pairs.sort(key=lambda pair: (pair[0] * pair[1], pair[0]))
    fitting = [pair for pair in pairs if results // (pair[0] * pair[1]) >= wanted]
    tile_channels, tile_columns = fitting[-1] if fitting else _smallest_sharing(pairs)
    limit = min(WORK_GROUP, spec.max_work_group_size)
    group_columns = _columns_of_group(columns // tile_columns, limit)
    group_channels = divisors(channels // tile_channels, limit // group_columns)[-1]
    return Tile(tile_channels, tile_columns, group_channels, group_columns)


def _columns_of_group(columns: int, limit: int) -> int:
    """Choose the work-items along the columns: a divisor, so that no tile needs a guard.

    They are half of a work-group where there are that many, so that the other half uses the same
    data for other channels.
    """
    exact = divisors(columns, limit)
    best = max(exact, key=lambda d: (min(d, limit // 2), -d))
    return best if best >= min(_NARROWEST, columns) else min(power_of_two(limit // 2), columns)


def _smallest_sharing(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Use two channels a work-item where even that leaves the device half empty: loads halve."""
    return max((p for p in pairs if p[0] <= 2 and p[1] == 1), default=pairs[0])


def schedule_tile(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, axes: Axes, tile: Tile
) -> None:
    """Schedule a contraction and its epilogue as one kernel."""
    is_open = any(extent(sch, x) is None for x in (*axes.outer, axes.channels, axes.columns) if x)
    grid = list(axes.outer)
    items: list[LoopRV] = []
    inner: list[LoopRV] = []
    columns = sch.split(axes.columns, factors=[None, tile.group_columns, tile.columns])
    if axes.channels is not None:
        channels = sch.split(axes.channels, factors=[None, tile.group_channels, tile.channels])
        grid.append(channels[0])
        items.append(channels[1])
        inner.append(channels[2])
    grid.append(columns[0])
    items.append(columns[1])
    inner.append(columns[2])
    sch.reorder(*grid, *items, *axes.reduction, *inner)
    if is_open:  # TVM moves no epilogue into loops that are fused of several lengths of the run
        sch.reverse_compute_at(epilogue, items[-1], preserve_unit_loops=True)
    bind_group(sch, grid, *reversed(items))
    if not is_open:
        sch.reverse_compute_at(epilogue, items[-1], preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    for loop in inner:
        sch.unroll(loop)
    for loop in _written_out(sch, axes.window):
        sch.unroll(loop)
    for loop in sch.get_loops(epilogue)[1 + len(items) :]:
        sch.unroll(loop)
    sch.decompose_reduction(block, axes.reduction[0])


def schedule_result_per_item(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV,
    outputs: Sequence[LoopRV],
    reduction: Sequence[LoopRV],
    window: Sequence[LoopRV],
    spec: DeviceSpec,
) -> None:
    """Schedule a reduction and its epilogue as one kernel with a work-item for each result.

    `outputs` are the block's first loops, in their order.
    """
    sizes = [extent(sch, loop) for loop in outputs]
    if None in sizes:
        _schedule_open_results(sch, block, epilogue, outputs, reduction, window, spec)
        return
    total = prod(size or 0 for size in sizes)
    axes = Axes([], None, fuse(sch, outputs), reduction, window)
    schedule_tile(sch, block, epilogue, axes, Tile(1, 1, 1, group_size(total, spec)))


def _schedule_open_results(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV,
    outputs: Sequence[LoopRV],
    reduction: Sequence[LoopRV],
    window: Sequence[LoopRV],
    spec: DeviceSpec,
) -> None:
    """Schedule results of an open number, as :func:`schedule_result_per_item` does."""
    sch.reorder(*outputs, *reduction)
    # TVM moves no epilogue into loops that are fused of several lengths of the run.
    sch.reverse_compute_at(epilogue, outputs[-1], preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    bind_results(sch, outputs, spec)
    for loop in _written_out(sch, window):
        sch.unroll(loop)
    sch.decompose_reduction(block, reduction[0])


def _written_out(sch: Schedule, window: Sequence[LoopRV]) -> list[LoopRV]:
    """Return the innermost loops of a window that make up few enough steps to be unrolled."""
    taken: list[LoopRV] = []
    for loop in reversed(window):
        if prod(extent(sch, x) or 0 for x in (loop, *taken)) > _UNROLLED_WINDOW:
            break
        taken.append(loop)
    return taken
