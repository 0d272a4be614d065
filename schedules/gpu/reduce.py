"""Reductions that are neither convolutions nor windows: means, norms, softmax, arg-maxima.

A reduction with few results and a long reduction axis would leave most of the device idle with one
work-item a result. There a whole work-group shares a result: each work-item reduces every n-th
element, and local memory combines the partial sums.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant, trailing_contiguous
from tvm_edge.schedules.analysis import (
    count_reductions,
    extent,
    inline_spatial,
    is_plain,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.gpu.launch import (
    bind_group,
    power_of_two,
    schedule_spatial,
    spatial_loops,
)
from tvm_edge.schedules.gpu.tile import schedule_result_per_item
from tvm_edge.schedules.stages import aligned_consumer, epilogue_of, fuse
from tvm_edge.schedules.typical import typical

__all__ = ["Reduce", "has_few_results", "is_narrow", "schedule_reduction"]

# Reduction length below which a work-item is faster than a work-group with barriers.
_SHORT_REDUCTION = 64
# Results for each core above which a work-item for each fills the device.
_RESULTS_PER_CORE = 512
_GROUP = 128
# Limits of widening work-groups: work-items for each core, and reduction length of each of them.
_ITEMS_PER_CORE, _REDUCTION_OF_AN_ITEM = 1024, 16
# Neighbouring results that a work-group computes where they, not the reduction, are contiguous.
_NEIGHBOURS = 16


class Reduce(ScheduleRule):
    """Functions of spatial blocks and any number of reductions."""

    name = "reduce"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if all its blocks are plain loop nests and one at least reduces."""
        if not count_reductions(func):
            return None
        sch = open_schedule(func)
        inline_spatial(sch)
        for block in root_blocks(sch):
            if is_plain(sch, block):  # not taken in by the reduction before it
                schedule_reduction(sch, block, spec)
        return sch


def is_narrow(
    block: s_tir.SBlock, spec: DeviceSpec, results_per_core: int = _RESULTS_PER_CORE
) -> bool:
    """Return whether each result is worth a work-group: few results, and long reductions."""
    return has_few_results(*_reduction_and_results(block), spec, results_per_core)


def has_few_results(
    reduction: int, results: int, spec: DeviceSpec, results_per_core: int = _RESULTS_PER_CORE
) -> bool:
    """Return whether results are few and reductions long, given the number of both."""
    if not reduction or not results:
        return False
    return reduction >= _SHORT_REDUCTION and results < max(spec.cores, 1) * results_per_core


def _reduction_and_results(block: s_tir.SBlock) -> tuple[int, int]:
    """Return the reduction length and the number of results, typical ones where they are open."""
    found = {True: 1, False: 1}
    for var in block.iter_vars:
        is_term = var.iter_type == tirx.IterVar.CommReduce
        found[is_term] *= 0 if constant(var.dom.extent) == 0 else typical(var.dom.extent)
    return found[True], found[False]


def schedule_reduction(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> None:
    """Schedule a plain block: a work-group for each of few results, else a work-item for each."""
    stmt = sch.get(block)
    has_reduction = any(v.iter_type == tirx.IterVar.CommReduce for v in stmt.iter_vars)
    # An arg-maximum has two results at once, which TVM cannot combine across work-items.
    single = isinstance(stmt.body, tirx.BufferStore)
    if not has_reduction or not single:
        schedule_spatial(sch, block, spec)
        return
    consumer = aligned_consumer(sch, block)
    shared = consumer is None or not _crosses_open_rows(stmt)
    if not is_narrow(stmt, spec) or spec.max_work_group_size < 2 or not shared:
        epilogue = epilogue_of(sch, block)
        spatial, reduced = spatial_loops(sch, block)
        schedule_result_per_item(sch, block, epilogue, spatial, reduced, [], spec)
        return
    along_reduction = trailing_contiguous(stmt) > 0 and _last_is_reduction(stmt)
    spatial, reduced = spatial_loops(sch, block)
    # Axes of length one after the last longer one are part of it.
    position = max((i for i, x in enumerate(spatial) if extent(sch, x) != 1), default=0)
    outer, last = spatial[:position], fuse(sch, spatial[position:])
    limit = power_of_two(min(_GROUP, spec.max_work_group_size))
    # Neighbours are of one row: a work-group that crossed into the next would have its epilogue
    # store the rest of both.
    row_length = extent(sch, last) or (1 if consumer else typical(sch.get(last).extent))
    most = min(_NEIGHBOURS, limit // 2, row_length)
    neighbours = 1 if along_reduction else power_of_two(most)
    limit = _widened(limit, neighbours, stmt, spec)
    lanes = limit // neighbours
    groups, row = sch.split(last, factors=[None, neighbours])
    steps, lane = sch.split(fuse(sch, reduced), factors=[None, lanes])
    sch.reorder(*outer, groups, row, lane, steps)
    group = bind_group(sch, [*outer, groups], *((lane, row) if along_reduction else (row, lane)))
    if consumer is not None:
        sch.reverse_compute_at(consumer, group, preserve_unit_loops=True)
        sch.set_scope(block, 0, "shared")
        _, *own = sch.get_loops(consumer)
        item, _ = sch.split(fuse(sch, own), factors=[neighbours, None])
        sch.bind(item, "threadIdx.y" if along_reduction else "threadIdx.x")


def _crosses_open_rows(block: s_tir.SBlock) -> bool:
    """Return whether results lie in rows of open length, or in rows of several open numbers.

    TVM moves no epilogue into loops that are fused of those.
    """
    sizes = [constant(v.dom.extent) for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    longer = [size for size in sizes if size != 1]
    is_open_row = longer[-1:] == [None] and (len(longer) > 1 or not _last_is_reduction(block))
    return longer.count(None) > 1 or is_open_row


def _widened(limit: int, neighbours: int, block: s_tir.SBlock, spec: DeviceSpec) -> int:
    """Return the work-items of a work-group, more where few share long reductions (classifiers)."""
    reduction, results = _reduction_and_results(block)
    wanted = max(spec.cores, 1) * _ITEMS_PER_CORE
    while (
        2 * limit <= spec.max_work_group_size
        and results // neighbours * limit < wanted
        and reduction * neighbours >= 2 * limit * _REDUCTION_OF_AN_ITEM
    ):
        limit *= 2
    return limit


def _last_is_reduction(block: s_tir.SBlock) -> bool:
    return bool(block.iter_vars) and block.iter_vars[-1].iter_type == tirx.IterVar.CommReduce
