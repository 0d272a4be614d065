"""The last rule: takes any function and does to each block what it safely can."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_sblock_info

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import is_plain, open_schedule, root_blocks
from tvm_edge.schedules.base import Origin, ScheduleRule
from tvm_edge.schedules.cpu.loops import schedule_spatial
from tvm_edge.schedules.cpu.reduce import schedule_reduction

__all__ = ["Fallback"]


class Fallback(ScheduleRule):
    """Any function.

    Plain blocks are vectorised and made parallel as far as :func:`schedule_spatial` and
    :func:`schedule_reduction` find it possible. Everything else keeps the form it came in: calls
    with side effects, sorting loops, nests that are parallel already, functions without blocks.
    """

    name = "fallback"
    origin: Origin = "fallback"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule:
        """Schedule `func`; never declines."""
        sch = open_schedule(func)
        for block in root_blocks(sch):
            if not is_plain(sch, block):
                continue  # opaque, or taken in by a block before it
            if get_sblock_info(sch, block).is_injective():
                schedule_spatial(sch, block, spec)
            else:
                schedule_reduction(sch, block, spec)
        return sch
