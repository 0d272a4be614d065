"""Parallel loops as launches of work-groups of one work-item, for OpenCL devices that are CPUs."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.lowering.opencl_functions import is_opencl
from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.grid import GRID, sequence

__all__ = ["LaunchLoops"]

_PARALLEL = tirx.ForKind.PARALLEL


@tvm.transform.module_pass(opt_level=0, name="LaunchLoops")
class LaunchLoops:
    """Launch the parallel loops of kernels that :mod:`tvm_edge.schedules.grid` scheduled.

    Runs after ``LoopPartition``. A remainder split off a parallel loop is a launch of its own;
    inside of a grid it could not be split off: all work-groups run the same code.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or func.attrs is None:
                continue
            if func.attrs.get(GRID, False):
                launched = func.with_body(_launched(func.body)).without_attr(GRID)
                updated.update_func(gvar, launched)
            elif is_opencl(func) and _launches(func.body, grids=False):
                # It would run on the host, whether or not the host may touch the tensors now.
                raise ValueError(f"kernel {gvar.name_hint!r} has a parallel loop outside of a grid")
        return updated


def _launched(stmt: tirx.Stmt) -> tirx.Stmt:
    """A statement on the host, with launches for what it does to tensors."""
    if isinstance(stmt, tirx.SeqStmt):
        return sequence(_statements(list(stmt.seq)))
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent":
        return stmt
    if isinstance(stmt, tirx.DeclBuffer | tirx.Bind):
        return stmt
    if isinstance(stmt, tirx.For) and stmt.kind == _PARALLEL:
        return _grid(stmt)
    if not _launches(stmt):
        return _alone(stmt)
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _launched(stmt.body))
    assert isinstance(stmt, tirx.For), "what else is around a launch?"
    return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, _launched(stmt.body))


def _statements(stmts: list[tirx.Stmt]) -> list[tirx.Stmt]:
    """Statements in sequence, those without a launch together in one."""
    made: list[tirx.Stmt] = []
    run: list[tirx.Stmt] = []
    for stmt in stmts:
        on_host = isinstance(stmt, tirx.DeclBuffer | tirx.Bind) or _launches(stmt)
        if on_host and run:
            made.append(_alone(sequence(run)))
            run = []
        if on_host:
            made.append(_launched(stmt))
        else:
            run.append(stmt)
    return [*made, _alone(sequence(run))] if run else made


def _alone(stmt: tirx.Stmt) -> tirx.Stmt:
    return _launch(tirx.const(1, "int32"), tirx.Var("blockIdx.x", "int32"), stmt)


def _launches(stmt: tirx.Stmt, *, grids: bool = True) -> bool:
    """Return whether a statement contains a launch (if `grids`), or a loop that becomes one."""
    return any(loop.kind == _PARALLEL for loop in nodes_in(stmt, tirx.For)) or any(
        grids and node.attr_key == "thread_extent" for node in nodes_in(stmt, tirx.AttrStmt)
    )


def _grid(loop: tirx.For) -> tirx.Stmt:
    group = tirx.Var("blockIdx.x", str(loop.loop_var.ty.dtype))

    def own(var: tirx.Var) -> tirx.Expr:
        return loop.min + group if var.same_as(loop.loop_var) else var

    body = tvm_ffi.structural_map(loop.body, (tirx.Var, own))
    launch = _launch(loop.extent, group, body)
    if constant(loop.extent) is not None:
        return launch
    return tirx.IfThenElse(loop.extent > 0, launch, None)  # drivers refuse empty grids


def _launch(extent: tirx.Expr, group: tirx.Var, body: tirx.Stmt) -> tirx.Stmt:
    axis = tirx.IterVar(None, group, tirx.IterVar.ThreadIndex, "blockIdx.x")
    return tirx.AttrStmt(axis, "thread_extent", extent, body)
