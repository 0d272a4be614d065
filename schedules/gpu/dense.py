"""Matrix products with enough results to give each work-item a tile of them."""

from __future__ import annotations

from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import inline_spatial
from tvm_edge.schedules.contraction import is_product
from tvm_edge.schedules.gpu.launch import power_of_two, schedule_rest, spatial_loops
from tvm_edge.schedules.gpu.reduce import is_narrow
from tvm_edge.schedules.gpu.tile import Axes, choose_tile, schedule_tile
from tvm_edge.schedules.stages import ReductionRule, epilogue_of
from tvm_edge.schedules.typical import typical

__all__ = ["Dense"]

# Open numbers of rows are taken for multiples of the longest side of a tile.
_MULTIPLE = 8


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
        if any(constant(v.dom.extent) == 0 for v in stmt.iter_vars) or is_narrow(stmt, spec):
            return None
        sizes = [_tiled_length(var) for var in stmt.iter_vars]
        inline_spatial(sch)
        epilogue = epilogue_of(sch, block)
        spatial, reduction = spatial_loops(sch, block)
        lengths = sizes[: len(spatial)]
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


def _tiled_length(var: tirx.IterVar) -> int:
    """Return the length of an axis, of an open one a typical length that tiles divide."""
    known = constant(var.dom.extent)
    if known is not None:
        return known
    length = typical(var.dom.extent)
    return length // _MULTIPLE * _MULTIPLE or power_of_two(length)
