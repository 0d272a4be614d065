"""Unpacking at the end of a convolution in channel blocks: each task unpacks what it made."""

from __future__ import annotations

from math import gcd

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import extent
from tvm_edge.schedules.cpu.loops import split_vectors
from tvm_edge.schedules.stages import fuse

__all__ = ["unpack_in_task", "unpacking_of"]


def unpacking_of(sch: Schedule, epilogue: SBlockRV, blocks: int) -> SBlockRV | None:
    """Return what unpacks a result, if each task can do so with the lines that it makes.

    Parameters
    ----------
    sch : Schedule
    epilogue : SBlockRV
        What writes the result in channel blocks.
    blocks : int
        Channel blocks of a task. It needs all of them where channels fill the last one up.
    """
    consumers = sch.get_consumers(epilogue)
    if len(consumers) != 1 or len(sch.get_producers(consumers[0])) != 1:
        return None
    stmt = sch.get(consumers[0])
    shape = [constant(dim) for dim in sch.get(epilogue).writes[0].source.shape]
    plain = [constant(var.dom.extent) or 0 for var in stmt.iter_vars]
    if None in shape or len(shape) != 5 or not isinstance(stmt.body, tirx.BufferStore):
        return None
    batch, most, lines, columns, lanes = (length or 0 for length in shape)
    if len(plain) != 4 or [plain[0], *plain[2:]] != [batch, lines, columns]:
        return None
    whole = plain[1] == most * lanes or blocks == most == -(-plain[1] // lanes)
    return consumers[0] if whole else None


def unpack_in_task(sch: Schedule, block: SBlockRV, task: LoopRV, spec: DeviceSpec) -> None:
    """Have each task unpack the lines that it made, while they are in its core's cache."""
    stmt = sch.get(block)
    lanes, channels = _lanes(stmt), constant(stmt.iter_vars[1].dom.extent) or 1
    sch.reverse_compute_at(block, task, preserve_unit_loops=True)
    *_, channel, line, column = sch.get_loops(block)
    # Channels of two blocks are no vector in memory.
    blocks, row = sch.split(channel, factors=[None, gcd(channels, lanes)])
    pixels = fuse(sch, [line, column])
    width = min(spec.lanes(), extent(sch, pixels) or 1)
    *tiles, pixel = split_vectors(sch, pixels, 1, width)
    sch.reorder(*tiles, blocks, row, pixel)
    sch.vectorize(pixel)


def _lanes(block: s_tir.SBlock) -> int:
    return constant(block.reads[0].source.shape[-1]) or 1
