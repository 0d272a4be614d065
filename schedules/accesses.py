"""Memory accesses of a block: its loads and stores, their strides, its branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

__all__ = [
    "IF_THEN_ELSE",
    "Access",
    "accesses",
    "branch_conditions",
    "coefficient",
    "constant",
    "is_copy",
    "nodes_in",
    "stride",
    "trailing_contiguous",
    "uses",
]

IF_THEN_ELSE = ir.Op.get("prim.if_then_else")


def constant(expr: Any) -> int | None:
    """The value of an integer constant, ``None`` for anything symbolic."""
    return int(expr) if isinstance(expr, int | tirx.IntImm) else None


def coefficient(index: Any, var: tirx.Var) -> int | None:
    """Return the factor of `var` in a linear index; ``None`` if that is not a constant."""
    coefficients = sym.detect_linear_equation(index, [var])
    return constant(coefficients[0]) if len(coefficients) else None


def nodes_in(node: Any, *kinds: type) -> list[Any]:
    """List the nodes of some types in an expression or statement, inner ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kinds, found.append))
    return found


@dataclass(frozen=True)
class Access:
    """One load or store of a block's body."""

    buffer: tirx.Buffer
    indices: Sequence[tirx.Expr]
    is_store: bool


def uses(node: Any, var: tirx.Var) -> bool:
    """Return whether `var` occurs in an expression or statement."""
    return any(other.same_as(var) for other in nodes_in(node, tirx.Var))


def _loads(node: Any) -> tuple[list[Access], list[tirx.Var]]:
    """The outermost loads below `node`, and the variables used outside any load."""
    loads: list[Access] = []
    variables: list[tirx.Var] = []

    def on_load(load: ir.TensorLoad) -> Any:
        loads.append(Access(load.source, load.indices, False))
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(
        node, ((ir.TensorLoad, on_load), (tirx.Var, variables.append)), order="pre"
    )
    return loads, variables


@lru_cache(maxsize=16)
def accesses(block: s_tir.SBlock) -> tuple[tuple[Access, ...], tuple[tirx.Var, ...]]:
    """All loads and stores of a block, and the variables its body uses outside of indices.

    Loads inside the indices of another load (a gather) are listed as well. Rules ask several times
    for the same block, which is itself the key: it never changes.
    """
    found: list[Access] = []
    outside: list[tirx.Var] = []

    def walk(node: Any) -> None:
        loads, variables = _loads(node)
        outside.extend(variables)
        while loads:
            load = loads.pop()
            found.append(load)
            for index in load.indices:
                if not isinstance(index, tirx.Var | tirx.IntImm):
                    loads.extend(_loads(index)[0])

    for stmt in _statements(block.body):
        if isinstance(stmt, tirx.BufferStore):
            found.append(Access(stmt.buffer, stmt.indices, True))
            walk(stmt.value)
            for index in stmt.indices:
                found.extend(_loads(index)[0])
        elif isinstance(stmt, tirx.IfThenElse):
            walk(stmt.condition)
        else:
            walk(stmt.value)
    return tuple(found), tuple(outside)


def branch_conditions(block: s_tir.SBlock) -> list[tirx.Expr]:
    """The comparisons that decide between the branches of a block's body."""
    found: list[tirx.Expr] = []

    def split(condition: tirx.Expr) -> None:
        if isinstance(condition, tirx.And | tirx.Or):
            split(condition.a)
            split(condition.b)
        elif isinstance(condition, tirx.Not):
            split(condition.a)
        else:
            found.append(condition)

    def on_call(call: ir.Call) -> None:
        if call.op.same_as(IF_THEN_ELSE):
            split(call.args[0])

    tvm_ffi.structural_walk(
        block.body,
        ((ir.Call, on_call), (tirx.IfThenElse, lambda branch: split(branch.condition))),
    )
    return found


def _statements(stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _statements(part)
        return
    yield stmt
    if isinstance(stmt, tirx.IfThenElse):
        yield from _statements(stmt.then_case)
        if stmt.else_case is not None:
            yield from _statements(stmt.else_case)


def stride(access: Access, var: tirx.Var) -> int | None:
    """Elements an access moves by when `var` grows by one; ``None`` if that is not a constant."""
    offset = access.buffer.offset_of(list(access.indices))
    if len(offset) != 1:
        return None
    return coefficient(offset[0], var)


def trailing_contiguous(block: s_tir.SBlock, count: int | None = None) -> int:
    """Number of trailing variables of a block that can be run through as one contiguous vector.

    With the last `k` variables fused, every access must go through memory element by element or
    not move at all (a scalar, a broadcast).

    Parameters
    ----------
    block : SBlock
        A plain block.
    count : int, optional
        Look at the first `count` variables only: the spatial ones of a reduction.
    """
    found, outside = accesses(block)
    iters = list(block.iter_vars)[:count]
    inner = 1  # elements below the variable looked at
    moving: dict[int, bool] = {}  # whether access i moves with the variables taken so far
    value_used = False  # whether one of them is used as a value: fused it would be a remainder
    for taken, iter_var in enumerate(reversed(iters)):
        var, size = iter_var.var, constant(iter_var.dom.extent)
        if size == 1:
            continue
        is_value = any(var.same_as(v) for v in outside)
        if size is None or (inner > 1 and (is_value or value_used)):
            return taken
        for i, access in enumerate(found):
            step = stride(access, var)
            if step not in (0, inner) or moving.setdefault(i, step != 0) != (step != 0):
                return taken
        value_used = is_value
        inner *= size
    return len(iters)


def is_copy(block: s_tir.SBlock) -> bool:
    """Return whether a block copies one buffer to another of the same shape, index by index."""
    body = block.body
    return (
        isinstance(body, tirx.BufferStore)
        and isinstance(body.value, ir.TensorLoad)
        and len(body.indices) == len(body.value.indices)
        and all(map(tvm_ffi.structural_equal, body.indices, body.value.indices))
    )
