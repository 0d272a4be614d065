"""Last rule: accepts any function and gives each block what it safely can."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.analysis import is_plain, open_schedule, root_blocks
from tvm_edge.schedules.base import Origin, ScheduleRule
from tvm_edge.schedules.gpu.launch import bind_group, schedule_spatial

__all__ = ["Fallback"]


class Fallback(ScheduleRule):
    """Any function of blocks.

    Plain blocks get a work-item for each result. Blocks that bind threads stay as they are.
    Anything else (loops that depend on data, calls with side effects) runs as it came, in a kernel
    of a single work-item: right, and slow.
    """

    name = "fallback"
    origin: Origin = "fallback"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule:
        """Schedule `func`; never declines."""
        sch = open_schedule(func)
        for block in root_blocks(sch):
            if is_plain(sch, block):
                schedule_spatial(sch, block, spec)
                continue
            loops = sch.get_loops(block)
            if _launches_itself(sch.get(loops[0]) if loops else sch.get(block)):
                continue
            item = sch.add_unit_loop(loops[0] if loops else block)
            bind_group(sch, [sch.add_unit_loop(item)], item)
        return sch


def _launches_itself(stmt: tirx.Stmt) -> bool:
    """Return whether a statement already names its threads, as TVM's own scatters do."""
    return any(
        node.attr_key in ("thread_extent", "virtual_thread")
        for node in nodes_in(stmt, tirx.AttrStmt)
    ) or any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in nodes_in(stmt, tirx.For))
