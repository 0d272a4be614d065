"""Launches that may turn out to be empty: the host leaves them out, as drivers refuse them."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = ["GuardEmptyLaunches"]


@tvm.transform.module_pass(opt_level=0, name="GuardEmptyLaunches")
class GuardEmptyLaunches:
    """Launch only what has work-groups, where only the run tells how many there are.

    Runs after ``ThreadSync``, which takes the condition for one that work-items differ in.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and any(map(_is_open, _extents(func.body))):
                updated.update_func(gvar, func.with_body(_guarded(func.body)))
        return updated


def _extents(stmt: tirx.Stmt) -> list[tirx.AttrStmt]:
    return [node for node in nodes_in(stmt, tirx.AttrStmt) if node.attr_key == "thread_extent"]


def _is_open(extent: tirx.AttrStmt) -> bool:
    if constant(extent.value) is not None:
        return False
    return str(extent.node.thread_tag).startswith("blockIdx")


def _guarded(body: tirx.Stmt) -> tirx.Stmt:
    every = _extents(body)
    inner = {each.node.var for outer in every for each in _extents(outer.body)}

    def guard(attribute: tirx.AttrStmt) -> tirx.Stmt:
        if attribute.attr_key != "thread_extent" or attribute.node.var in inner:
            return attribute
        some = [each.value > 0 for each in _extents(attribute) if _is_open(each)]
        return tirx.IfThenElse(tirx.all(*some), attribute, None) if some else attribute

    return tvm_ffi.structural_map(body, (tirx.AttrStmt, guard))
