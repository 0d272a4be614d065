"""One launch of a lowered GPU kernel, taken apart: its grid, its statements, its local arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import tirx

from tvm_edge.lowering.idle_items import can_idle, has_barrier
from tvm_edge.lowering.local_arrays import is_movable
from tvm_edge.lowering.parallel_members import is_pin, pinned_sub_groups
from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = ["Launch", "Sizes", "digits", "extent", "take_apart"]

Sizes = tuple[int, int, int]
"""Along x, y and z."""


@dataclass(frozen=True)
class Launch:
    """A kernel.

    Attributes
    ----------
    stmt : Stmt
        As it was.
    groups, items : Sizes
        Work-groups, and work-items of each.
    indices : sequence of (Var, str)
        Variables of `body` and which index they are: ``blockIdx.x``, ``threadIdx.z``.
    has_items : bool
        Whether it names an index of a work-item.
    body : Stmt
        What a work-item does, without the arrays in local memory and the size of sub-groups.
    arrays : sequence of Buffer
        Those arrays.
    sub_group : int or None
        That size, where one is required.
    has_barrier : bool
        Whether its work-items meet.
    can_idle : bool
        Whether its groups may have work-items that only meet the others at barriers.
    arguments : int
        Tensors of the caller's that it names.
    """

    stmt: tirx.Stmt
    groups: Sizes
    items: Sizes
    indices: Sequence[tuple[tirx.Var, str]]
    has_items: bool
    body: tirx.Stmt
    arrays: Sequence[tirx.Buffer]
    sub_group: int | None
    has_barrier: bool
    can_idle: bool
    arguments: int

    @property
    def group_count(self) -> int:
        """Work-groups in all."""
        return prod(self.groups)

    @property
    def item_count(self) -> int:
        """Work-items of a group in all."""
        return prod(self.items)

    def at(self, group: tirx.Expr, items: Sequence[tirx.Expr]) -> tirx.Stmt:
        """The body of a work-group, by its number, and of a work-item, by its three indices."""
        places = {
            f"{kind}.{axis}": place
            for kind, found in (("blockIdx", digits(group, self.groups)), ("threadIdx", items))
            for axis, place in zip("xyz", found, strict=True)
        }
        own = {
            var: places[tag]
            if str(var.ty.dtype) == "int32"
            else tirx.Cast(str(var.ty.dtype), places[tag])
            for var, tag in self.indices
        }
        return tvm_ffi.structural_map(self.body, (tirx.Var, lambda var: own.get(var, var)))


def digits(number: tirx.Expr, sizes: Sizes) -> list[tirx.Expr]:
    """Indices along x, y and z of the `number`-th place, x the fastest; `number` is not negative.

    C's division: TVM's rounds down, which costs more where it cannot see the sign.
    """
    found: list[tirx.Expr] = []
    rest = number
    for axis, size in enumerate(sizes):
        if size == 1:
            found.append(tirx.const(0, "int32"))
        elif prod(sizes[axis + 1 :]) == 1:
            found.append(rest)
        else:
            found.append(tirx.truncmod(rest, size))
            rest = tirx.truncdiv(rest, size)
    return found


def extent(index: tirx.Var, size: int, body: tirx.Stmt) -> tirx.Stmt:
    """A statement in a grid, or in groups, of `size` along the axis that `index` is named for."""
    axis = tirx.IterVar(None, index, tirx.IterVar.ThreadIndex, index.name)
    return tirx.AttrStmt(axis, "thread_extent", tirx.const(size, "int32"), body)


def take_apart(stmt: tirx.Stmt) -> Launch | None:
    """A launch, ``None`` for statements of the host's and for launches that have to stay alone.

    Those are of a size that is known in the run only, or use memory other than global memory,
    local arrays of known size, and registers.
    """
    if not isinstance(stmt, tirx.AttrStmt) or stmt.attr_key != "thread_extent":
        return None
    extents: dict[str, set[int | None]] = {}
    indices: list[tuple[tirx.Var, str]] = []
    arrays: list[tirx.Buffer] = []
    other: list[tirx.Stmt] = []
    for node in nodes_in(stmt, tirx.AttrStmt):
        if node.attr_key == "thread_extent":
            tag = str(node.node.thread_tag)
            extents.setdefault(tag, set()).add(constant(node.value))
            indices.append((node.node.var, tag))
    for node in nodes_in(stmt, tirx.AllocBuffer):
        if node.buffer.scope() == "shared" and is_movable(node.buffer, stmt):
            arrays.append(node.buffer)
        elif node.buffer.scope() != "local":
            other.append(node)
    known = {f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"}
    if other or not extents.keys() <= known:
        return None
    sizes = {tag: next(iter(found)) for tag, found in extents.items() if len(found) == 1}
    if len(sizes) != len(extents) or not all(sizes.values()):
        return None
    pins = pinned_sub_groups(stmt)
    if len(pins) > 1:
        return None
    body = _stripped(stmt, arrays)
    items = [var for var, tag in indices if tag.startswith("threadIdx")]
    meets = has_barrier(body)
    return Launch(
        stmt=stmt,
        groups=_along("blockIdx", sizes),
        items=_along("threadIdx", sizes),
        indices=indices,
        has_items=bool(items),
        body=body,
        arrays=arrays,
        sub_group=next(iter(pins), None),
        has_barrier=meets,
        can_idle=not meets or can_idle(body, items),
        arguments=_arguments(stmt),
    )


def _along(kind: str, sizes: dict[str, int | None]) -> Sizes:
    x, y, z = (sizes.get(f"{kind}.{axis}") or 1 for axis in "xyz")
    return x, y, z


def _stripped(stmt: tirx.Stmt, arrays: Sequence[tirx.Buffer]) -> tirx.Stmt:
    """A launch without what says that it is one, and without what is done once for all members."""
    nothing = tirx.Evaluate(tirx.const(0, "int32"))

    def attribute(node: tirx.AttrStmt) -> tirx.Stmt:
        return node.body if node.attr_key == "thread_extent" else node

    def allocate(node: tirx.AllocBuffer) -> tirx.Stmt:
        return nothing if any(node.buffer.same_as(array) for array in arrays) else node

    def evaluate(node: tirx.Evaluate) -> tirx.Stmt:
        return nothing if is_pin(node) else node

    return tvm_ffi.structural_map(
        stmt,
        ((tirx.AttrStmt, attribute), (tirx.AllocBuffer, allocate), (tirx.Evaluate, evaluate)),
    )


def _arguments(stmt: tirx.Stmt) -> int:
    return sum(
        isinstance(var.ty, tirx.BufferType) and var.scope() == "global"
        for var in tirx.analysis.undefined_vars(stmt, [])
    )
