"""Work-items that a member of a merged launch has no use for.

The groups of a merged launch are as large as the largest member's. In a group of another member the
work-items after its own do nothing, but they meet the others at every barrier: one that only some
work-items of a group reach is undefined in OpenCL and in CUDA, and so is one after an early
return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvm_edge.schedules.accesses import nodes_in, uses
from tvm_edge.schedules.grid import sequence

__all__ = ["can_idle", "has_barrier", "only_where"]

_BARRIER = "tirx.tvm_storage_sync"


def has_barrier(node: Any) -> bool:
    """Return whether a statement or expression has a barrier of work-items."""
    return any(_is_barrier(call) for call in nodes_in(node, ir.Call))


def _is_barrier(call: ir.Call) -> bool:
    if not isinstance(call.op, ir.Op):
        return False
    if str(call.op.name) == _BARRIER:
        return True
    return any(isinstance(arg, ir.StringImm) and "barrier" in arg.value for arg in call.args)


def can_idle(body: tirx.Stmt, items: Sequence[tirx.Var]) -> bool:
    """Return whether work-items without work of their own would reach every barrier of a kernel.

    They do where every condition on the way to it is the same for all of a work-group. Such a
    condition has no index of a work-item, and nothing from registers, which idle ones do not fill.

    Parameters
    ----------
    items : sequence of Var
        The indices of a work-item.
    """
    return _reached(body, list(items))


def _reached(stmt: tirx.Stmt, varying: list[tirx.Var]) -> bool:
    if isinstance(stmt, tirx.SeqStmt):
        return all([_reached(part, varying) for part in stmt.seq])  # all, for what they define
    if isinstance(stmt, tirx.Bind):
        if _varies(stmt.value, varying):
            varying.append(stmt.var)
        return not has_barrier(stmt.value)
    if not has_barrier(stmt):
        return True
    if isinstance(stmt, tirx.Evaluate):
        return isinstance(stmt.value, ir.Call) and _is_barrier(stmt.value)
    if isinstance(stmt, tirx.For):
        return (
            stmt.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
            and not any(_varies(e, varying) for e in (stmt.min, stmt.extent))
            and (stmt.step is None or not _varies(stmt.step, varying))
            and _reached(stmt.body, varying)
        )
    if isinstance(stmt, tirx.While):
        return not _varies(stmt.condition, varying) and _reached(stmt.body, varying)
    if isinstance(stmt, tirx.IfThenElse):
        branches = [b for b in (stmt.then_case, stmt.else_case) if b is not None]
        return not _varies(stmt.condition, varying) and all(_reached(b, varying) for b in branches)
    if isinstance(stmt, tirx.AttrStmt):
        return not _varies(stmt.value, varying) and _reached(stmt.body, varying)
    return False


def _varies(expr: tirx.Expr, varying: Sequence[tirx.Var]) -> bool:
    """Return whether work-items of a group may find different values, or idle ones none."""
    return (
        any(uses(expr, var) for var in varying)
        or any(n.source.scope() not in ("global", "shared") for n in nodes_in(expr, ir.TensorLoad))
        or any(
            not isinstance(node.op, ir.Op) or not str(node.op.name).startswith("prim.")
            for node in nodes_in(expr, ir.Call)
        )
    )


def only_where(active: tirx.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
    """A kernel's body of which work-items do their part where `active` holds, all but barriers.

    Where :func:`can_idle` holds of it.
    """
    made: list[tirx.Stmt] = []
    run: list[tirx.Stmt] = []

    def end_run() -> None:
        if run:
            made.append(tirx.IfThenElse(active, sequence(run), None))
            run.clear()

    for part in _flat(stmt):
        if isinstance(part, tirx.AllocBuffer | tirx.DeclBuffer) or _is_arithmetic(part):
            made.append(part)  # for the statements of later runs too
        elif isinstance(part, tirx.Bind):
            end_run()
            # Idle work-items read nothing: their place may not be in the tensor.
            zero = tirx.const(0, str(part.var.ty.dtype))
            made.append(tirx.Bind(part.var, tirx.if_then_else(active, part.value, zero)))
        elif not has_barrier(part):
            run.append(part)
        else:
            end_run()
            made.append(_around_barrier(active, part))
    end_run()
    return sequence(made)


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    if isinstance(stmt, tirx.SeqStmt):
        return [part for one in stmt.seq for part in _flat(one)]
    is_nothing = isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm)
    return [] if is_nothing else [stmt]


def _is_arithmetic(stmt: tirx.Stmt) -> bool:
    """Return whether a statement only names a calculated value or an address, and reads nothing."""
    if not isinstance(stmt, tirx.Bind):
        return False
    return not nodes_in(stmt.value, ir.TensorLoad) or not isinstance(stmt.var.ty, ir.PrimType)


def _around_barrier(active: tirx.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
    if isinstance(stmt, tirx.For):
        return tirx.For(
            stmt.loop_var,
            stmt.min,
            stmt.extent,
            stmt.kind,
            only_where(active, stmt.body),
            annotations=stmt.annotations,
            step=stmt.step,
        )
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, only_where(active, stmt.body))
    if isinstance(stmt, tirx.IfThenElse):
        otherwise = None if stmt.else_case is None else only_where(active, stmt.else_case)
        return tirx.IfThenElse(stmt.condition, only_where(active, stmt.then_case), otherwise)
    if isinstance(stmt, tirx.AttrStmt):
        body = only_where(active, stmt.body)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
    return stmt  # the barrier itself
