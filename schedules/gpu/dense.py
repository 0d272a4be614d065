"""Matrix products with enough results to give each work-item a tile of them."""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import inline_spatial
from tvm_edge.schedules.contraction import is_product
from tvm_edge.schedules.gpu.launch import schedule_rest, spatial_loops
from tvm_edge.schedules.gpu.reduce import is_narrow
from tvm_edge.schedules.gpu.tile import Axes, choose_tile, schedule_tile
from tvm_edge.schedules.stages import ReductionRule, epilogue_of

__all__ = ["Dense"]


class Dense(ReductionRule):
    """Fully connected layers and (batched) matrix products of many rows.

    Products with few results (a classifier at batch 1) are left to the rule for reductions, where
    several work-items share a result.
    """

    name = "dense"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is a matrix product."""
        stmt = sch.get(block)
        if not is_product(stmt):
            return None
        sizes = [constant(var.dom.extent) for var in stmt.iter_vars]
        if any(not size for size in sizes) or is_narrow(stmt, spec):
            return None
        inline_spatial(sch)
        epilogue = epilogue_of(sch, block)
        spatial, reduction = spatial_loops(sch, block)
        lengths = [size or 1 for size in sizes][: len(spatial)]
        *outer, columns = spatial
        rows = outer.pop() if outer else None
        tile = choose_tile(
            spec,
            outer=prod(lengths[:-2]),
            channels=lengths[-2] if rows is not None else 1,
            columns=lengths[-1],
        )
        schedule_tile(sch, block, epilogue, Axes(outer, rows, columns, reduction), tile)
        schedule_rest(sch, [block, epilogue], spec)
        return sch
