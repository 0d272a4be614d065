"""Loops through register tiles, rewritten after they are scheduled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import constant, uses

__all__ = [
    "PART",
    "SMALL",
    "TILE",
    "Tile",
    "begun",
    "mapped",
    "marks",
    "retiled",
    "with_body",
    "with_root",
]

TILE, PART, SMALL = "tvm_edge.tile_", "tvm_edge.part_", "tvm_edge.small_"
"""Annotations of a block, followed by the position of the axis; their value is the length."""


def marks(block: s_tir.SBlock, kind: str) -> dict[int, int]:
    """Return sizes of tiles, or of parts, by axis."""
    return {
        int(str(key).removeprefix(kind)): int(value)
        for key, value in block.annotations.items()
        if str(key).startswith(kind)
    }


@dataclass(frozen=True)
class Tile:
    """A tile that blocks run through.

    Attributes
    ----------
    loop : Var
        Of the innermost loop around the tile.
    var : Var
        Of a loop around the tile, if it gets one.
    first : Expr
        Where the tile would begin.
    length : Expr
        Of the axis.
    size, small : int
        `small` is 0 where there are no small tiles.
    body : Stmt
        The loop's, as it was scheduled.
    """

    loop: tirx.Var
    var: tirx.Var
    first: tirx.Expr
    length: tirx.Expr
    size: int
    small: int
    body: tirx.Stmt

    def same_as(self, other: Tile) -> bool:
        """Return whether both are the same part of an axis of the same length."""
        pairs = (self.first, other.first), (self.length, other.length)
        return self.loop.same_as(other.loop) and all(
            tvm_ffi.structural_equal(*pair) for pair in pairs
        )


def retiled(
    nest: tirx.Stmt, change_tile: Callable[[Tile, tirx.Stmt, tirx.Stmt], tirx.Stmt]
) -> tirx.Stmt:
    """Change the loops through tiles.

    `change_tile` is given a tile, the statement inside of its loop, whose blocks have the values
    that :func:`begun` changes, and the nest.
    """
    tiles: list[Tile] = []
    parts: dict[tirx.Var, tirx.Expr] = {}

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        values, predicate = list(node.iter_values), node.predicate
        for axis, size in marks(node.block, PART).items():
            inner = _tile_loop(values[axis], size, loops)
            first = _first(values[axis], inner, loops)
            length = node.block.iter_vars[axis].dom.extent
            parts[inner] = tirx.min(length - first, size)
            predicate = _without(predicate, inner)
        small = marks(node.block, SMALL)
        for axis, size in marks(node.block, TILE).items():
            inner = _tile_loop(values[axis], size, loops)
            first = _first(values[axis], inner, loops)
            length = node.block.iter_vars[axis].dom.extent
            place = [loop for loop in loops if uses(first, loop.loop_var)] or loops
            var = tirx.Var("element", first.ty.dtype)
            made = Tile(
                place[-1].loop_var, var, first, length, size, small.get(axis, 0), place[-1].body
            )
            if not any(tile.same_as(made) for tile in tiles):
                tiles.append(made)
            values[axis] = tirx.Add(first, inner)
            predicate = _without(predicate, inner)
        return s_tir.SBlockRealize(values, predicate, node.block)

    def change(loop: tirx.For) -> tirx.Stmt:
        if loop.loop_var in parts:
            loop = with_body(loop, loop.body, parts[loop.loop_var])
        body = loop.body
        for tile in tiles:
            if tile.loop.same_as(loop.loop_var):
                body = change_tile(tile, body, nest)
        return with_body(loop, body)

    return mapped(nest, (), realize, change)


def begun(
    body: tirx.Stmt,
    tile: Tile,
    size: int,
    begin: tirx.Expr,
    inside: Sequence[tirx.Buffer] | None = None,
) -> tirx.Stmt:
    """Have the blocks of a tile run through `size` elements from `begin`.

    With `inside`, the buffers of the tile alone, the axis may end before the tile does: what is
    beyond reads the last element again, and is written to these buffers only.
    """
    changed: list[tirx.Var] = []

    def realize(node: s_tir.SBlockRealize, _loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        values, predicate, block = list(node.iter_values), node.predicate, node.block
        for axis in marks(block, TILE):
            value = values[axis]
            length = block.iter_vars[axis].dom.extent
            of_tile = isinstance(value, tirx.Add) and tvm_ffi.structural_equal(value.a, tile.first)
            if not of_tile or not tvm_ffi.structural_equal(length, tile.length):
                continue
            changed.append(value.b)
            values[axis] = begin + value.b if size > 1 else begin
            if inside is None or size == 1:
                continue
            if all(region.source in inside for region in block.writes):
                block = _reading_inside(block, axis, inside)
            else:
                predicate = tirx.And(predicate, values[axis] < length)
        return s_tir.SBlockRealize(values, predicate, block)

    def change(loop: tirx.For) -> tirx.Stmt:
        if not any(loop.loop_var.same_as(var) for var in changed) or size == tile.size:
            return loop
        return (
            loop.body
            if size == 1
            else with_body(loop, loop.body, tirx.const(size, loop.loop_var.ty.dtype))
        )

    return mapped(body, (), realize, change)


def _reading_inside(block: s_tir.SBlock, axis: int, inside: Sequence[tirx.Buffer]) -> s_tir.SBlock:
    """Have a block read other buffers than those of its tile within an axis."""
    var, length = block.iter_vars[axis].var, block.iter_vars[axis].dom.extent
    last = length - tirx.const(1, length.ty.dtype)

    def within(index: tirx.Expr) -> tirx.Expr:
        ended = (tirx.Var, lambda used: tirx.min(var, last) if used.same_as(var) else used)
        return tvm_ffi.structural_map(index, ended)

    def load(node: ir.TensorLoad) -> tirx.Expr:
        if node.source in inside:
            return node
        return tirx.BufferLoad(node.source, [within(index) for index in node.indices])

    def region(read: ir.TensorRegion) -> ir.TensorRegion:
        if read.source in inside:
            return read
        ranges = [ir.Range.from_min_extent(within(r.min), r.extent) for r in read.region]
        return tirx.BufferRegion(read.source, ranges)

    return s_tir.SBlock(
        block.iter_vars,
        [region(read) for read in block.reads],
        block.writes,
        block.name_hint,
        tvm_ffi.structural_map(block.body, ((ir.TensorLoad, load), (ir.TensorRegion, region))),
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _tile_loop(value: tirx.Expr, size: int, loops: Sequence[tirx.For]) -> tirx.Var:
    """Return the variable of the loop through a tile: the innermost of its length."""
    return next(
        loop.loop_var
        for loop in reversed(loops)
        if constant(loop.extent) == size and uses(value, loop.loop_var)
    )


def _without(predicate: tirx.Expr, var: tirx.Var) -> tirx.Expr:
    """Drop the conditions on a variable."""
    if isinstance(predicate, tirx.And):
        kept = [_without(part, var) for part in (predicate.a, predicate.b)]
        left = [part for part in kept if constant(part) != 1]
        return tirx.And(*left) if len(left) == 2 else [*left, tirx.const(True, "bool")][0]
    return tirx.const(True, "bool") if uses(predicate, var) else predicate


def mapped(
    stmt: tirx.Stmt,
    loops: tuple[tirx.For, ...],
    realize: Callable[[s_tir.SBlockRealize, tuple[tirx.For, ...]], tirx.Stmt],
    change: Callable[[tirx.For], tirx.Stmt],
) -> tirx.Stmt:
    """Rewrite the loops and the innermost blocks of a nest."""

    def again(inner: tirx.Stmt, around: tirx.For | None = None) -> tirx.Stmt:
        return mapped(inner, loops if around is None else (*loops, around), realize, change)

    if isinstance(stmt, tirx.For):
        return change(with_body(stmt, again(stmt.body, stmt)))
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([again(part) for part in stmt.seq])
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else again(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, again(stmt.then_case), other)
    if isinstance(stmt, s_tir.SBlockRealize):
        return realize(stmt, loops)
    return stmt


def with_body(loop: tirx.For, body: tirx.Stmt, extent: tirx.Expr | None = None) -> tirx.For:
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent if extent is None else extent,
        loop.kind,
        body,
        loop.thread_binding,
        loop.annotations,
    )


def _first(value: tirx.Expr, inner: tirx.Var, loops: Sequence[tirx.For]) -> tirx.Expr:
    """Return the value at the beginning of a tile that `inner` runs through."""
    single = {loop.loop_var: 0 for loop in loops if constant(loop.extent) == 1}
    return _substituted(value, {**single, inner: 0})


def _substituted(value: tirx.Expr, by: Mapping[tirx.Var, int]) -> tirx.Expr:
    def number(var: tirx.Var) -> tirx.Expr:
        for old, new in by.items():
            if var.same_as(old):
                return tirx.const(new, var.ty.dtype)
        return var

    return tvm_ffi.structural_map(value, (tirx.Var, number))


def with_root(
    func: tirx.PrimFunc, body: tirx.Stmt, buffers: Sequence[tirx.Buffer] | None = None
) -> tirx.PrimFunc:
    """Return a function of blocks with another body, and maybe other buffers that it allocates."""
    root = func.body.block
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        root.alloc_buffers if buffers is None else list(buffers),
        root.match_buffers,
        root.annotations,
    )
    return func.with_body(s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block))
