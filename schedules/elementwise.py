"""Functions without a reduction: element-wise, broadcast, resize, transposition, gather, concat."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import (
    count_reductions,
    inline_spatial,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.base import ScheduleRule

__all__ = ["Elementwise"]


class Elementwise(ScheduleRule):
    """Functions whose blocks all are plain and spatial, of static or symbolic shape.

    Parameters
    ----------
    schedule_block : callable
        Schedules one such block for a kind of device.
    """

    name = "elementwise"

    def __init__(self, schedule_block: Callable[[Schedule, SBlockRV, DeviceSpec], None]) -> None:
        self._schedule_block = schedule_block

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Inline what can be inlined, and schedule each block that remains."""
        if count_reductions(func) != 0:
            return None
        sch = open_schedule(func)
        inline_spatial(sch)
        for block in root_blocks(sch):
            self._schedule_block(sch, block, spec)
        return sch
