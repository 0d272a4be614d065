"""Products of float16 added up in float16 over a run of the reduction, and in float32 across runs.

A vector of float16 has twice the elements. Its sums lose digits with their number: an addition
rounds by 2**-12 of the sum in the mean. So few products are added up one by one, then the sums of
some such runs, both in float16, and what these make is added to accumulators of float32: by how
much a result is wrong does not grow with the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import constant, uses
from tvm_edge.schedules.analysis import divisors
from tvm_edge.schedules.cpu.float16_accumulators import Accumulators
from tvm_edge.schedules.cpu.float16_runs import (
    bounds,
    has_runs,
    lengths_of,
    reduced_in_float16,
    stored_in_float16,
)
from tvm_edge.schedules.cpu.retile import mapped, with_root
from tvm_edge.schedules.float16 import widened

__all__ = ["IN_FLOAT16", "accumulate_runs", "cut_loops"]

IN_FLOAT16 = "tvm_edge.in_float16"
"""Attribute of a kernel that adds products up in float16."""


def accumulate_runs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add products up in float16 in blocks that ``split_runs`` has marked.

    Where that is the whole reduction its accumulators are float16 alone, and what follows them is
    calculated in float16 if that are sums and bounds.

    Parameters
    ----------
    func : PrimFunc
        Scheduled: inside the innermost loop over the reduction that is not unrolled are loops over
        a register tile alone.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    sums = _sums_in(func)
    if not sums:
        return func
    whole = Accumulators({own.total: own.levels[-1].partial for own in sums if own.is_whole})

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        for own in sums:
            if own.node.block.same_as(node.block):
                return own.in_float16()
        return whole.used_by(stored_in_float16(node))

    def change(loop: tirx.For) -> tirx.Stmt:
        for own in sums:
            loop = own.cut(loop) if isinstance(loop, tirx.For) else loop
        return loop

    body = mapped(func.body.block.body, (), realize, change)
    kept = [buffer for buffer in func.body.block.alloc_buffers if buffer not in whole]
    partial = dict.fromkeys(level.partial for own in sums for level in own.levels)
    return with_root(func, body, [*kept, *partial]).with_attr(IN_FLOAT16, True)


@dataclass(frozen=True)
class _Level:
    """A part of a reduction whose sums are float16.

    Attributes
    ----------
    first : For
        The loop that it begins in.
    length : int
        Iterations of that, or of what levels below leave of it.
    partial : Buffer
        Accumulators in float16.
    """

    first: tirx.For
    length: int
    partial: tirx.Buffer


@dataclass(frozen=True)
class _Sums:
    """A reduction that is added up in float16.

    Attributes
    ----------
    node : SBlockRealize
    loops : sequence of For
        Around it.
    levels : sequence of _Level
        Products one by one first.
    is_whole : bool
        Whether the last level is all of the reduction.
    """

    node: s_tir.SBlockRealize
    loops: Sequence[tirx.For]
    levels: Sequence[_Level]
    is_whole: bool

    @property
    def total(self) -> tirx.Buffer:
        """Return the accumulators in float32."""
        return self.node.block.body.buffer

    def in_float16(self) -> s_tir.SBlockRealize:
        """Return the reduction, added up in float16."""
        block, store = self.node.block, self.node.block.body
        reduced = reduced_in_float16(block)
        assert reduced is not None, "it has been looked at"
        partial = self.levels[0].partial
        value = reduced(tirx.BufferLoad(partial, store.indices))
        body = tirx.BufferStore(partial, value, store.indices)
        reads = [self._region(region, partial) for region in block.reads]
        writes = [self._region(region, partial) for region in block.writes]
        made = s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, body)
        return s_tir.SBlockRealize(self.node.iter_values, self.node.predicate, made)

    def cut(self, loop: tirx.For) -> tirx.Stmt:
        """Return a loop cut where levels begin, each between zeros and an addition to the next."""
        added = self.levels[:-1] if self.is_whole else self.levels
        places = [i for i, one in enumerate(added) if one.first.loop_var.same_as(loop.loop_var)]
        if not places:
            return loop
        index = loop.loop_var
        left = constant(loop.extent) or 1
        lengths = [added[place].length for place in places]
        extents = [*lengths, left // prod(lengths)]
        names = [tirx.Var(f"{index.name}_{place}", index.ty.dtype) for place in range(len(extents))]
        value: tirx.Expr = names[-1]
        for length, name in zip(reversed(lengths), reversed(names[:-1]), strict=True):
            value = value * length + name
        stmt = _with(loop.body, {index: value})
        for place, name, extent in zip([*places, None], names, extents, strict=True):
            zero, count = (tirx.const(number, index.ty.dtype) for number in (0, extent))
            stmt = tirx.For(name, zero, count, loop.kind, stmt)
            if place is not None:
                stmt = self._between(place, stmt)
        return stmt

    def _between(self, place: int, steps: tirx.Stmt) -> tirx.Stmt:
        partial = self.levels[place].partial
        is_last = place + 1 == len(self.levels)
        into = self.total if is_last else self.levels[place + 1].partial

        def begin(indices: Sequence[tirx.Expr]) -> tirx.BufferStore:
            return tirx.BufferStore(partial, tirx.const(0, "float16"), indices)

        def add(indices: Sequence[tirx.Expr]) -> tirx.BufferStore:
            own = tirx.BufferLoad(partial, indices)
            own = widened(own) if is_last else own
            return tirx.BufferStore(into, tirx.BufferLoad(into, indices) + own, indices)

        started = self._over_tile(place, f"begin_{place}", begin, [], partial)
        return tirx.SeqStmt(
            [started, steps, self._over_tile(place, f"add_{place}", add, [partial, into], into)]
        )

    def _over_tile(
        self,
        place: int,
        name: str,
        body: Callable[[Sequence[tirx.Expr]], tirx.BufferStore],
        reads: Sequence[tirx.Buffer],
        written: tirx.Buffer,
    ) -> tirx.Stmt:
        """Return loops over the tile around a block of its accumulators."""
        block = self.node.block
        pairs = [
            (var, value)
            for var, value in zip(block.iter_vars, self.node.iter_values, strict=True)
            if var.iter_type == tirx.IterVar.DataPar
        ]
        first = [loop.same_as(self.levels[place].first) for loop in self.loops].index(True)
        inside, steps = self.loops[first + 1 :], _steps(self.node, self.loops)
        tile = [loop for loop in inside if not any(loop.same_as(step) for step in steps)]
        fresh = {loop.loop_var: _copy(loop.loop_var) for loop in tile}
        renamed = {var.var: _copy(var.var) for var, _ in pairs}
        own = [tirx.IterVar(var.dom, renamed[var.var], var.iter_type) for var, _ in pairs]
        indices = [_with(index, renamed) for index in block.body.indices]
        (region,) = (_with(region, renamed) for region in block.writes)
        regions = [
            [self._region(region, buffer) for buffer in buffers] for buffers in (reads, [written])
        ]
        made = s_tir.SBlock(own, *regions, f"{block.name_hint}_{name}", body(indices))
        predicate = _with(self.node.predicate, fresh)
        stmt: tirx.Stmt = s_tir.SBlockRealize(
            [_with(value, fresh) for _, value in pairs], predicate, made
        )
        for loop in reversed(tile):
            stmt = tirx.For(fresh[loop.loop_var], loop.min, loop.extent, loop.kind, stmt)
        return stmt

    def _region(self, region: ir.TensorRegion, buffer: tirx.Buffer) -> ir.TensorRegion:
        """Return a region of the accumulators as one of `buffer`."""
        if not region.source.same_as(self.total):
            return region
        return tirx.BufferRegion(buffer, region.region)


def _sums_in(func: tirx.PrimFunc) -> list[_Sums]:
    """Return the marked reductions; those of the same accumulators share them in float16, too."""
    found: list[_Sums] = []

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        # Its initialisation is marked as well.
        if has_runs(node.block) and reduced_in_float16(node.block) is not None:
            known = [own.levels for own in found if own.total.same_as(node.block.body.buffer)]
            found.append(_sums_of(node, loops, known[0] if known else ()))
        return node

    mapped(func.body.block.body, (), realize, lambda loop: loop)
    return found


def _sums_of(
    node: s_tir.SBlockRealize, loops: Sequence[tirx.For], known: Sequence[_Level]
) -> _Sums:
    """Choose where levels begin: as far outside as their lengths allow.

    `known` are levels of the same accumulators in another part of the kernel.
    """
    steps = _steps(node, loops)
    left = [constant(loop.extent) or 1 for loop in steps]
    short, longest = lengths_of(node.block)
    # A short reduction has one level, and a bound rounds nothing.
    limits = [prod(left)] if bounds(node.block) or prod(left) <= 2 * short else [short, longest]
    total = node.block.body.buffer
    levels: list[_Level] = []
    parts = cut_loops(left, limits)
    for part in parts:
        if not part or (levels and prod(length for _, length in part) == 1):
            continue
        place, length = part[-1]
        name = f"{total.name}_float16_{len(levels)}"
        own = known[len(levels)].partial if len(levels) < len(known) else None
        partial = own or tirx.decl_buffer(total.shape, "float16", name, scope="local", layout=None)
        levels.append(_Level(steps[place], length, partial))
    if not levels:
        name = f"{total.name}_float16"
        partial = tirx.decl_buffer(total.shape, "float16", name, scope="local", layout=None)
        levels.append(_Level(steps[-1], 1, partial))
    inside = prod(length for part in parts for _, length in part)
    return _Sums(node, loops, levels, inside == prod(left))


def cut_loops(
    extents: Sequence[int], limits: Sequence[int], inside: int = 1
) -> list[list[tuple[int, int]]]:
    """Cut loops over a reduction where levels of sums begin.

    Parameters
    ----------
    extents : sequence of int
        Of the loops, outermost first.
    limits : sequence of int
        Products of a level at most, the innermost level first. Of that there may be twice as many
        where it would have no more than half of them.
    inside : int
        Products that are inside of these loops.

    Returns
    -------
    list of list of tuple of int
        For each level the loops that it has a part of, innermost first, and how much of each.
    """
    left, place = list(extents), len(extents) - 1
    found: list[list[tuple[int, int]]] = []
    for limit in limits:
        own: list[tuple[int, int]] = []
        while place >= 0:
            part = divisors(left[place], max(limit // inside, 1))[-1]
            if not found and 2 * inside * part <= limit:
                # Of 7 taps of 8 channels: 56 one by one are better than sums after each 8.
                part = next(
                    (d for d in divisors(left[place], 2 * limit // inside) if d > part), part
                )
            if part == 1 < left[place]:
                break
            own.append((place, part))
            inside *= part
            left[place] //= part
            if left[place] > 1:
                break
            place -= 1
        found.append(own)
    return found


def _steps(node: s_tir.SBlockRealize, loops: Sequence[tirx.For]) -> list[tirx.For]:
    """Return the loops over a reduction."""
    sums = [
        value
        for var, value in zip(node.block.iter_vars, node.iter_values, strict=True)
        if var.iter_type == tirx.IterVar.CommReduce
    ]
    return [loop for loop in loops if any(uses(value, loop.loop_var) for value in sums)]


def _copy(var: tirx.Var) -> tirx.Var:
    return tirx.Var(var.name, var.ty.dtype)


def _with(node: Any, by: Mapping[tirx.Var, tirx.Expr]) -> Any:
    def value(var: tirx.Var) -> tirx.Expr:
        return next((new for old, new in by.items() if var.same_as(old)), var)

    return tvm_ffi.structural_map(node, (tirx.Var, value))
