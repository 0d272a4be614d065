"""Work-groups of a GPU kernel, and the schedule of a block with one work-item per element.

Grids are one-dimensional: CUDA limits the second and third dimension to 65535 blocks, and dividing
a block index costs a kernel nothing that a profiler would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import plain_blocks
from tvm_edge.schedules.open_lengths import length_of
from tvm_edge.schedules.stages import fuse
from tvm_edge.schedules.typical import typical
from tvm_edge.schedules.workgroup import WORK_GROUP, Problem, choose_work_group, group_size

__all__ = [
    "bind_group",
    "bind_results",
    "power_of_two",
    "schedule_rest",
    "schedule_spatial",
    "spatial_loops",
]


def power_of_two(limit: int) -> int:
    """The largest power of two up to `limit`, at least 1."""
    return 1 << max(0, limit.bit_length() - 1)


def bind_group(sch: Schedule, grid: Sequence[LoopRV], *items: LoopRV) -> LoopRV:
    """Bind chained loops to the grid, and one to four others to a work-group's axes x, y, z.

    Returns
    -------
    LoopRV
        The loop over work-groups.
    """
    group = fuse(sch, grid)
    sch.bind(group, "blockIdx.x")
    for loop, axis in zip(items, "xyz", strict=False):
        sch.bind(loop, f"threadIdx.{axis}")
    return group


def spatial_loops(sch: Schedule, block: SBlockRV) -> tuple[list[LoopRV], list[LoopRV]]:
    """Return the loops of a plain block: its results' loops, then its reduction loops."""
    loops = sch.get_loops(block)
    kinds = [var.iter_type for var in sch.get(block).iter_vars]
    if len(kinds) != len(loops):  # a block of a scalar has a loop of length one and no variable
        return list(loops), []
    spatial = [x for x, k in zip(loops, kinds, strict=True) if k == tirx.IterVar.DataPar]
    reduction = [x for x, k in zip(loops, kinds, strict=True) if k != tirx.IterVar.DataPar]
    if spatial and reduction:
        sch.reorder(*spatial, *reduction)
    return spatial or [sch.add_unit_loop(loops[0])], reduction


def bind_results(sch: Schedule, results: Sequence[LoopRV], spec: DeviceSpec) -> None:
    """Bind chained loops over results, a work-item for each.

    In one launch axis where the place on each loop then is a remainder of a division by a constant.
    Else the last two loops have launch axes of their own: dividing by a length of the run would
    take longer than most kernels do.
    """
    lengths = [length_of(sch.get(loop).extent) for loop in results]
    typically = [size if isinstance(size, int) else typical(size) for size in lengths]
    if all(isinstance(size, int) for size in lengths[1:]):
        group, item = sch.split(
            fuse(sch, results), factors=[None, group_size(prod(typically), spec)]
        )
        bind_group(sch, [group], item)
        return
    # Axes of length one after the last longer one are part of it.
    last = max(i for i, size in enumerate(lengths) if size != 1)
    *outer, columns = [*results[:last], fuse(sch, results[last:])]
    lines = outer.pop()
    limited = replace(spec, max_work_group_size=min(WORK_GROUP, spec.max_work_group_size))
    others = prod(typically[: last - 1])
    chosen = choose_work_group(Problem((typically[last], typically[last - 1], others)), limited)
    rest = fuse(sch, outer) if outer else sch.add_unit_loop(lines)
    rests, z = sch.split(rest, factors=[None, chosen.z])
    line_groups, y = sch.split(lines, factors=[None, chosen.y])
    column_groups, x = sch.split(columns, factors=[None, chosen.x])
    sch.reorder(rests, line_groups, column_groups, z, y, x)
    # CUDA has at most 65535 work-groups along y and z.
    for loop, axis in zip((rests, line_groups, column_groups), "xyz", strict=True):
        sch.bind(loop, f"blockIdx.{axis}")
    for loop, axis in zip((x, y, z), "xyz", strict=True):
        sch.bind(loop, f"threadIdx.{axis}")


def schedule_spatial(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> None:
    """Give each element that a plain block writes a work-item, which also does its reduction."""
    spatial, reduction = spatial_loops(sch, block)
    bind_results(sch, spatial, spec)
    if reduction:
        sch.decompose_reduction(block, reduction[0])


def schedule_rest(sch: Schedule, done: Sequence[SBlockRV], spec: DeviceSpec) -> None:
    """Schedule the blocks that are not in `done` and still plain, each as a kernel of its own."""
    for block in plain_blocks(sch, done):
        schedule_spatial(sch, block, spec)
