"""Last rule: accepts any function and gives each block what it safely can."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import is_plain, open_schedule, root_blocks
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.gpu.launch import bind_group, schedule_spatial

__all__ = ["Fallback"]


class Fallback:
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
    found = False

    def on_attribute(node: tirx.AttrStmt) -> None:
        nonlocal found
        found |= node.attr_key in ("thread_extent", "virtual_thread")

    def on_loop(loop: tirx.For) -> None:
        nonlocal found
        found |= loop.kind == tirx.ForKind.THREAD_BINDING

    tvm_ffi.structural_walk(stmt, ((tirx.AttrStmt, on_attribute), (tirx.For, on_loop)))
    return found
