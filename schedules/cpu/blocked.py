"""Dense and grouped convolutions of blocked images: register tiles of pixels by blocks of filters.

The accumulators of `lines` x `columns` pixels and `blocks` output channel blocks stay in vector
registers through the whole reduction. Each step of it loads one vector of filters per block and
broadcasts one element of the image per pixel. Pixels are the outer loop of a step and blocks the
inner one: LLVM keeps the filters' vectors in registers that way, the other way round it spills
(190 against 60 GFLOP/s a core for 14 pixels by 2 blocks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.blocked import CONV2D
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    peel_remainder,
    vectorize_rows,
)
from tvm_edge.schedules.cpu.overlap import mark_tiles
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.knobs import CONFIG, read_knobs
from tvm_edge.schedules.stages import epilogue_of, fuse, fuse_axes, isolate, open_reduction
from tvm_edge.schedules.typical import typical

__all__ = [
    "Conv2dBlocked",
    "Knobs",
    "Loops",
    "OpenedConv",
    "Tile",
    "best_knobs",
    "candidates",
    "open_conv",
    "schedule_blocks",
    "seconds_of",
    "stride_of",
]

# Two multiply-adds start in a cycle, with a latency of four: fewer accumulators would wait.
_LATENCY = 8
# Input channels unrolled in a step. Sixteen outgrow the µop cache: half the speed.
_UNROLLED = 4

# Each block of filters is a stream of memory of its own: eight fall behind the prefetcher.
_MAX_BLOCKS = 4

Order = Literal["lines", "blocks"]


@dataclass(frozen=True)
class Knobs:
    """Knobs of a blocked convolution: its tiles and tasks.

    Attributes
    ----------
    lines, columns, blocks : int
        Pixels and blocks of output channels of a register tile.
    order : {"lines", "blocks"}
        What cores share out: pixels, each with all filters after another, or blocks of filters,
        each with all pixels.
    padding : {"task", "whole"}
        Pad the lines that a task reads, in it, or the image before all tasks.
    flat : bool
        Run through the pixels of an image as one line (1x1 kernels of stride one).
    """

    lines: int
    columns: int
    blocks: int
    order: Order
    padding: Literal["task", "whole"] = "whole"
    flat: bool = False


@dataclass(frozen=True)
class Tile:
    """The sizes that knobs are chosen by.

    Attributes
    ----------
    outer : int
        Independent problems: batch, or frequencies of Winograd's algorithm.
    blocks, lines, columns : int
        Blocks of output channels and pixels of one problem.
    steps : int
        Length of the reduction.
    window, strides : tuple of int
        Kernel size and strides along lines and columns.
    image_bytes, filter_bytes : int
        Of one problem; lines and columns of the image that no window touches do not count.
    lanes : int
        Output channels in a block.
    padded : bool
        Whether the image has to be padded.
    open_lines, open_columns : bool
        Whether only the run tells how many there are: the sizes are typical ones.
    """

    outer: int
    blocks: int
    lines: int
    columns: int
    steps: int
    window: tuple[int, int]
    strides: tuple[int, int]
    image_bytes: int
    filter_bytes: int
    lanes: int
    padded: bool
    open_lines: bool = False
    open_columns: bool = False

    @property
    def flattens(self) -> bool:
        """Return whether lines can be fused with columns."""
        fixed = not (self.open_lines or self.open_columns)
        return fixed and self.window == (1, 1) and self.strides == (1, 1) and not self.padded


def candidates(size: Tile, spec: DeviceSpec) -> list[Knobs]:
    """Knobs that are legal for a convolution, best first by the model of :func:`_cost`."""
    shapes = [size]
    if size.flattens and size.lines > 1:
        shapes.append(replace(size, lines=1, columns=size.lines * size.columns))
    found: list[tuple[float, int, Knobs]] = []
    for flat, shape in enumerate(shapes):
        for knobs in _legal(shape, spec):
            cost = _cost(shape, knobs, spec)
            found.append((cost, len(found), replace(knobs, flat=bool(flat))))
    return [knobs for _, _, knobs in sorted(found, key=lambda item: item[:2])]


def best_knobs(size: Tile, spec: DeviceSpec) -> Knobs:
    """The first of :func:`candidates`."""
    return candidates(size, spec)[0]


def seconds_of(size: Tile, knobs: Knobs, spec: DeviceSpec) -> float:
    """Latency of a convolution by the model that orders :func:`candidates`, in seconds."""
    if knobs.flat:
        size = replace(size, lines=1, columns=size.lines * size.columns)
    return _cost(size, knobs, spec) / (2e9 * _clock(spec))


def _legal(size: Tile, spec: DeviceSpec) -> Iterator[Knobs]:
    vectors = max(1, size.lanes // spec.lanes())
    for blocks in divisors(size.blocks, _MAX_BLOCKS):
        filters = blocks * vectors
        # Accumulators, the filters' vectors of a step, one broadcast element.
        most = max(1, (spec.vector_registers - filters - 1) // filters)
        for columns in range(1, min(most, size.columns) + 1):
            whole = columns == size.columns and not size.open_columns
            tall = range(1, min(most // columns, size.lines) + 1) if whole else [1]
            for lines in tall:
                if (lines * columns * filters + filters + 1) > spec.vector_registers and (
                    lines * columns * filters > 1
                ):
                    continue
                for order in ("lines", "blocks"):
                    # Tasks of pixels are whole tiles: nothing of a parallel loop can be peeled.
                    pixels = size.lines == 1 and not size.open_lines
                    cut = size.columns % columns and not size.open_columns
                    if order == "lines" and pixels and cut:
                        continue
                    if order == "lines" and size.lines % lines and not size.open_lines:
                        continue
                    for padding in ("task", "whole") if size.padded else ("whole",):
                        if padding == "task" and order == "blocks":
                            continue  # every task would pad the whole image
                        yield Knobs(lines, columns, blocks, order, padding)


def _cost(size: Tile, knobs: Knobs, spec: DeviceSpec) -> float:
    """Time of the busiest core, in half cycles: one multiply-add of vectors each."""
    vectors = max(1, size.lanes // spec.lanes())
    filters = knobs.blocks * vectors
    full, rest = divmod(size.columns, knobs.columns)
    if size.open_columns and rest:  # the last tile is a whole one
        full, rest = full + 1, 0
    row = full * _tile_cost(knobs.lines * knobs.columns, filters, size.steps)
    if rest:
        row += _tile_cost(knobs.lines * rest, filters, size.steps)
    line_tasks, lines_left = divmod(size.lines, knobs.lines)
    if lines_left and size.open_lines:
        line_tasks, lines_left = line_tasks + 1, 0
    if lines_left:  # the tile is as wide as the image, and a task has all lines
        row = line_tasks * row + _tile_cost(lines_left * size.columns, filters, size.steps)
        line_tasks = 1
    block_tasks = size.blocks // knobs.blocks
    if knobs.order == "lines" and size.lines == 1:
        line_tasks, row = full, row / full
    tasks = size.outer * line_tasks * (1 if knobs.padding == "task" else block_tasks)
    busiest = ceil(tasks / spec.cores) / tasks * size.outer * line_tasks * block_tasks * row
    cache = max(spec.l2_cache, spec.l1_cache) // 2
    # Bytes that come from beyond a core's own caches, and the half cycles of one of them: a quarter
    # of the memory's, the rest is read ahead of its use.
    per_byte = 2 * _clock(spec) / max(spec.bandwidth_gbs / spec.cores, 1e-3) / 4
    if knobs.order == "lines":
        reads = 1 if size.filter_bytes <= cache else ceil(line_tasks / spec.cores)
        traffic = size.filter_bytes * reads + size.image_bytes / spec.cores
    else:
        reads = 1 if size.image_bytes <= cache else ceil(block_tasks / spec.cores)
        traffic = size.filter_bytes / spec.cores + size.image_bytes * reads
    padding = 0.0
    if size.padded:
        copied = size.image_bytes / spec.simd_bytes / spec.cores
        if knobs.padding == "task":
            copied *= 1 + max(size.window[0] - size.strides[0], 0) / (knobs.lines * size.strides[0])
        else:
            # Written, and read again beyond the first cache; a parallel loop more.
            copied = 3 * copied + 2 * 1700 * _clock(spec)
        padding = size.outer * copied
    return busiest + size.outer * traffic * per_byte + padding


def _clock(spec: DeviceSpec) -> float:
    """Cycles per nanosecond, from the peak: two multiply-adds of vectors in a cycle."""
    return max(spec.peak_gflops / (spec.cores * spec.lanes() * 4), 1.0)


def _tile_cost(pixels: int, filters: int, steps: int) -> float:
    """Half cycles of a tile: its steps, then its accumulators are initialised and stored."""
    accumulators = pixels * filters
    # Measured: with two blocks and more all tiles that fit the registers reach the same speed;
    # with one block broadcasting the pixels takes longer than multiplying them.
    step = max(accumulators, 1.2 * pixels, _LATENCY) + 0.8
    return steps * step + 6 * accumulators


@dataclass(frozen=True)
class OpenedConv:
    """A blocked convolution that is to be scheduled.

    Attributes
    ----------
    sch : Schedule
    block, epilogue : SBlockRV
        The reduction, and the block that writes the result.
    stage : SBlockRV or None
        What pads the image.
    """

    sch: Schedule
    block: SBlockRV
    epilogue: SBlockRV
    stage: SBlockRV | None

    def knobs(self, size: Tile, spec: DeviceSpec) -> Knobs:
        """Knobs that its workload was given, or else the best by estimate."""
        config = self.sch.get(self.block).annotations.get(CONFIG)
        return read_knobs(Knobs, str(config)) if config else best_knobs(size, spec)

    def begun(
        self, knobs: Knobs, spec: DeviceSpec, inner: int, *, vectorize: bool = True
    ) -> tuple[SBlockRV, list[SBlockRV]]:
        """Tile it; return the split-off initialisation and the blocks that are scheduled.

        Parameters
        ----------
        knobs : Knobs
        spec : DeviceSpec
        inner : int
            Loops inside those that :class:`Loops` names.
        vectorize : bool
            As for :func:`schedule_blocks`.
        """
        sch, block = self.sch, self.block
        if knobs.flat:
            fuse_axes(sch, block, self.epilogue, 2)
        own = sch.get_loops(block)
        n, o, *pixels, lane, co, ky, kx, step = own[: len(own) - inner]
        y = None if knobs.flat else pixels[0]
        loops = Loops([n], o, y, pixels[-1], lane, [co, ky, kx, step])
        task, first = schedule_blocks(sch, block, self.epilogue, knobs, loops, vectorize=vectorize)
        done = [block, self.epilogue]
        if self.stage is not None and knobs.padding == "task":
            sch.compute_at(self.stage, task, preserve_unit_loops=True)
            vectorize_rows(sch, self.stage, spec)
            done.append(self.stage)
        # After which TVM moves no producer of it.
        begin = sch.decompose_reduction(block, first)
        if not knobs.flat:
            for axis, length in ((2, knobs.lines), (3, knobs.columns)):
                if constant(sch.get(self.epilogue).iter_vars[axis].dom.extent) is None:
                    mark_tiles(sch, [begin, block, self.epilogue], axis, length)
        return begin, done


def open_conv(func: tirx.PrimFunc, name: str) -> OpenedConv | None:
    """Open a function whose one reduction is a blocked convolution of this name."""
    opened = open_reduction(func)
    if opened is None:
        return None
    sch, block = opened
    if not sch.get(block).name_hint.startswith(name):
        return None
    stage = isolate(sch, block, sch.get(block).reads[0].source)
    epilogue = epilogue_of(sch, block)
    column = sch.get_loops(block)[3]
    fixed = all(constant(var.dom.extent) is not None for var in sch.get(block).iter_vars[:4])
    if fixed and not can_peel(sch, column):
        return None
    return OpenedConv(sch, block, epilogue, stage)


class Conv2dBlocked(ScheduleRule):
    """Convolutions of :func:`tvm_edge.schedules.blocked.conv2d` that sum over channels."""

    name = "conv2d_blocked"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction is such a convolution."""
        conv = open_conv(func, CONV2D)
        if conv is None:
            return None
        size = conv_tile(conv.sch.get(conv.block), padded=conv.stage is not None)
        _, done = conv.begun(conv.knobs(size, spec), spec, 0)
        schedule_rest(conv.sch, done, spec)
        return conv.sch


def touched(nbytes: int, window: tuple[int, int], strides: tuple[int, int]) -> int:
    """The part of an image that windows read."""
    for size, stride in zip(window, strides, strict=True):
        nbytes = nbytes * min(size, stride) // stride
    return nbytes


def stride_of(size: int, outputs: int, window: int) -> int:
    """The stride that takes `outputs` windows out of a padded image; 1 for a single one."""
    return 1 if outputs == 1 else max(1, (size - window) // (outputs - 1))


def conv_tile(stmt: s_tir.SBlock, *, padded: bool) -> Tile:
    """The sizes of a blocked convolution, read off its block."""
    n, o, y, x, v, co, ky, kx, ci = (typical(var.dom.extent) for var in stmt.iter_vars)
    image, filters = (region.source for region in stmt.reads)
    lines, columns = (typical(dim) for dim in image.shape[2:4])
    open_axes = [constant(stmt.iter_vars[axis].dom.extent) is None for axis in (2, 3)]
    strides = (stride_of(lines, y, ky), stride_of(columns, x, kx))
    return Tile(
        outer=n,
        blocks=o,
        lines=y,
        columns=x,
        steps=co * ky * kx * ci,
        window=(ky, kx),
        strides=strides,
        image_bytes=touched(4 * prod(typical(dim) for dim in image.shape[1:]), (ky, kx), strides),
        filter_bytes=4 * prod(typical(dim) for dim in filters.shape),
        lanes=v,
        padded=padded,
        open_lines=open_axes[0],
        open_columns=open_axes[1],
    )


@dataclass(frozen=True)
class Loops:
    """The loops of a blocked product, by the part they play.

    Attributes
    ----------
    outer : sequence of LoopRV
        Batch; frequencies.
    blocks, columns, lane : LoopRV
    lines : LoopRV or None
        ``None`` where pixels are one line.
    reduction : sequence of LoopRV
        Outermost first, the last one over the channels of a block.
    """

    outer: Sequence[LoopRV]
    blocks: LoopRV
    lines: LoopRV | None
    columns: LoopRV
    lane: LoopRV
    reduction: Sequence[LoopRV]


def schedule_blocks(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV,
    knobs: Knobs,
    loops: Loops,
    *,
    vectorize: bool = True,
) -> tuple[LoopRV, LoopRV]:
    """Cut a reduction over blocks of channels into tasks and register tiles.

    Parameters
    ----------
    block : SBlock
        The reduction; its accumulators move into registers.
    epilogue : SBlock
        The only block that reads them, over the same axes.
    vectorize : bool
        Whether lanes are a vector loop, and not the caller's.

    Returns
    -------
    task : LoopRV
        The loop over tasks, parallel where there is work for several cores.
    first : LoopRV
        The outermost loop of the reduction, where the caller splits off the initialisation.
    """
    sizes = [typical(sch.get(loop).extent) for loop in sch.get_loops(block)]
    vectors = prod(sizes) // (extent(sch, loops.lane) or 1)
    sch.set_scope(block, 0, "local")
    *window, channel = loops.reduction
    blocks, inner_block = sch.split(loops.blocks, factors=[None, knobs.blocks])
    rest = _remainder(sch, loops.columns, knobs.columns)
    columns, column = sch.split(loops.columns, factors=[None, knobs.columns])
    if rest:
        peel_remainder(sch, [columns, column])
    unrolled = divisors(extent(sch, channel) or 1, _UNROLLED)[-1]
    steps, step = sch.split(channel, factors=[None, unrolled])
    inner = [column, inner_block]
    lines: LoopRV | None = None
    ragged = False
    if loops.lines is not None:
        ragged = _remainder(sch, loops.lines, knobs.lines)
        lines, line = sch.split(loops.lines, factors=[None, knobs.lines])
        if ragged:
            peel_remainder(sch, [lines, line])
        inner.insert(0, line)
    if knobs.order == "blocks":
        own = [] if lines is None else [lines]
        tasks = [*loops.outer, blocks, *([] if ragged else own)]
        serial = [*(own if ragged else []), columns]
    else:
        along = lines is not None and extent(sch, lines) != 1
        pixels = [loop for loop in (lines, None if along else columns) if loop is not None]
        shared = knobs.padding == "whole"
        tasks = [*loops.outer, *pixels, *([blocks] if shared else [])]
        serial = [*([] if shared else [blocks]), *([columns] if along else [])]
    sch.reorder(*tasks, *serial, *window, steps, step, *inner, loops.lane)
    task = fuse(sch, tasks)
    if vectors >= MIN_PARALLEL_WORK:
        sch.parallel(task)
    for loop in (step, *inner):
        sch.unroll(loop)
    if vectorize:
        sch.vectorize(loops.lane)
    sch.reverse_compute_at(epilogue, serial[-1] if serial else task, preserve_unit_loops=True)
    *unrolled, lane = sch.get_loops(epilogue)[-(len(inner) + 1) :]
    if rest:
        peel_remainder(sch, [unrolled[-1]])
    if ragged:
        peel_remainder(sch, [unrolled[-2]])
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)
    return task, [*window, steps][0]


def _remainder(sch: Schedule, loop: LoopRV, size: int) -> bool:
    """Return whether the last of the tiles of a loop is a shorter one, which has to be peeled."""
    length = extent(sch, loop)
    return length is not None and length % size != 0
