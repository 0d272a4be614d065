"""Depthwise convolution and pooling of blocked images: lanes are channels, taps are unrolled.

A task is some lines of one block of channels. It pads them for itself, so that the copy is still
in the core's cache when the kernel reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import accesses, constant, stride
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    peel_remainder,
    vectorize_rows,
)
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.stages import epilogue_of, fuse, isolate, open_reduction

__all__ = ["WindowBlocked"]

_MAX_TAPS = 49
_MAX_COLUMNS = 14


@dataclass(frozen=True)
class _Tile:
    """Pixels of a register tile, and tiles of lines in a task."""

    lines: int
    columns: int
    tall: int


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
        stage = isolate(sch, block, data)
        epilogue = epilogue_of(sch, block)
        sizes = [extent(sch, loop) or 1 for loop in sch.get_loops(block)]
        tile = _choose(sizes, spec, padded=stage is not None)
        n, o, y, x, lane, ky, kx = sch.get_loops(block)
        sch.set_scope(block, 0, "local")
        chunks, tiles, line = sch.split(y, factors=[None, tile.tall, tile.lines])
        rest = sizes[3] % tile.columns
        columns, column = sch.split(x, factors=[None, tile.columns])
        if rest:
            peel_remainder(sch, [columns, column])
        sch.reorder(n, o, chunks, tiles, columns, ky, kx, line, column, lane)
        task = fuse(sch, [n, o, chunks])
        if prod(sizes) >= MIN_PARALLEL_WORK * sizes[4]:
            sch.parallel(task)
        sch.vectorize(lane)
        taps = sizes[5] * sizes[6]
        for loop in (*((ky, kx) if taps <= _MAX_TAPS else ()), line, column):
            sch.unroll(loop)
        sch.reverse_compute_at(epilogue, columns, preserve_unit_loops=True)
        line, column, lane = sch.get_loops(epilogue)[-3:]
        if rest:
            peel_remainder(sch, [column])
        for loop in (line, column):
            sch.unroll(loop)
        sch.vectorize(lane)
        done = [block, epilogue]
        if stage is not None:
            sch.compute_at(stage, task, preserve_unit_loops=True)
            vectorize_rows(sch, stage, spec)
            done.append(stage)
        sch.decompose_reduction(block, ky)
        schedule_rest(sch, done, spec)
        return sch


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


def _choose(sizes: list[int], spec: DeviceSpec, *, padded: bool) -> _Tile:
    """The tile that keeps registers busy, and tasks of equal size for all cores."""
    _, _, lines, width, lanes, kernel_h, kernel_w = sizes
    vectors = max(1, lanes // spec.lanes())
    # The filter's taps stay in registers beside the sums where there is room.
    room = spec.vector_registers - min(kernel_h * kernel_w, spec.vector_registers // 3) - 2
    best, best_cost = _Tile(1, 1, 1), float("inf")
    for tall in divisors(lines, 4):
        for columns in range(1, min(width, _MAX_COLUMNS) + 1):
            sums = tall * columns * vectors
            if sums > max(room, 1):
                continue
            loads = (tall + kernel_h - 1) * (columns + kernel_w - 1) * vectors
            step = max(sums * kernel_h * kernel_w, loads) + 4 * sums + 4
            row = ceil(width / columns) * step * (lines // tall)
            for chunk in divisors(lines // tall):
                tasks = sizes[0] * sizes[1] * (lines // tall // chunk)
                idle = ceil(tasks / spec.cores) * spec.cores / tasks
                halo = 1 + (kernel_h - 1) / (tall * chunk) if padded else 1.0
                cost = (row + 3 * halo * lines * width) * idle
                if cost < best_cost:
                    best, best_cost = _Tile(tall, columns, chunk), cost
    return best
