"""Functions without a reduction: element-wise, broadcast, resize, transposition, gather, concat."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import (
    count_reductions,
    inline_spatial,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.gpu.launch import schedule_spatial

__all__ = ["Elementwise"]


class Elementwise:
    """Functions whose blocks all are plain and spatial, of static or symbolic shape."""

    name = "elementwise"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Inline what can be inlined; each remaining block is a kernel, an element a work-item."""
        if count_reductions(func) != 0:
            return None
        sch = open_schedule(func)
        inline_spatial(sch)
        for block in root_blocks(sch):
            schedule_spatial(sch, block, spec)
        return sch
