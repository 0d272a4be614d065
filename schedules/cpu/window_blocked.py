"""Depthwise convolution and pooling of blocked images: lanes are channels, taps are unrolled.

A task is some lines of one block of channels. It pads them for itself, so that the copy is still
in the core's cache when the kernel reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import accesses, constant, stride
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.cpu.blocked import stride_of
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    peel_remainder,
    vectorize_rows,
)
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.stages import epilogue_of, fuse, isolate, open_reduction

__all__ = ["WindowBlocked", "Windows", "schedule_windows"]

_MAX_TAPS = 49
_MAX_COLUMNS = 8


@dataclass(frozen=True)
class _Tile:
    """Columns of a register tile, and lines of a task."""

    columns: int
    lines: int


class WindowBlocked:
    """Windows over lines and columns of ``[N, C/b, H, W, b]``."""

    name = "window_blocked"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction goes over such windows."""
        opened = open_reduction(func)
        if opened is None:
            return None
        sch, block = opened
        data = _windowed(sch.get(block), spec)
        if data is None or not can_peel(sch, sch.get_loops(block)[3]):
            return None
        windows = schedule_windows(sch, block, data, spec)
        sch.decompose_reduction(block, windows.first)
        schedule_rest(sch, windows.done, spec)
        return sch


@dataclass(frozen=True)
class Windows:
    """What :func:`schedule_windows` leaves to be done.

    Attributes
    ----------
    first : LoopRV
        The outermost loop of the reduction, where its initialisation is to be split off.
    epilogue : SBlockRV
        What reads the sums.
    done : list of SBlockRV
        Blocks with a schedule.
    """

    first: LoopRV
    epilogue: SBlockRV
    done: list[SBlockRV]


def schedule_windows(
    sch: Schedule, block: SBlockRV, data: tirx.Buffer, spec: DeviceSpec, *, vectorize: bool = True
) -> Windows:
    """Cut a reduction over windows of `data` into tasks and register tiles.

    Parameters
    ----------
    block : SBlockRV
        Over batch, blocks, lines, columns and lanes; summed over lines and columns of a window,
        and maybe over products in a lane.
    vectorize : bool
        Whether lanes are a vector loop, and not the caller's.
    """
    stage = isolate(sch, block, data)
    epilogue = epilogue_of(sch, block)
    sizes = [extent(sch, loop) or 1 for loop in sch.get_loops(block)]
    step = stride_of(constant(data.shape[2]) or 1, sizes[2], sizes[5])
    tile = _choose(sizes[:7], step, _line_bytes(data), spec, padded=stage is not None)
    n, o, y, x, lane, ky, kx, *_ = sch.get_loops(block)
    sch.set_scope(block, 0, "local")
    chunks, line = sch.split(y, factors=[None, tile.lines])
    rest = sizes[3] % tile.columns
    columns, column = sch.split(x, factors=[None, tile.columns])
    if rest:
        peel_remainder(sch, [columns, column])
    # Large images come from a convolution whose cores had lines of them, small ones from one
    # whose cores had channels: what a core wrote is in its own cache.
    image = prod(constant(dim) or 1 for dim in data.shape) * data.dtype.bits // 8
    shared = [chunks, o] if image > spec.l2_cache // 4 else [o, chunks]
    sch.reorder(n, *shared, line, columns, ky, kx, column, lane)
    task = fuse(sch, [n, *shared])
    if prod(sizes) >= MIN_PARALLEL_WORK * sizes[4]:
        sch.parallel(task)
    if vectorize:
        sch.vectorize(lane)
    taps = sizes[5] * sizes[6]
    for loop in (*((ky, kx) if taps <= _MAX_TAPS else ()), column):
        sch.unroll(loop)
    sch.reverse_compute_at(epilogue, columns, preserve_unit_loops=True)
    column, lane = sch.get_loops(epilogue)[-2:]
    if rest:
        peel_remainder(sch, [column])
    sch.unroll(column)
    sch.vectorize(lane)
    done = [block, epilogue]
    if stage is not None:
        sch.compute_at(stage, task, preserve_unit_loops=True)
        vectorize_rows(sch, stage, spec)
        done.append(stage)
    return Windows(ky, epilogue, done)


def _windowed(block: s_tir.SBlock, spec: DeviceSpec) -> tirx.Buffer | None:
    """The image that a block has windows over, ``None`` for any other block."""
    kinds = [var.iter_type for var in block.iter_vars]
    expected = [tirx.IterVar.DataPar] * 5 + [tirx.IterVar.CommReduce] * 2
    if kinds != expected or not isinstance(block.body, tirx.BufferStore):
        return None
    sizes = [constant(var.dom.extent) for var in block.iter_vars]
    if None in sizes or 0 in sizes or not _is_block(sizes[4] or 0, spec):
        return None
    lane = block.iter_vars[4].var
    found = accesses(block)[0]
    if any(stride(access, lane) != 1 for access in found):
        return None
    own = [a.buffer for a in found if not a.is_store and len(a.buffer.shape) == 5]
    images = [b for b in own if not b.same_as(block.writes[0].source)]
    return images[0] if images else None


def _is_block(size: int, spec: DeviceSpec) -> bool:
    """Whether the last axis makes whole vectors, or is one shorter vector."""
    return size % spec.lanes() == 0 or (size >= 4 and spec.lanes() % size == 0)


def _line_bytes(image: tirx.Buffer) -> int:
    """Bytes of a line of one block of channels."""
    return prod(constant(dim) or 1 for dim in image.shape[3:]) * image.dtype.bits // 8


def _choose(
    sizes: list[int], stride: int, line_bytes: int, spec: DeviceSpec, *, padded: bool
) -> _Tile:
    """A tile that the registers hold, and tasks whose padded lines stay in the first cache.

    Tiles of one line are as fast as taller ones, which reuse what they load. Tasks of few lines
    copy many of them twice: twice as many lines as a window reaches beyond its own are enough.
    """
    _, _, lines, width, lanes, kernel_h, kernel_w = sizes
    vectors = max(1, lanes // spec.lanes())
    taps = kernel_h * kernel_w
    # The filter's taps stay in registers beside the sums where there is room.
    room = (spec.vector_registers - min(taps, spec.vector_registers // 3) - 2) // vectors
    most = max(1, min(width, _MAX_COLUMNS, room))
    columns = min(range(1, most + 1), key=lambda c: (ceil(width / c) * (c * taps + 4), -c))
    beyond = max(kernel_h - stride, 0)
    held = spec.l1_cache // 3 // line_bytes - beyond  # lines of the image
    fits = [d for d in divisors(lines) if d * stride <= held]
    if padded:
        enough = [d for d in divisors(lines) if d * stride >= 2 * beyond]
        fits = [max(fits[-1:] + enough[:1], default=lines)]
    chunk = fits[-1] if fits else 1
    while chunk > 1 and sizes[0] * sizes[1] * (lines // chunk) % spec.cores:
        chunk = divisors(lines, chunk - 1)[-1]  # tasks of equal number for all cores
    return _Tile(columns, chunk)
