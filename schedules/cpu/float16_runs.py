"""Products of float16 added up in float16 over a run of the reduction, and in float32 across runs.

A vector of float16 has twice the elements. Its sums lose digits with their number: after `n`
additions of numbers of either sign the error is some ``sqrt(n / 2)`` roundings, of 2**-12 each in
the mean. A run is as many of the innermost steps as :data:`LONGEST` allows, and its sum is added to
accumulators of float32: by how much a result is wrong does not grow with the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant, uses
from tvm_edge.schedules.analysis import divisors
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.cpu.float16_accumulators import Accumulators
from tvm_edge.schedules.cpu.retile import mapped, with_root
from tvm_edge.schedules.float16 import as_stored, as_word, of_word, widened

__all__ = [
    "IN_FLOAT16",
    "LONGEST",
    "accumulate_runs",
    "can_run",
    "fills_float16",
    "has_runs",
    "multiplies_float16",
    "read_float16",
    "round_float16",
    "split_runs",
]

LONGEST = 128
"""Products of a run at most. Twice as many would save 3 % of the time, for 1.4 times the error."""

IN_FLOAT16 = "tvm_edge.in_float16"
"""Attribute of a kernel that adds products up in float16."""

_RUNS, _WORDS = "tvm_edge.float16_runs", "tvm_edge.float16_words"


def multiplies_float16(func: tirx.PrimFunc, spec: DeviceSpec) -> bool:
    """Return whether products of a kernel may be added up in float16, by an instruction of that."""
    asked = func.attrs is not None and str(func.attrs.get(PRECISION, "")) == "float16"
    return asked and spec.float16


def fills_float16(lanes: int, spec: DeviceSpec) -> bool:
    """Return whether blocks of so many channels are worth vectors of float16.

    Arm's elements are those of whole vectors; on x86 half a vector of float16 has no less lanes
    than a whole one of float32.
    """
    return lanes % spec.lanes(2 if spec.multiplies_by_element else 4) == 0


def split_runs(sch: Schedule, block: SBlockRV) -> bool:
    """Have :func:`accumulate_runs` add the products of a reduction up in runs.

    Returns
    -------
    bool
        Whether its operands are of float16, as they are stored.
    """
    if _reduced(sch.get(block)) is None:
        return False
    sch.annotate(block, _RUNS, LONGEST)
    return True


def can_run(block: s_tir.SBlock) -> bool:
    """Return whether a reduction adds up products, or is a bound, whatever the type."""
    value = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    if isinstance(value, tirx.Add):
        return isinstance(value.b, tirx.Mul)
    return isinstance(value, (tirx.Max, tirx.Min))


def has_runs(block: s_tir.SBlock) -> bool:
    """Return whether a reduction is added up in runs."""
    return _RUNS in block.annotations


def read_float16(
    sch: Schedule, block: SBlockRV, stage: SBlockRV | None, *, words: bool
) -> SBlockRV | None:
    """Have a reduction read its image in float16: the one that is stored, or a copy.

    Parameters
    ----------
    sch : Schedule
    block, stage : SBlockRV
        The reduction, and the block that makes a copy for it, if one does.
    words : bool
        Whether numbers are broadcast on x86. One of 16 bits goes into all lanes by a shuffle, on a
        port that multiplies as well, and one of 32 bits by the load alone: the copy has each number
        twice, as a word.

    Returns
    -------
    SBlockRV or None
        The block that makes the copy, if there still is one.
    """
    if stage is None:
        return None
    store = sch.get(stage).body
    value = as_stored(store.value)
    if value is None:
        return stage
    if words:
        sch.unsafe_set_dtype(stage, 0, "uint32")
        sch.annotate(stage, _WORDS, 1)
        return stage
    own = [var.var for var in sch.get(stage).iter_vars]
    if isinstance(value, ir.TensorLoad) and all(
        one.same_as(var) for one, var in zip(value.indices, own, strict=True)
    ):
        sch.compute_inline(stage)
        return None
    sch.unsafe_set_dtype(stage, 0, "float16")
    return stage


def round_float16(sch: Schedule, block: SBlockRV, *, words: bool) -> None:
    """Have a block round what it calculates, for a reduction that reads it in float16.

    Parameters are those of :func:`read_float16`.
    """
    sch.unsafe_set_dtype(block, 0, "uint32" if words else "float16")
    if words:
        sch.annotate(block, _WORDS, 1)


def _reduced(block: s_tir.SBlock) -> Callable[[tirx.Expr], tirx.Expr] | None:
    """Return what a reduction of float16 makes of an accumulator, in float16."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) != "float32":
        return None
    value = store.value
    if isinstance(value, (tirx.Max, tirx.Min)):
        bound, kind = as_stored(value.b), type(value)
        return None if bound is None else lambda own: kind(own, bound)
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    left, right = _factor(value.b.a), _factor(value.b.b)
    return None if left is None or right is None else lambda own: own + left * right


def _factor(value: tirx.Expr) -> tirx.Expr | None:
    """Return a factor as float16: of a word its lower half."""
    words = isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == "uint32"
    return of_word(value.value) if words else as_stored(value)


def accumulate_runs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add products up in float16 in blocks that :func:`split_runs` has marked.

    Where a run is the whole reduction its accumulators are float16 alone, and what follows them is
    calculated in float16 if that are sums and bounds.

    Parameters
    ----------
    func : PrimFunc
        Scheduled: inside the innermost loop over the reduction that is not unrolled are loops over
        a register tile alone.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    runs = _runs_in(func)
    if not runs:
        return func
    whole = Accumulators({run.total: run.partial for run in runs if run.is_whole})

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        for run in runs:
            if run.node.block.same_as(node.block):
                return run.in_float16()
        return whole.used_by(_stored(node))

    def change(loop: tirx.For) -> tirx.Stmt:
        for run in runs:
            if not run.is_whole and run.first.loop_var.same_as(loop.loop_var):
                return run.split(loop)
        return loop

    body = mapped(func.body.block.body, (), realize, change)
    own = [b for b in func.body.block.alloc_buffers if b not in whole]
    partial = list(dict.fromkeys(run.partial for run in runs))
    return with_root(func, body, [*own, *partial]).with_attr(IN_FLOAT16, True)


def _runs_in(func: tirx.PrimFunc) -> list[_Run]:
    """Return the runs of a function; those of the same accumulators share them in float16, too."""
    runs: list[_Run] = []

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        if has_runs(node.block) and _reduced(node.block) is not None:  # not its initialisation
            known = [run.partial for run in runs if run.total.same_as(node.block.body.buffer)]
            runs.append(_run_of(node, loops, *known[:1]))
        return node

    mapped(func.body.block.body, (), realize, lambda loop: loop)
    return runs


@dataclass(frozen=True)
class _Run:
    """A part of a reduction.

    Attributes
    ----------
    node : SBlockRealize
        Of the reduction.
    first : For
        The loop that a run begins in.
    length : int
        Iterations of that.
    tile : sequence of For
        Loops inside of it over the accumulators.
    partial : Buffer
        Accumulators in float16.
    is_whole : bool
        Whether it is all of the reduction.
    """

    node: s_tir.SBlockRealize
    first: tirx.For
    length: int
    tile: Sequence[tirx.For]
    partial: tirx.Buffer
    is_whole: bool

    @property
    def total(self) -> tirx.Buffer:
        """Return the accumulators in float32."""
        return self.node.block.body.buffer

    def in_float16(self) -> s_tir.SBlockRealize:
        """Return the reduction, added up in float16."""
        block, store = self.node.block, self.node.block.body
        reduced = _reduced(block)
        assert reduced is not None, "it has been looked at"
        value = reduced(tirx.BufferLoad(self.partial, store.indices))
        body = tirx.BufferStore(self.partial, value, store.indices)
        reads = [self._region(region) for region in block.reads]
        writes = [self._region(region) for region in block.writes]
        made = s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, body)
        return s_tir.SBlockRealize(self.node.iter_values, self.node.predicate, made)

    def split(self, loop: tirx.For) -> tirx.Stmt:
        """Return the loop cut into runs, each between zeros and an addition in float32."""
        count = (constant(loop.extent) or 1) // self.length
        if count == 1:
            return self._between(loop)
        index = loop.loop_var
        outer, inner = (tirx.Var(f"{index.name}_{k}", index.ty.dtype) for k in ("run", "step"))
        body = _with(loop.body, {index: outer * self.length + inner})
        zero = tirx.const(0, index.ty.dtype)
        steps = tirx.For(inner, zero, tirx.const(self.length, index.ty.dtype), loop.kind, body)
        whole = self._between(steps)
        return tirx.For(outer, zero, tirx.const(count, index.ty.dtype), loop.kind, whole)

    def _between(self, steps: tirx.Stmt) -> tirx.Stmt:
        total = self.total

        def begin(indices: Sequence[tirx.Expr]) -> tirx.BufferStore:
            return tirx.BufferStore(self.partial, tirx.const(0, "float16"), indices)

        def add(indices: Sequence[tirx.Expr]) -> tirx.BufferStore:
            own = widened(tirx.BufferLoad(self.partial, indices))
            return tirx.BufferStore(total, tirx.BufferLoad(total, indices) + own, indices)

        return tirx.SeqStmt(
            [self._over_tile("begin", begin, False), steps, self._over_tile("add", add, True)]
        )

    def _over_tile(self, name: str, body: Any, reads: bool) -> tirx.Stmt:
        """Return loops over the tile around a block of its accumulators."""
        block = self.node.block
        pairs = [
            (var, value)
            for var, value in zip(block.iter_vars, self.node.iter_values, strict=True)
            if var.iter_type == tirx.IterVar.DataPar
        ]
        fresh = {loop.loop_var: _copy(loop.loop_var) for loop in self.tile}
        renamed = {var.var: _copy(var.var) for var, _ in pairs}
        own = [tirx.IterVar(var.dom, renamed[var.var], var.iter_type) for var, _ in pairs]
        indices = [_with(index, renamed) for index in block.body.indices]
        written = [_with(region, renamed) for region in block.writes]
        partial = [self._region(region) for region in written]
        regions = ([*partial, *written], written) if reads else ([], partial)
        made = s_tir.SBlock(own, *regions, f"{block.name_hint}_{name}", body(indices))
        predicate = _with(self.node.predicate, fresh)
        stmt: tirx.Stmt = s_tir.SBlockRealize(
            [_with(value, fresh) for _, value in pairs], predicate, made
        )
        for loop in reversed(self.tile):
            stmt = tirx.For(fresh[loop.loop_var], loop.min, loop.extent, loop.kind, stmt)
        return stmt

    def _region(self, region: ir.TensorRegion) -> ir.TensorRegion:
        if not region.source.same_as(self.total):
            return region
        return tirx.BufferRegion(self.partial, region.region)


def _run_of(
    node: s_tir.SBlockRealize, loops: Sequence[tirx.For], known: tirx.Buffer | None = None
) -> _Run:
    """Choose where a run begins: as far outside as its length allows.

    `known` are accumulators in float16 that it has already.
    """
    sums = [
        value
        for var, value in zip(node.block.iter_vars, node.iter_values, strict=True)
        if var.iter_type == tirx.IterVar.CommReduce
    ]
    steps = [loop for loop in loops if any(uses(value, loop.loop_var) for value in sums)]
    longest, first, length = int(node.block.annotations[_RUNS]), steps[-1], 0
    for loop in reversed(steps):
        extent = constant(loop.extent) or 1
        part = divisors(extent, max(longest, 1))[-1]
        if part == 1 < extent:
            break
        first, length, longest = loop, part, longest // part
        if part < extent:
            break
    inside = loops[[each.same_as(first) for each in loops].index(True) + 1 :]
    tile = [loop for loop in inside if not any(loop.same_as(step) for step in steps)]
    total = node.block.body.buffer
    name = f"{total.name}_float16"
    partial = known or tirx.decl_buffer(total.shape, "float16", name, scope="local", layout=None)
    is_whole = first.same_as(steps[0]) and length == constant(first.extent)
    return _Run(node, first, length, tile, partial, is_whole)


def _stored(node: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    """Return a block that stores a float16 as it is where it was widened and rounded again.

    Or as a word, maybe one that it calculates.
    """
    block, store = node.block, node.block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Cast):
        return node
    value = as_stored(store.value.value)
    if _WORDS in block.annotations:
        value = as_word(tirx.Cast("float16", store.value.value) if value is None else value)
    elif value is None or str(store.buffer.dtype) != "float16":
        return node
    made = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.BufferStore(store.buffer, value, store.indices),
        annotations={k: v for k, v in block.annotations.items() if k != _WORDS},
    )
    return s_tir.SBlockRealize(node.iter_values, node.predicate, made)


def _copy(var: tirx.Var) -> tirx.Var:
    return tirx.Var(var.name, var.ty.dtype)


def _with(node: Any, by: Mapping[tirx.Var, tirx.Expr]) -> Any:
    def value(var: tirx.Var) -> tirx.Expr:
        return next((new for old, new in by.items() if var.same_as(old)), var)

    return tvm_ffi.structural_map(node, (tirx.Var, value))
