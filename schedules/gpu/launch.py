"""Work-groups of a GPU kernel, and the schedule of a block with one work-item per element.

Grids are one-dimensional: CUDA limits the second and third dimension to 65535 blocks, and dividing
a block index costs a kernel nothing that a profiler would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import extent, plain_blocks
from tvm_edge.schedules.stages import fuse
from tvm_edge.schedules.workgroup import group_size

__all__ = [
    "bind_group",
    "guard_empty_grids",
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


def schedule_spatial(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> None:
    """Give each element that a plain block writes a work-item, which also does its reduction."""
    spatial, reduction = spatial_loops(sch, block)
    sizes = [extent(sch, loop) for loop in spatial]
    total = None if None in sizes else prod(size or 0 for size in sizes)
    items, item = sch.split(fuse(sch, spatial), factors=[None, group_size(total, spec)])
    bind_group(sch, [items], item)
    if reduction:
        sch.decompose_reduction(block, reduction[0])


def schedule_rest(sch: Schedule, done: Sequence[SBlockRV], spec: DeviceSpec) -> None:
    """Schedule the blocks that are not in `done` and still plain, each as a kernel of its own."""
    for block in plain_blocks(sch, done):
        schedule_spatial(sch, block, spec)


def guard_empty_grids(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Launch nothing where a symbolic shape turns out to be empty: drivers refuse such grids."""

    def guard(loop: tirx.For) -> tirx.Stmt:
        is_grid = loop.kind == tirx.ForKind.THREAD_BINDING and loop.thread_binding is not None
        if not is_grid or not str(loop.thread_binding.thread_tag).startswith("blockIdx"):
            return loop
        if constant(loop.extent) is not None:
            return loop
        return tirx.IfThenElse(loop.extent > 0, loop, None)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, guard)))
