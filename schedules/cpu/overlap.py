"""Register tiles along axes whose lengths only the run knows: the last one is moved back.

A tile of 14 pixels is 14 accumulators in registers, each by its name: there is no such code for a
part of a tile. Instead of a tile that ends beyond the axis one is calculated that ends with it,
and some elements are calculated twice. Axes shorter than a tile go through a copy of the loops
with tiles of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.schedules.accesses import constant, nodes_in, uses

__all__ = ["mark_parts", "mark_tiles", "overlap_tiles"]

_TILE, _PART = "tvm_edge.tile_", "tvm_edge.part_"
"""Annotations of a block, followed by the position of the axis; their value is the length."""


def mark_parts(sch: Schedule, blocks: Sequence[SBlockRV], axis: int, size: int) -> None:
    """Have :func:`overlap_tiles` end the last part of an axis where the axis ends.

    Arguments are those of :func:`mark_tiles`; one serial loop around all of `blocks` runs through
    a part.
    """
    if size > 1:
        for block in blocks:
            sch.annotate(block, f"{_PART}{axis}", size)


def mark_tiles(sch: Schedule, blocks: Sequence[SBlockRV], axis: int, size: int) -> None:
    """Have :func:`overlap_tiles` move the last tile along an axis back.

    Parameters
    ----------
    blocks : sequence of SBlockRV
        All that run over the axis in tiles: the reduction, its initialisation, its epilogue.
    axis : int
        Position of the axis among the variables of each of them. One loop of `size` steps runs
        through a tile.
    size : int
        Of a tile.
    """
    if size > 1:
        for block in blocks:
            sch.annotate(block, f"{_TILE}{axis}", size)


def overlap_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move the last tiles back along axes that :func:`mark_tiles` has marked.

    Parameters
    ----------
    func : PrimFunc
        Scheduled. It must not overwrite what it reads: some elements are calculated twice.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    made: list[tirx.Stmt] = []
    buffers = list(root.alloc_buffers)
    found = False
    for nest in nests:
        tiles = _tiles(nest)
        if not tiles:
            parts = any(_marks(block, _PART) for block in nodes_in(nest, s_tir.SBlock))
            made.append(_moved_back(nest) if parts else nest)
            found = found or parts
            continue
        found = True
        fits: tirx.Expr = tirx.const(True, "bool")
        for length, size in tiles:
            fits = tirx.And(fits, length >= tirx.const(size, length.ty.dtype))
        own = [buffer for buffer in root.alloc_buffers if _only_in(buffer, nest, nests)]
        others = [buffer for buffer in root.alloc_buffers if buffer not in own]
        copied, slow = _copied(_one_by_one(nest), own, [*func.params, *others])
        buffers += copied
        made.append(tirx.IfThenElse(fits, _moved_back(nest), slow))
    if not found:
        return func
    body = tirx.SeqStmt(made) if len(made) > 1 else made[0]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        buffers,
        root.match_buffers,
        root.annotations,
    )
    whole = s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block)
    return func.with_body(whole)


def _marks(block: s_tir.SBlock, kind: str) -> dict[int, int]:
    """Return sizes of tiles, or of parts, by axis."""
    return {
        int(str(key).removeprefix(kind)): int(value)
        for key, value in block.annotations.items()
        if str(key).startswith(kind)
    }


def _tiles(nest: tirx.Stmt) -> list[tuple[tirx.Expr, int]]:
    """Return the lengths of axes in tiles with the sizes of those, each once."""
    found: list[tuple[tirx.Expr, int]] = []
    for block in nodes_in(nest, s_tir.SBlock):
        for axis, size in _marks(block, _TILE).items():
            length = block.iter_vars[axis].dom.extent
            if not any(tvm_ffi.structural_equal(length, other) for other, _ in found):
                found.append((length, size))
    return found


def _moved_back(nest: tirx.Stmt) -> tirx.Stmt:
    """Have tiles begin where they end with the axis at the latest."""
    return _retiled(nest, lambda tile: (tirx.min(tile.first, tile.length - tile.size), None))


def _one_by_one(nest: tirx.Stmt) -> tirx.Stmt:
    """Have tiles of one element, one after the other."""
    return _retiled(nest, lambda tile: (tile.first, tirx.min(tile.length - tile.first, tile.size)))


@dataclass(frozen=True)
class _Tile:
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
    size : int
    """

    loop: tirx.Var
    var: tirx.Var
    first: tirx.Expr
    length: tirx.Expr
    size: int

    def same_as(self, other: _Tile) -> bool:
        """Return whether both are the same part of an axis of the same length."""
        pairs = (self.first, other.first), (self.length, other.length)
        return self.loop.same_as(other.loop) and all(
            tvm_ffi.structural_equal(*pair) for pair in pairs
        )


def _retiled(
    nest: tirx.Stmt, bounds: Callable[[_Tile], tuple[tirx.Expr, tirx.Expr | None]]
) -> tirx.Stmt:
    """Change where tiles begin, and maybe run through each by a loop around all of its blocks.

    `bounds` are a tile's beginning and the number of its elements; ``None`` keeps its own loops.
    """
    tiles: list[_Tile] = []
    dropped: list[tirx.Var] = []
    parts: dict[tirx.Var, tirx.Expr] = {}

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        values, predicate = list(node.iter_values), node.predicate
        for axis, size in _marks(node.block, _PART).items():
            inner = _tile_loop(values[axis], size, loops)
            first = _first(values[axis], inner, loops)
            length = node.block.iter_vars[axis].dom.extent
            parts[inner] = tirx.min(length - first, size)
            predicate = _without(predicate, inner)
        for axis, size in _marks(node.block, _TILE).items():
            inner = _tile_loop(values[axis], size, loops)
            first = _first(values[axis], inner, loops)
            length = node.block.iter_vars[axis].dom.extent
            place = [loop for loop in loops if uses(first, loop.loop_var)] or loops
            made = _Tile(
                place[-1].loop_var, tirx.Var("element", first.ty.dtype), first, length, size
            )
            tile = next((tile for tile in tiles if tile.same_as(made)), made)
            if tile is made:
                tiles.append(made)
            begin, count = bounds(tile)
            if count is None:
                values[axis] = begin + inner
            else:
                values[axis] = tile.first + tile.var
                dropped.append(inner)
            predicate = _without(predicate, inner)
        return s_tir.SBlockRealize(values, predicate, node.block)

    def change(loop: tirx.For) -> tirx.Stmt:
        if any(loop.loop_var.same_as(inner) for inner in dropped):
            return loop.body
        if loop.loop_var in parts:
            loop = _with_body(loop, loop.body, parts[loop.loop_var])
        body = loop.body
        for tile in tiles:
            if tile.loop.same_as(loop.loop_var):
                count = bounds(tile)[1]
                if count is not None:
                    body = tirx.For(tile.var, 0, count, tirx.ForKind.SERIAL, body)
        return _with_body(loop, body)

    return _mapped(nest, (), realize, change)


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


def _mapped(
    stmt: tirx.Stmt,
    loops: tuple[tirx.For, ...],
    realize: Callable[[s_tir.SBlockRealize, tuple[tirx.For, ...]], tirx.Stmt],
    change: Callable[[tirx.For], tirx.Stmt],
) -> tirx.Stmt:
    """Rewrite the loops and the innermost blocks of a nest."""

    def again(inner: tirx.Stmt, around: tirx.For | None = None) -> tirx.Stmt:
        return _mapped(inner, loops if around is None else (*loops, around), realize, change)

    if isinstance(stmt, tirx.For):
        return change(_with_body(stmt, again(stmt.body, stmt)))
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([again(part) for part in stmt.seq])
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else again(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, again(stmt.then_case), other)
    if isinstance(stmt, s_tir.SBlockRealize):
        return realize(stmt, loops)
    return stmt


def _with_body(loop: tirx.For, body: tirx.Stmt, extent: tirx.Expr | None = None) -> tirx.For:
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent if extent is None else extent,
        loop.kind,
        body,
        loop.thread_binding,
        loop.annotations,
    )


def _only_in(buffer: tirx.Buffer, nest: tirx.Stmt, nests: Sequence[tirx.Stmt]) -> bool:
    """Return whether a buffer is used by this nest alone."""
    return not any(_mentions(other, buffer) for other in nests if other is not nest)


def _mentions(stmt: tirx.Stmt, buffer: tirx.Buffer) -> bool:
    found = False

    def load(node: ir.TensorLoad) -> None:
        nonlocal found
        found = found or node.source.same_as(buffer)

    def store(node: tirx.BufferStore) -> None:
        nonlocal found
        found = found or node.buffer.same_as(buffer)

    tvm_ffi.structural_walk(stmt, ((ir.TensorLoad, load), (tirx.BufferStore, store)))
    return found


def _copied(
    nest: tirx.Stmt, own: Sequence[tirx.Buffer], others: Sequence[tirx.Var]
) -> tuple[list[tirx.Buffer], tirx.Stmt]:
    """Copy a nest: its loops, and the buffers that are its own; `others` stay as they are."""
    root = s_tir.SBlock([], [], [], "copy", nest, None, list(own))
    realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    copy = s_tir.renew_defs(tirx.PrimFunc(list(others), realized))
    kept: dict[tirx.Var, tirx.Var] = {}
    for new, old in zip(copy.params, others, strict=True):
        kept[new] = old
        if isinstance(old.ty, tirx.BufferType):
            lengths = zip(new.shape, old.shape, strict=True)
            kept |= {a: b for a, b in lengths if isinstance(a, tirx.Var)}
    body = tvm_ffi.structural_map(copy.body, (tirx.Var, lambda var: kept.get(var, var))).block
    return list(body.alloc_buffers), body.body


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
