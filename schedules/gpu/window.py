"""Depthwise convolution and pooling: a work-item for each output, its window written out."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import accepts
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.gpu.launch import schedule_rest
from tvm_edge.schedules.gpu.tile import schedule_sums
from tvm_edge.schedules.stages import epilogue_of, isolate, open_depthwise, open_pooling

__all__ = ["Depthwise", "Pool"]


class Depthwise:
    """Convolutions whose output channels each read one input channel of their own."""

    name = "depthwise"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction is a depthwise convolution."""
        opened = open_depthwise(func)
        if opened is None:
            return None
        sch, block, conv = opened
        return _schedule(sch, block, conv, spec)


class Pool:
    """Maximum, minimum and average over windows that leave an image of more than one column."""

    name = "pool"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction pools."""
        opened = open_pooling(func)
        if opened is None:
            return None
        sch, block, pool = opened
        return _schedule(sch, block, pool, spec)


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
