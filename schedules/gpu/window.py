"""Depthwise convolution and pooling: a work-item for each output, its window unrolled."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import accepts
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.gpu.launch import schedule_rest
from tvm_edge.schedules.gpu.tile import schedule_result_per_item
from tvm_edge.schedules.stages import epilogue_of, isolate

__all__ = ["schedule_window"]


def schedule_window(
    sch: Schedule, block: SBlockRV, pool: Contraction, spec: DeviceSpec
) -> Schedule:
    """Schedule a function with a depthwise convolution or a pool, in work-items of a GPU."""
    padding = isolate(sch, block, pool.data.source)
    epilogue = epilogue_of(sch, block)
    if padding is not None:
        accepts(sch.compute_inline, padding)
    loops = sch.get_loops(block)
    *outer, columns = [p for p in range(len(loops)) if p not in pool.reduction]
    assert columns == pool.columns
    schedule_result_per_item(
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
