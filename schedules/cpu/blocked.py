"""Dense and grouped convolutions of blocked images: register tiles of pixels by blocks of filters.

The accumulators of `lines` x `columns` pixels and `blocks` output channel blocks stay in vector
registers through the whole reduction. Each step of it loads one vector of filters per block and
broadcasts one element of the image per pixel. Pixels are the outer loop of a step and blocks the
inner one: LLVM keeps the filters' vectors in registers that way, the other way round it spills
(190 against 60 GFLOP/s a core for 14 pixels by 2 blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import accepts, divisors, extent
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.blocked import CONV2D
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, Tile, best_knobs, stride_of, touched
from tvm_edge.schedules.cpu.float16_runs import (
    fills_float16,
    has_runs,
    multiplies_float16,
    read_float16,
    run_length,
    split_runs,
)
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    peel_remainder,
    vectorize_rows,
)
from tvm_edge.schedules.cpu.overlap import mark_tiles, small_tile
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.cpu.unpack import unpack_in_task, unpacking_of
from tvm_edge.schedules.float16 import is_half
from tvm_edge.schedules.knobs import CONFIG, read_knobs
from tvm_edge.schedules.stages import (
    epilogue_of,
    fuse,
    fuse_axes,
    fuse_stage,
    isolate,
    open_reduction,
)
from tvm_edge.schedules.taps import CHANNELS, PHASES, REACH, read_reaches
from tvm_edge.schedules.typical import typical

__all__ = [
    "Conv2dBlocked",
    "Loops",
    "OpenedConv",
    "open_conv",
    "schedule_blocks",
]

# Input channels unrolled in a step. Sixteen outgrow the µop cache: half the speed.
_UNROLLED = 4
_UNROLLED_IN_ORDER = 16
# In float16 a vector of Arm's has eight of them.
_UNROLLED_FLOAT16 = 8
_PLAIN = 4  # axes of an image without blocks


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
        """Knobs that its workload was given, or else the best by estimate.

        Those of a record from before taps were skipped may be of larger tiles.
        """
        config = self.sch.get(self.block).annotations.get(CONFIG)
        knobs = read_knobs(Knobs, str(config)) if config else best_knobs(size, spec)
        return knobs if size.takes(knobs) else best_knobs(size, spec)

    def begun(
        self,
        knobs: Knobs,
        spec: DeviceSpec,
        inner: int,
        *,
        vectorize: bool = True,
        taps: int = 0,
    ) -> tuple[SBlockRV, list[SBlockRV]]:
        """Tile it; return the split-off initialisation and the blocks that are scheduled.

        Parameters
        ----------
        knobs : Knobs
        spec : DeviceSpec
        inner : int
            Loops inside those that :class:`Loops` names.
        vectorize, taps
            As for :func:`schedule_blocks`.
        """
        sch, block = self.sch, self.block
        # Tiles of a line of all pixels are no lines.
        has_lines = not knobs.flat or knobs.order == "blocks"
        unpacking = unpacking_of(sch, self.epilogue, knobs.blocks) if has_lines else None
        if knobs.flat:
            fuse_axes(sch, block, self.epilogue, 2)
            if self.stage is not None:
                fuse_stage(sch, self.stage, 2)
        own = sch.get_loops(block)
        n, o, *pixels, lane, co, ky, kx, step = own[: len(own) - inner]
        y = None if knobs.flat else pixels[0]
        phases: list[LoopRV] = []
        if unpacking is not None and PHASES in sch.get(block).annotations:
            strides = str(sch.get(block).annotations[PHASES]).split()[::3]
            n, phase = sch.split(n, factors=[None, prod(map(int, strides))])
            phases = [phase]
        loops = Loops([n], o, y, pixels[-1], lane, [co, ky, kx, step], phases)
        task, first = schedule_blocks(
            sch,
            block,
            self.epilogue,
            knobs,
            loops,
            vectorize=vectorize,
            in_order=spec.in_order and vectorize,
            taps=taps,
        )
        done = [block, self.epilogue]
        if unpacking is not None:
            unpack_in_task(sch, unpacking, task, spec)
            done.append(unpacking)
        if self.stage is not None and knobs.padding == "task":
            sch.compute_at(self.stage, task, preserve_unit_loops=True)
            vectorize_rows(sch, self.stage, spec)
            done.append(self.stage)
        # After which TVM moves no producer of it.
        begin = sch.decompose_reduction(block, first)
        if not knobs.flat:
            vectors = knobs.blocks * max(1, (extent(sch, lane) or 1) // spec.lanes())
            beside = knobs.columns * vectors
            for axis, length, own in ((2, knobs.lines, beside), (3, knobs.columns, vectors)):
                if _ends_anywhere(sch.get(self.epilogue).iter_vars[axis], length):
                    small = small_tile(length, own)
                    mark_tiles(sch, [begin, block, self.epilogue], axis, length, small)
        return begin, done


def open_conv(func: tirx.PrimFunc, name: str) -> OpenedConv | None:
    """Open a function whose one reduction is a blocked convolution of this name."""
    opened = open_reduction(func, name)
    if opened is None:
        return None
    sch, block = opened
    # What puts phases side by side stays apart from what unpacks them.
    last = func.params[-1]
    plain = isinstance(last.ty, tirx.BufferType) and len(last.shape) == _PLAIN
    stage = isolate(sch, block, sch.get(block).reads[0].source, ["phases"] if plain else [])
    epilogue = epilogue_of(sch, block)
    if PHASES in sch.get(block).annotations:
        # What puts phases side by side is where accumulators are stored then. TVM would store
        # those that are cut off as well.
        for consumer in sch.get_consumers(epilogue):
            if _has_all(sch.get(consumer), sch.get(epilogue)):
                accepts(sch.reverse_compute_inline, consumer)
    column = sch.get_loops(block)[3]
    fixed = all(constant(var.dom.extent) is not None for var in sch.get(block).iter_vars[:4])
    if fixed and not can_peel(sch, column):
        return None
    return OpenedConv(sch, block, epilogue, stage)


def _has_all(consumer: s_tir.SBlock, producer: s_tir.SBlock) -> bool:
    """Return whether a block is known to have as many elements as the one that it reads."""
    sizes = ([constant(v.dom.extent) for v in b.iter_vars] for b in (consumer, producer))
    one, other = (0 if None in own else prod(n or 0 for n in own) for own in sizes)
    return one == other > 0


class Conv2dBlocked(ScheduleRule):
    """Convolutions of :func:`tvm_edge.schedules.blocked.conv2d` that sum over channels."""

    name = "conv2d_blocked"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction is such a convolution."""
        conv = open_conv(func, CONV2D)
        if conv is None:
            return None
        size = conv_tile(conv.sch.get(conv.block), padded=conv.stage is not None)
        conv, size = _in_float16(func, conv, size, spec)
        _, done = conv.begun(conv.knobs(size, spec), spec, 0)
        schedule_rest(conv.sch, done, spec)
        return conv.sch


def _in_float16(
    func: tirx.PrimFunc, conv: OpenedConv, size: Tile, spec: DeviceSpec
) -> tuple[OpenedConv, Tile]:
    """Have products of float16 added up in float16, if that is asked for."""
    asked = size.widened and multiplies_float16(func, spec)
    if not asked or not fills_float16(size.lanes, spec):
        return conv, size
    stage = read_float16(conv.sch, conv.stage)
    conv, size = replace(conv, stage=stage), replace(size, padded=stage is not None)
    if not split_runs(conv.sch, conv.block, run_length(spec)):
        return conv, size
    return conv, replace(size, widened=False, element=2)


def conv_tile(stmt: s_tir.SBlock, *, padded: bool) -> Tile:
    """The sizes of a blocked convolution, read off its block."""
    n, o, y, x, v, co, ky, kx, ci = (typical(var.dom.extent) for var in stmt.iter_vars)
    image, filters = (region.source for region in stmt.reads)
    lines, columns = (typical(dim) for dim in image.shape[2:4])
    open_axes = [constant(stmt.iter_vars[axis].dom.extent) is None for axis in (2, 3)]
    text, pixels = stmt.annotations.get(REACH), (0, 0)
    reach = None if text is None else read_reaches(str(text))
    if reach is not None:
        pixels = (lines, columns - reach[1].before - reach[1].after)
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
        filter_bytes=filters.dtype.bits // 8 * prod(typical(dim) for dim in filters.shape),
        lanes=v,
        padded=padded,
        open_lines=open_axes[0],
        open_columns=open_axes[1],
        reach=reach,
        image=pixels,
        widened=is_half(filters.dtype),
        skips_channels=CHANNELS in stmt.annotations,
        scalars=ci == 1,
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
    phases : sequence of LoopRV
        Those of a transposed convolution, where a task has all of them.
    """

    outer: Sequence[LoopRV]
    blocks: LoopRV
    lines: LoopRV | None
    columns: LoopRV
    lane: LoopRV
    reduction: Sequence[LoopRV]
    phases: Sequence[LoopRV] = ()


def schedule_blocks(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV,
    knobs: Knobs,
    loops: Loops,
    *,
    vectorize: bool = True,
    in_order: bool = False,
    taps: int = 0,
) -> tuple[LoopRV, LoopRV]:
    """Cut a reduction over blocks of channels into tasks and register tiles.

    Parameters
    ----------
    block : SBlock
        The reduction; its accumulators move into registers.
    epilogue : SBlock
        The only block that reads them, or a copy of them, over the same axes.
    vectorize : bool
        Whether lanes are a vector loop, and not the caller's.
    in_order : bool
        Whether a core waits for the first loads of an iteration: it gets more steps then.
    taps : int
        Most taps of a window that such steps are, and not channels; 0: `in_order` decides.

    Returns
    -------
    task : LoopRV
        The loop over tasks, parallel where there is work for several cores and no loop around is.
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
    most = _UNROLLED_FLOAT16 if has_runs(sch.get(block)) else _UNROLLED
    unrolled = divisors(extent(sch, channel) or 1, most)[-1]
    steps, step = sch.split(channel, factors=[None, unrolled])
    more: list[LoopRV] = []
    if unrolled > 1 and (taps or in_order):
        most = taps or max(_UNROLLED_IN_ORDER // unrolled, 1)
        more = _unroll_more(sch, block, window, most, first=1 if taps else 0)
    inner = [column, inner_block]
    lines: LoopRV | None = None
    ragged = False
    if loops.lines is not None:
        ragged = _remainder(sch, loops.lines, knobs.lines)
        lines, line = sch.split(loops.lines, factors=[None, knobs.lines])
        if ragged:
            peel_remainder(sch, [lines, line])
        inner.insert(0, line)
    if knobs.order != "lines":
        own = [] if lines is None else [lines]
        tasks = [*loops.outer, blocks, *([] if ragged else own)]
        serial = [*(own if ragged else []), columns]
    else:
        along = lines is not None and extent(sch, lines) != 1
        pixels = [loop for loop in (lines, None if along else columns) if loop is not None]
        shared = knobs.padding == "whole"
        tasks = [*loops.outer, *pixels, *([blocks] if shared else [])]
        serial = [*([] if shared else [blocks]), *([columns] if along else [])]
    serial = [*loops.phases, *serial]
    sch.reorder(*tasks, *serial, *window, steps, *more, step, *inner, loops.lane)
    task = fuse(sch, tasks)
    if vectors >= MIN_PARALLEL_WORK and knobs.order != "fused":
        sch.parallel(task)
    for loop in (*more, step, *inner):
        sch.unroll(loop)
    if vectorize:
        sch.vectorize(loops.lane)
    _place_consumers(sch, block, epilogue, serial[-1] if serial else task)
    _unroll_epilogue(sch, epilogue, len(inner), [-1] * rest + [-2] * ragged)
    return task, [*window, steps][0]


def _place_consumers(sch: Schedule, block: SBlockRV, epilogue: SBlockRV, tile: LoopRV) -> None:
    """Have what reads the accumulators follow each tile: a copy of them first, if there is one."""
    own = sch.get(epilogue)
    copies = [one for one in sch.get_consumers(block) if not sch.get(one).same_as(own)]
    for consumer in (*copies, epilogue):
        sch.reverse_compute_at(consumer, tile, preserve_unit_loops=True)


def _unroll_epilogue(sch: Schedule, epilogue: SBlockRV, count: int, cut: Sequence[int]) -> None:
    """Unroll the innermost `count` loops around a tile's lanes; at `cut` the last tile is less."""
    *unrolled, lane = sch.get_loops(epilogue)[-(count + 1) :]
    for place in cut:
        peel_remainder(sch, [unrolled[place]])
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)


def _unroll_more(
    sch: Schedule, block: SBlockRV, window: list[LoopRV], most: int, *, first: int
) -> list[LoopRV]:
    """Split steps to unroll off the innermost loop of `window` that has several, if any can be.

    Where steps are skipped, each iteration has a condition. Channels that are read one by one are
    no vector to take elements of, and without a loop LLVM orders all steps at once, and spills.
    """
    left = prod(extent(sch, loop) or 1 for loop in window)
    if not {REACH, CHANNELS, PHASES}.isdisjoint(map(str, sch.get(block).annotations)):
        return []
    for place in reversed(range(first, len(window))):
        length = extent(sch, window[place]) or 1
        if length > 1:
            count = divisors(length, most)[-1]
            if count in (1, left):
                return []
            window[place], more = sch.split(window[place], factors=[None, count])
            return [more]
    return []


def _ends_anywhere(axis: tirx.IterVar, tile: int) -> bool:
    """Return whether an axis has a remainder that cannot be peeled, or only the run knows."""
    length = constant(axis.dom.extent)
    return length is None or (length % tile != 0 and str(axis.var.ty.dtype) != "int32")


def _remainder(sch: Schedule, loop: LoopRV, size: int) -> bool:
    """Return whether the last of the tiles of a loop is a shorter one, which has to be peeled."""
    return can_peel(sch, loop) and (extent(sch, loop) or 0) % size != 0
