"""The register tile: accumulators kept in vector registers while a reduction runs.

Convolution, matrix product and pooling are one loop nest to a CPU. A tile of the output,
`channels` x `lines` x `vectors` registers, stays in registers for the whole reduction; each step
of it loads `lines * vectors` vectors of the operand that is contiguous along the output and
broadcasts one scalar of the other for each channel. The epilogue (bias, residual, activation) runs
on the tile before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.cpu.loops import MIN_PARALLEL_WORK, can_peel, lanes_of, split_vectors
from tvm_edge.schedules.cpu.overlap import mark_tiles, small_tile
from tvm_edge.schedules.stages import fuse
from tvm_edge.schedules.typical import typical

__all__ = ["Axes", "RegisterTile", "choose_tile", "schedule_contraction", "schedule_tile"]

# At most so many channels share a tile. Their weights lie a power of two apart in most networks
# and compete for one set of the L1 cache: 16 channels of 4 KiB filters ran at half speed.
_MAX_CHANNELS = 8
# A fused multiply-add has a latency of four cycles, and two start per cycle (Zen 4, Intel,
# Cortex-A76).
_LATENCY = 8
# Rows from which tiles of open numbers of rows are chosen: many numbers divide it.
_OPEN_ROWS = 24
# Unrolled steps of the reduction: longer bodies outgrow the µop cache.
_MAX_BODY = 192


@dataclass(frozen=True)
class RegisterTile:
    """Part of the output that one tile holds.

    Attributes
    ----------
    channels : int
        Rows of the operand that is broadcast (output channels, rows of a matrix).
    lines : int
        Image rows.
    vectors, lanes : int
        Vector registers along the contiguous axis, and elements in one.
    """

    channels: int
    lines: int
    vectors: int
    lanes: int

    @property
    def accumulators(self) -> int:
        """Vector registers of the accumulators."""
        return self.channels * self.lines * self.vectors


@dataclass(frozen=True)
class Axes:
    """The loops of a reduction block by the part they play in a register tile.

    Attributes
    ----------
    outer : sequence of LoopRV
        Loops that are not tiled: batch, groups.
    channels, lines : LoopRV or None
        Loops tiled by `channels` and `lines` of the tile.
    columns : LoopRV
        The loop that becomes vectors.
    reduction : sequence of LoopRV
        Outermost first.
    """

    outer: Sequence[LoopRV]
    channels: LoopRV | None
    lines: LoopRV | None
    columns: LoopRV
    reduction: Sequence[LoopRV]


def choose_tile(
    spec: DeviceSpec,
    lanes: int,
    *,
    channels: int,
    lines: int,
    columns: int,
    outer: int = 1,
    exact: bool = False,
) -> RegisterTile:
    """The tile that needs the fewest cycles for one step of the reduction over the whole output.

    Parameters
    ----------
    spec : DeviceSpec
        Its vector registers bound the tile, its cores want tiles of equal number.
    lanes : int
        Elements of a vector register.
    channels, lines, columns, outer : int
        Extents of the loops; tiles of channels and lines divide theirs.
    exact : bool
        The columns must divide into whole tiles: remainders cannot be peeled.
    """
    best, best_cost = RegisterTile(1, 1, 1, 1), float("inf")
    registers = spec.vector_registers
    widths = divisors(columns, lanes) if exact else [min(lanes, columns)]
    for width in widths:
        row_vectors = ceil(columns / width)
        most = min(row_vectors, registers)
        counts = divisors(row_vectors, most) if exact else range(1, most + 1)
        for c, r, v in product(
            divisors(channels, _MAX_CHANNELS), divisors(lines, registers), counts
        ):
            # accumulators, the vectors loaded, one broadcast
            if c * r * v > 1 and c * r * v + r * v + 1 > registers:
                continue
            tiles = outer * (channels // c) * (lines // r)
            idle = ceil(tiles / spec.cores) * spec.cores / tiles
            full, rest = divmod(row_vectors, v)
            steps = full * _step(c, r * v) + (_step(c, r * rest) if rest else 0)
            cost = steps * tiles * idle
            if cost < best_cost:
                best, best_cost = RegisterTile(c, r, v, width), cost
    return best


def _step(channels: int, vectors: int) -> float:
    """Cycles of one reduction step of a tile, in multiply-adds: twice as many loads as those."""
    return max(channels * vectors, _LATENCY) + 0.5 * (channels + vectors)


def schedule_tile(
    sch: Schedule,
    block: SBlockRV,
    axes: Axes,
    tile: RegisterTile,
    *,
    epilogue: SBlockRV,
    channels_outermost: bool = False,
    lines_serial: bool = False,
    columns_shared: bool = False,
    parallel: bool = True,
) -> LoopRV:
    """Schedule a reduction block as a parallel loop over register tiles.

    Parameters
    ----------
    block : SBlockRV
        The reduction. Its buffer becomes a tile of registers.
    epilogue : SBlockRV
        The only block that reads the accumulators, over the same axes but the reduction.
    channels_outermost : bool
        Whether consecutive tiles share filters (and walk through the image) or pixels.
    lines_serial : bool
        Leave the loop over tiles of lines out of the parallel loop.
    columns_shared : bool
        Take the loop over tiles of columns, which has no remainder, into the parallel loop.

    Returns
    -------
    LoopRV
        The fused outer loop, parallel if asked for.
    """
    rows = _open_axis(sch, block, axes.channels)
    sch.set_scope(block, 0, "local")
    outer, inner = list(axes.outer), []
    channel_tiles = line_tiles = None
    if axes.lines is not None:
        line_tiles, line = sch.split(axes.lines, factors=[None, tile.lines])
        inner.append(line)
    if axes.channels is not None:
        channel_tiles, channel = sch.split(axes.channels, factors=[None, tile.channels])
        inner.append(channel)
    order = [channel_tiles, line_tiles] if channels_outermost else [line_tiles, channel_tiles]
    serial = [line_tiles] if lines_serial and line_tiles is not None else []
    outer += [loop for loop in order if loop is not None and loop not in serial]
    remainder = (extent(sch, axes.columns) or 1) % (tile.vectors * tile.lanes) != 0
    column_tiles, vector, lane = split_vectors(sch, axes.columns, tile.vectors, tile.lanes)
    sch.reorder(*outer, *serial, column_tiles, *axes.reduction, *inner, vector, lane)
    task = fuse(sch, [*outer, column_tiles] if columns_shared else outer)
    if parallel:
        sch.parallel(task)
    sch.vectorize(lane)
    for loop in (*inner, vector):
        sch.unroll(loop)
    _unroll_reduction(sch, axes.reduction, tile)
    tiles = task if columns_shared else column_tiles
    sch.reverse_compute_at(epilogue, tiles, preserve_unit_loops=True)
    *unrolled, last = sch.get_loops(epilogue)[-(len(inner) + 1) :]
    _, vector, lane = split_vectors(sch, last, 1, tile.lanes, peel=remainder)
    sch.vectorize(lane)
    for loop in unrolled:
        sch.unroll(loop)
    begin = sch.decompose_reduction(block, axes.reduction[0])
    if rows is not None:
        small = small_tile(tile.channels, tile.lines * tile.vectors)
        mark_tiles(sch, [begin, block, epilogue], rows, tile.channels, small)
    return task


def _open_axis(sch: Schedule, block: SBlockRV, loop: LoopRV | None) -> int | None:
    """Return the axis of a loop whose length only the run tells; ``None`` for another loop."""
    if loop is None or extent(sch, loop) is not None:
        return None
    var = sch.get(loop).loop_var
    loops = sch.get_loops(block)
    return next(i for i, own in enumerate(loops) if sch.get(own).loop_var.same_as(var))


def schedule_contraction(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, conv: Contraction, spec: DeviceSpec
) -> LoopRV:
    """Choose a tile for a contraction whose `data` moves by one element per column, apply it.

    Returns the fused outer loop.
    """
    loops = sch.get_loops(block)
    sizes = [extent(sch, loop) or spec.cores for loop in loops]  # of a batch that may be symbolic
    lanes = lanes_of(sch.get(block), spec)
    group = conv.group
    if conv.channels is not None and extent(sch, loops[conv.channels]) is None:
        sizes[conv.channels] = typical(sch.get(loops[conv.channels]).extent)
        # The last tile is a whole one, however many rows there are.
        group = sizes[conv.channels] = min(sizes[conv.channels], _OPEN_ROWS)
    groups = 1 if conv.channels is None else sizes[conv.channels] // group
    tile = choose_tile(
        spec,
        lanes,
        channels=1 if conv.channels is None else group,
        lines=1 if conv.lines is None else sizes[conv.lines],
        columns=sizes[conv.columns],
        outer=groups * prod(sizes[p] for p in conv.outer),
        exact=not can_peel(sch, loops[conv.columns]),
    )
    axes = Axes(
        [loops[p] for p in conv.outer],
        None if conv.channels is None else loops[conv.channels],
        None if conv.lines is None else loops[conv.lines],
        loops[conv.columns],
        [loops[p] for p in conv.reduction],
    )
    # A batch that only the run knows is often of one: its row alone is work for all cores.
    shared = [*axes.outer, *([] if axes.channels is None else [axes.channels])]
    tasks = prod(typical(sch.get(loop).extent) for loop in shared) // tile.channels
    few = tasks < spec.cores and None in (extent(sch, loop) for loop in shared)
    assert conv.weight is not None
    weights, image = (
        prod(constant(dim) or 1 for dim in load.source.shape) for load in (conv.weight, conv.data)
    )
    return schedule_tile(
        sch,
        block,
        axes,
        tile,
        epilogue=epilogue,
        # The larger operand is the one to go through once.
        channels_outermost=weights > image,
        columns_shared=few and sizes[conv.columns] % (tile.vectors * tile.lanes) == 0,
        parallel=prod(sizes) >= MIN_PARALLEL_WORK * lanes,
    )


def _unroll_reduction(sch: Schedule, reduction: Sequence[LoopRV], tile: RegisterTile) -> None:
    """Unroll reduction loops from the inside while the body stays small."""
    body = tile.accumulators
    for loop in reversed(reduction):
        body *= extent(sch, loop) or _MAX_BODY + 1
        if body > _MAX_BODY:
            return
        sch.unroll(loop)
