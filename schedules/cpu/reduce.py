"""Reductions that are neither products nor windows: means, norms, arg-maxima."""

from __future__ import annotations

from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_sblock_info
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import branch_conditions, trailing_contiguous
from tvm_edge.schedules.analysis import (
    accepts,
    count_reductions,
    extent,
    inline_spatial,
    is_plain,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.cpu.dot import schedule_dot
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    lanes_of,
    schedule_spatial,
    split_vectors,
    vector_length,
)
from tvm_edge.schedules.cpu.microkernel import Axes, choose_tile, schedule_tile
from tvm_edge.schedules.stages import aligned_consumer, epilogue_of, fuse

__all__ = ["Reduce", "schedule_reduction"]


class Reduce(ScheduleRule):
    """Functions of spatial blocks and any number of reductions, all of which can be vectorised."""

    name = "reduce"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if all its blocks are plain loop nests and one at least reduces."""
        if not count_reductions(func):
            return None
        sch = open_schedule(func)
        inline_spatial(sch)
        for block in [get_sblock_info(sch, block) for block in root_blocks(sch)]:
            if not is_plain(sch, block.block_rv):
                continue  # taken in by the reduction before it
            if block.is_injective():
                schedule_spatial(sch, block.block_rv, spec)
            elif not schedule_reduction(sch, block.block_rv, spec):
                return None
        return sch


def schedule_reduction(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> bool:
    """Schedule one reduction, together with its epilogue.

    Lanes run along the axis that is contiguous in memory: the one summed over, or else the last
    one of the output. If neither is, or that one is symbolic, the block only becomes parallel.

    Returns
    -------
    bool
        Whether the block is vectorised, or too small to matter.
    """
    stmt = sch.get(block)
    sizes = [extent(sch, loop) for loop in sch.get_loops(block)]
    spatial = [p for p, v in enumerate(stmt.iter_vars) if v.iter_type == tirx.IterVar.DataPar]
    if 0 in sizes:
        return True
    if spatial != list(range(len(spatial))):
        return False
    known = None not in sizes[len(spatial) :]
    if known and schedule_dot(sch, block, aligned_consumer(sch, block), spec):
        return True
    contiguous = trailing_contiguous(stmt, len(spatial))
    if contiguous and (sizes[len(spatial) - 1] or 1) > 1:
        _schedule_columns(sch, block, contiguous, spec)
        return True
    loops = sch.get_loops(block)
    work = prod(size or spec.cores for size in sizes)
    if None not in sizes and work < MIN_PARALLEL_WORK:
        return True
    if spatial:
        accepts(sch.parallel, fuse(sch, loops[: len(spatial)]))
    return False


def _schedule_columns(sch: Schedule, block: SBlockRV, contiguous: int, spec: DeviceSpec) -> None:
    """Vectors along the last axis of the output; the reduction adds whole vectors."""
    stmt = sch.get(block)
    lanes = lanes_of(stmt, spec)
    if not isinstance(stmt.body, tirx.BufferStore):
        _vectorize_last(sch, block, lanes)  # an arg-maximum: two results at once
        return
    epilogue = epilogue_of(sch, block)
    loops = sch.get_loops(block)
    sizes = [extent(sch, loop) or spec.cores for loop in loops]
    columns = sum(v.iter_type == tirx.IterVar.DataPar for v in stmt.iter_vars) - 1
    tall = contiguous > 1 and columns > 0 and extent(sch, loops[columns - 1]) is not None
    lines = columns - 1 if tall else None
    outer = range(columns if lines is None else lines)
    tile = choose_tile(
        spec,
        lanes,
        channels=1,
        lines=1 if lines is None else sizes[lines],
        columns=sizes[columns],
        outer=prod(sizes[p] for p in outer),
        # Where a condition on columns depends on the reduction, too, the peeled extents would.
        exact=not can_peel(sch, loops[columns]) or bool(branch_conditions(stmt)),
    )
    schedule_tile(
        sch,
        block,
        Axes(
            [loops[p] for p in outer] or [sch.add_unit_loop(loops[0])],
            None,
            None if lines is None else loops[lines],
            loops[columns],
            loops[columns + 1 :],
        ),
        tile,
        epilogue=epilogue,
        parallel=prod(sizes) >= MIN_PARALLEL_WORK * lanes,
    )


def _vectorize_last(sch: Schedule, block: SBlockRV, lanes: int) -> None:
    loops = sch.get_loops(block)
    count = sum(v.iter_type == tirx.IterVar.DataPar for v in sch.get(block).iter_vars)
    sizes = [extent(sch, loop) or 1 for loop in loops]
    *outer, last = loops[:count]
    tiles, _, lane = split_vectors(sch, last, 1, vector_length(sch, last, lanes))
    sch.reorder(*outer, tiles, *loops[count:], lane)
    if prod(sizes) >= MIN_PARALLEL_WORK * lanes:
        accepts(sch.parallel, fuse(sch, outer) if prod(sizes[: count - 1]) > 1 else tiles)
    accepts(sch.vectorize, lane)
    sch.decompose_reduction(block, loops[count])
