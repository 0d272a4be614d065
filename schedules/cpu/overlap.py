"""Register tiles along axes whose lengths only the run knows.

A tile of 14 pixels is 14 accumulators in registers, each by its name: there is no such code for a
part of a tile. What is left of an axis after its whole tiles goes through a copy of the loops with
small tiles. What is beyond the axis in the last of these reads the last element again, and is not
stored. Tiles without a smaller size (of vectors) are moved back to end with the axis, and store
elements twice; axes shorter than such a tile go through a copy with tiles of one element.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.cpu.retile import PART, SMALL, TILE, Tile, begun, marks, retiled, with_root

__all__ = ["TWICE", "mark_parts", "mark_tiles", "overlap_tiles", "small_tile"]

TWICE = "tvm_edge.twice"
"""Attribute of a kernel that stores some elements twice."""

_LATENCY = 8
"""Accumulators that keep two units busy whose multiply-adds take four cycles."""


def small_tile(size: int, vectors: int) -> int:
    """Return the size of small tiles beside those of `size` with so many vectors an element.

    The smallest with work for every cycle, but at most half a tile.
    """
    return max(1, min(-(-_LATENCY // vectors), size // 2))


def mark_parts(sch: Schedule, blocks: Sequence[SBlockRV], axis: int, size: int) -> None:
    """Have :func:`overlap_tiles` end the last part of an axis where the axis ends.

    Arguments are those of :func:`mark_tiles`; one serial loop around all of `blocks` runs through
    a part.
    """
    if size > 1:
        for block in blocks:
            sch.annotate(block, f"{PART}{axis}", size)


def mark_tiles(
    sch: Schedule, blocks: Sequence[SBlockRV], axis: int, size: int, small: int = 0
) -> None:
    """Have :func:`overlap_tiles` end the last tile along an axis where the axis ends.

    Parameters
    ----------
    blocks : sequence of SBlockRV
        All that run over the axis in tiles: the reduction, its initialisation, its epilogue.
    axis : int
        Position of the axis among the variables of each of them. One loop of `size` steps runs
        through a tile.
    size : int
        Of a tile.
    small : int
        Of a tile for what is left after whole ones; 0: the last whole one is moved back. With 1
        nothing is calculated twice.
    """
    if size > 1:
        for block in blocks:
            sch.annotate(block, f"{TILE}{axis}", size)
            if small:
                sch.annotate(block, f"{SMALL}{axis}", small)


def overlap_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """End the last tiles along axes that :func:`mark_tiles` has marked.

    Parameters
    ----------
    func : PrimFunc
        Scheduled. Where a tile has no smaller one it must not overwrite what it reads, and the
        result says :data:`TWICE`.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    made: list[tirx.Stmt] = []
    buffers = list(root.alloc_buffers)
    found = twice = False
    for nest in nests:
        own = [buffer for buffer in root.alloc_buffers if _only_in(buffer, nest, nests)]
        others = [*func.params, *(buffer for buffer in root.alloc_buffers if buffer not in own)]
        ended = _Ended(own, others, buffers)
        blocks = nodes_in(nest, s_tir.SBlock)
        if not any(marks(block, kind) for block in blocks for kind in (PART, TILE)):
            made.append(nest)
            continue
        found = True
        fits: tirx.Expr | None = None
        for length, least in _tiles(nest):
            if _is_at_least(length, least):
                continue
            long = length >= tirx.const(least, length.ty.dtype)
            fits = long if fits is None else tirx.And(fits, long)
        usual = retiled(nest, ended.tile)
        twice = twice or ended.twice
        if fits is None:
            made.append(usual)
            continue
        copied, slow = _copied(_one_by_one(nest), own, others)
        buffers += copied
        made.append(tirx.IfThenElse(fits, usual, slow))
    if not found:
        return func
    body = tirx.SeqStmt(made) if len(made) > 1 else made[0]
    done = with_root(func, body, buffers)
    return done.with_attr(TWICE, True) if twice else done


def _is_at_least(length: tirx.Expr, least: int) -> bool:
    """Return whether an axis that is not empty is as long.

    A condition that only an empty axis fails would have TVM simplify its code for a length of 0, by
    which it then divides.
    """
    if least == 1 or (constant(length) or 0) >= least:
        return True
    multiple = sym.Analyzer().modular_set(length)
    return multiple.base == 0 and multiple.coeff >= least


def _tiles(nest: tirx.Stmt) -> list[tuple[tirx.Expr, int]]:
    """Return the lengths of axes whose tiles are moved back, each once, with their largest tile."""
    found: list[tuple[tirx.Expr, int]] = []
    for block in nodes_in(nest, s_tir.SBlock):
        small = marks(block, SMALL)
        for axis, size in marks(block, TILE).items():
            if axis in small:
                continue
            length = block.iter_vars[axis].dom.extent
            same = (i for i, (o, _) in enumerate(found) if tvm_ffi.structural_equal(length, o))
            at = next(same, None)
            if at is None:
                found.append((length, size))
            else:
                found[at] = (length, max(found[at][1], size))
    return found


class _Ended:
    """Ends tiles where their axis ends.

    Parameters
    ----------
    own : sequence of Buffer
        Of the nest alone: copies of loops have copies of them.
    others : sequence of Buffer
    buffers : list of Buffer
        All that the kernel allocates; copies are added.
    """

    def __init__(
        self,
        own: Sequence[tirx.Buffer],
        others: Sequence[tirx.Var],
        buffers: list[tirx.Buffer],
    ) -> None:
        self._own, self._others, self._buffers = own, others, buffers
        self.twice = False

    def tile(self, tile: Tile, body: tirx.Stmt, nest: tirx.Stmt) -> tirx.Stmt:
        """Return what runs through a tile instead of `body`, the loops inside its loop."""
        last = tile.length - tile.size
        if not tile.small:
            self.twice = True
            return begun(body, tile, tile.size, tirx.min(tile.first, last))
        inside = [b for b in self._own if _mentions(tile.body, b) == _mentions(nest, b)]
        outside = [buffer for buffer in self._own if buffer not in inside]
        left = tirx.max(tile.length - tile.first, 0)
        count = tirx.floordiv(left + (tile.small - 1), tile.small)
        small = begun(body, tile, tile.small, tile.first + tile.var * tile.small, inside)
        small = tirx.For(tile.var, 0, count, tirx.ForKind.SERIAL, small)
        copied, small = _copied(small, inside, [*self._others, *outside])
        self._buffers += copied
        return tirx.IfThenElse(tile.first <= last, begun(body, tile, tile.size, tile.first), small)


def _one_by_one(nest: tirx.Stmt) -> tirx.Stmt:
    """Have tiles of one element, one after the other."""

    def single(tile: Tile, body: tirx.Stmt, _nest: tirx.Stmt) -> tirx.Stmt:
        count = tirx.min(tile.length - tile.first, tile.size)
        one = begun(body, tile, 1, tile.first + tile.var)
        return tirx.For(tile.var, 0, count, tirx.ForKind.SERIAL, one)

    return retiled(nest, single)


def _only_in(buffer: tirx.Buffer, nest: tirx.Stmt, nests: Sequence[tirx.Stmt]) -> bool:
    """Return whether a buffer is used by this nest alone."""
    return not any(_mentions(other, buffer) for other in nests if other is not nest)


def _mentions(stmt: tirx.Stmt, buffer: tirx.Buffer) -> int:
    """Return how many times a statement reads and writes a buffer."""
    found = 0

    def load(node: ir.TensorLoad) -> None:
        nonlocal found
        found += node.source.same_as(buffer)

    def store(node: tirx.BufferStore) -> None:
        nonlocal found
        found += node.buffer.same_as(buffer)

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
