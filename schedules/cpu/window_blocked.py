"""Depthwise convolution and pooling of blocked images: lanes are channels, taps are unrolled.

A task is some lines of one block of channels. It pads them for itself, so that the copy is still
in the core's cache when the kernel reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import accesses, constant, stride
from tvm_edge.schedules.analysis import extent
from tvm_edge.schedules.cpu.blocked_knobs import stride_of
from tvm_edge.schedules.cpu.float16_runs import (
    can_run,
    multiplies_float16,
    read_float16,
    split_runs,
)
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    peel_remainder,
    vectorize_rows,
)
from tvm_edge.schedules.cpu.overlap import mark_parts, mark_tiles, small_tile
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.cpu.unpack import unpack_in_task, unpacking_of
from tvm_edge.schedules.cpu.window_knobs import (
    WindowKnobs,
    WindowSize,
    best_window_knobs,
    holds_taps,
)
from tvm_edge.schedules.knobs import CONFIG, read_knobs
from tvm_edge.schedules.stages import ReductionRule, epilogue_of, fuse, isolate
from tvm_edge.schedules.typical import typical

__all__ = ["WindowBlocked", "Windows", "schedule_windows", "size_of_windows"]

_MAX_TAPS = 49


class WindowBlocked(ReductionRule):
    """Windows over lines and columns of ``[N, C/b, H, W, b]``."""

    name = "window_blocked"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it goes over such windows."""
        data = _windowed(sch.get(block), spec)
        if data is None:
            return None
        *_, y, x, _, _, _ = sch.get(block).iter_vars
        open_axes = {
            axis: var.dom.extent
            for axis, var in ((2, y), (3, x))
            if constant(var.dom.extent) is None
        }
        if not open_axes and not can_peel(sch, sch.get_loops(block)[3]):
            return None
        in_float16 = multiplies_float16(sch.mod["main"], spec)
        windows = schedule_windows(sch, block, data, spec, in_float16=in_float16)
        begin = sch.decompose_reduction(block, windows.first)
        marked = [begin, block, windows.epilogue]
        if 2 in open_axes:
            mark_parts(sch, marked, 2, windows.knobs.lines)
        if 3 in open_axes:
            columns = windows.knobs.columns
            mark_tiles(sch, marked, 3, columns, small_tile(columns, 1))
        schedule_rest(sch, windows.done, spec)
        return sch


@dataclass(frozen=True)
class Windows:
    """Remaining work after :func:`schedule_windows`.

    Attributes
    ----------
    first : LoopRV
        The outermost loop of the reduction, where its initialisation is to be split off.
    epilogue : SBlockRV
        The block that reads the accumulators.
    done : list of SBlockRV
        Blocks with a schedule.
    knobs : WindowKnobs
    """

    first: LoopRV
    epilogue: SBlockRV
    done: list[SBlockRV]
    knobs: WindowKnobs


def schedule_windows(
    sch: Schedule,
    block: SBlockRV,
    data: tirx.Buffer,
    spec: DeviceSpec,
    *,
    vectorize: bool = True,
    shifts: int = 1,
    in_float16: bool = False,
) -> Windows:
    """Cut a reduction over windows of `data` into tasks and register tiles.

    By the knobs that its workload was given, or else the best by estimate.

    Parameters
    ----------
    block : SBlockRV
        Over batch, blocks, lines, columns and lanes; summed over lines and columns of a window,
        and maybe over products in a lane.
    vectorize : bool
        Whether lanes are a vector loop, and not the caller's.
    shifts : int
        Neighbouring results that read the same pixels.
    in_float16 : bool
        Whether products of float16, and the largest of such numbers, are found in float16.
    """
    stage = isolate(sch, block, data)
    epilogue = epilogue_of(sch, block)
    in_float16 = in_float16 and can_run(sch.get(block))
    if in_float16:
        stage = read_float16(sch, stage)
        in_float16 = split_runs(sch, block)
        data = sch.get(block).reads[0].source
    size = size_of_windows(sch.get(block), data, padded=stage is not None, shifts=shifts)
    size = replace(size, element=2 if in_float16 else 4)
    config = sch.get(block).annotations.get(CONFIG)
    knobs = read_knobs(WindowKnobs, str(config)) if config else best_window_knobs(size, spec)
    n, o, y, x, lane, ky, kx, *_ = sch.get_loops(block)
    work = prod(typical(sch.get(loop).extent) for loop in sch.get_loops(block))
    sch.set_scope(block, 0, "local")
    chunks, line = sch.split(y, factors=[None, knobs.lines])
    rest = extent(sch, x) is not None and size.columns % knobs.columns
    columns, column = sch.split(x, factors=[None, knobs.columns])
    if rest:
        peel_remainder(sch, [columns, column])
    unpacking = unpacking_of(sch, epilogue, 1)
    # Cores that write lines of the same channel would share cache lines where one ends.
    by_lines = knobs.order == "lines" and unpacking is None
    shared = [chunks, o] if by_lines else [o, chunks]
    sch.reorder(n, *shared, line, columns, ky, kx, column, lane)
    task = fuse(sch, [n, *shared])
    if work >= MIN_PARALLEL_WORK * size.lanes:
        sch.parallel(task)
    if vectorize:
        sch.vectorize(lane)
    taps = (ky, kx) if holds_taps(size, spec) else (kx,)
    for loop in (*(taps if size.taps <= _MAX_TAPS else ()), column):
        sch.unroll(loop)
    sch.reverse_compute_at(epilogue, columns, preserve_unit_loops=True)
    column, lane = sch.get_loops(epilogue)[-2:]
    if rest:
        peel_remainder(sch, [column])
    sch.unroll(column)
    sch.vectorize(lane)
    done = [block, epilogue]
    if unpacking is not None:
        unpack_in_task(sch, unpacking, task, spec)
        done.append(unpacking)
    if stage is not None:
        sch.compute_at(stage, task, preserve_unit_loops=True)
        vectorize_rows(sch, stage, spec)
        done.append(stage)
    return Windows(ky, epilogue, done, knobs)


def _windowed(block: s_tir.SBlock, spec: DeviceSpec) -> tirx.Buffer | None:
    """The image that a block has windows over, ``None`` for any other block."""
    kinds = [var.iter_type for var in block.iter_vars]
    expected = [tirx.IterVar.DataPar] * 5 + [tirx.IterVar.CommReduce] * 2
    if kinds != expected or not isinstance(block.body, tirx.BufferStore):
        return None
    sizes = [constant(var.dom.extent) for var in block.iter_vars]
    if 0 in sizes or None in sizes[4:] or not _is_block(sizes[4] or 0, spec):
        return None
    lane = block.iter_vars[4].var
    found = accesses(block)[0]
    if any(stride(access, lane) != 1 for access in found):
        return None
    own = [a.buffer for a in found if not a.is_store and len(a.buffer.shape) == 5]
    images = [b for b in own if not b.same_as(block.writes[0].source)]
    return images[0] if images else None


def _is_block(size: int, spec: DeviceSpec) -> bool:
    """Return whether the last axis makes whole vectors, or is one shorter vector."""
    return size % spec.lanes() == 0 or (size >= 4 and spec.lanes() % size == 0)


def size_of_windows(
    block: s_tir.SBlock, data: tirx.Buffer, *, padded: bool, shifts: int = 1
) -> WindowSize:
    """The sizes of a reduction over windows of `data`, read off its block."""
    n, o, y, x, v, ky, kx, *_ = (typical(var.dom.extent) for var in block.iter_vars)
    shape = [typical(dim) for dim in data.shape]
    nbytes = data.dtype.bits // 8
    return WindowSize(
        batch=n,
        blocks=o,
        lines=y,
        columns=x,
        lanes=v,
        window=(ky, kx),
        stride=stride_of(shape[2], y, ky),
        line_bytes=prod(shape[3:]) * nbytes,
        image_bytes=prod(shape) * nbytes,
        padded=padded,
        shifts=shifts,
    )
