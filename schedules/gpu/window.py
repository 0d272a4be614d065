"""Depthwise convolution and pooling: a work-item for each output, its window written out."""

from __future__ import annotations

from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import accepts
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.contraction import Contraction, match_contraction, match_pooling
from tvm_edge.schedules.gpu.launch import schedule_rest
from tvm_edge.schedules.gpu.tile import schedule_sums
from tvm_edge.schedules.stages import epilogue_of, isolate, open_reduction

__all__ = ["Depthwise", "Pool"]


class Depthwise:
    """Convolutions whose output channels each read one input channel of their own."""

    name = "depthwise"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction is a depthwise convolution."""
        opened = open_reduction(func)
        if opened is None:
            return None
        sch, block = opened
        conv = match_contraction(sch.get(block))
        if conv is None or conv.channels is not None or not conv.window:
            return None
        if _extent(sch.get(block), conv.channel_sum) > 1:
            return None
        return _schedule(sch, block, conv, spec)


class Pool:
    """Maximum, minimum and average over windows that leave an image of more than one column."""

    name = "pool"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction pools."""
        opened = open_reduction(func)
        if opened is None:
            return None
        sch, block = opened
        pool = match_pooling(sch.get(block))
        if pool is None or not pool.window:
            return None
        if _extent(sch.get(block), (pool.columns,)) == 1:
            return None
        return _schedule(sch, block, pool, spec)


def _extent(block: s_tir.SBlock, positions: tuple[int, ...]) -> int:
    return prod(constant(block.iter_vars[p].dom.extent) or 0 for p in positions)


def _schedule(sch: Schedule, block: SBlockRV, pool: Contraction, spec: DeviceSpec) -> Schedule:
    padding = isolate(sch, block, pool.data.source)
    epilogue = epilogue_of(sch, block)
    if padding is not None:
        accepts(sch.compute_inline, padding)
    loops = sch.get_loops(block)
    *outer, columns = [p for p in range(len(loops)) if p not in pool.reduction]
    assert columns == pool.columns
    schedule_sums(
        sch,
        block,
        epilogue,
        [loops[p] for p in (*outer, columns)],
        [loops[p] for p in (*pool.channel_sum, *pool.window)],
        [loops[p] for p in pool.window],
        spec,
    )
    schedule_rest(sch, [block, epilogue], spec)
    return sch
