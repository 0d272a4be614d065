"""Products of float16 added up in float16 over a run of the reduction, and in float32 across runs.

A vector of float16 has twice the elements. Its sums lose digits with their number: after `n`
additions of numbers of either sign the error is some ``sqrt(n / 2)`` roundings, of 2**-12 each in
the mean. A run is as many of the innermost steps as :data:`LONGEST` allows, and its sum is added to
accumulators of float32: by how much a result is wrong does not grow with the channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tvm_edge.schedules.cpu.retile import mapped, with_root
from tvm_edge.schedules.float16 import as_stored, as_word, of_word, widened

__all__ = [
    "IN_FLOAT16",
    "LONGEST",
    "accumulate_runs",
    "has_runs",
    "multiplies_float16",
    "read_float16",
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


def split_runs(sch: Schedule, block: SBlockRV) -> bool:
    """Have :func:`accumulate_runs` add the products of a reduction up in runs.

    Returns
    -------
    bool
        Whether its operands are of float16, as they are stored.
    """
    if _products(sch.get(block)) is None:
        return False
    sch.annotate(block, _RUNS, LONGEST)
    return True


def has_runs(block: s_tir.SBlock) -> bool:
    """Return whether a reduction is added up in runs."""
    return _RUNS in block.annotations


def read_float16(
    sch: Schedule, block: SBlockRV, stage: SBlockRV | None, spec: DeviceSpec
) -> SBlockRV | None:
    """Have a reduction read its image in float16: the one that is stored, or a copy.

    Arm's instructions multiply by an element of a vector. On x86 a number of 16 bits goes into all
    lanes by a shuffle, on a port that multiplies as well, and one of 32 bits by the load alone: the
    copy has each number twice, as a word.

    Returns the block that makes the copy, if there still is one.
    """
    if stage is None:
        return None
    store = sch.get(stage).body
    value = as_stored(store.value)
    if value is None:
        return stage
    if not spec.multiplies_by_element:
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


def _products(block: s_tir.SBlock) -> tuple[tirx.Expr, tirx.Expr] | None:
    """Return the factors of a sum of products of float16, as float16."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    product = store.value.b
    if not isinstance(product, tirx.Mul) or str(store.buffer.dtype) != "float32":
        return None
    left, right = _factor(product.a), _factor(product.b)
    return None if left is None or right is None else (left, right)


def _factor(value: tirx.Expr) -> tirx.Expr | None:
    """Return a factor as float16: of a word its lower half."""
    words = isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == "uint32"
    return of_word(value.value) if words else as_stored(value)


def accumulate_runs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add products up in float16 in blocks that :func:`split_runs` has marked.

    Parameters
    ----------
    func : PrimFunc
        Scheduled: inside the innermost loop over the reduction that is not unrolled are loops over
        a register tile alone.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    runs: list[_Run] = []

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        if not has_runs(node.block):
            return _stored(node)
        if _products(node.block) is None:  # its initialisation
            return node
        run = _run_of(node, loops)
        runs.append(run)
        return run.in_float16()

    def change(loop: tirx.For) -> tirx.Stmt:
        for run in runs:
            if run.first.loop_var.same_as(loop.loop_var):
                return run.split(loop)
        return loop

    body = mapped(func.body.block.body, (), realize, change)
    if not runs:
        return func
    buffers = [*func.body.block.alloc_buffers, *(run.partial for run in runs)]
    return with_root(func, body, buffers).with_attr(IN_FLOAT16, True)


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
    """

    node: s_tir.SBlockRealize
    first: tirx.For
    length: int
    tile: Sequence[tirx.For]
    partial: tirx.Buffer

    def in_float16(self) -> s_tir.SBlockRealize:
        """Return the reduction, added up in float16."""
        block, store = self.node.block, self.node.block.body
        factors = _products(block)
        assert factors is not None, "it has been looked at"
        own = tirx.BufferLoad(self.partial, store.indices)
        body = tirx.BufferStore(self.partial, own + factors[0] * factors[1], store.indices)
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
        store = self.node.block.body
        total = store.buffer

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
        if not region.source.same_as(self.node.block.body.buffer):
            return region
        return tirx.BufferRegion(self.partial, region.region)


def _run_of(node: s_tir.SBlockRealize, loops: Sequence[tirx.For]) -> _Run:
    """Choose where a run begins: as far outside as its length allows."""
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
    accumulators = node.block.body.buffer
    name, shape = f"{accumulators.name}_float16", accumulators.shape
    partial = tirx.decl_buffer(shape, "float16", name, scope="local", layout=None)
    return _Run(node, first, length, tile, partial)


def _stored(node: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    """Return a block that stores a float16 as it is where it was widened and rounded again."""
    block, store = node.block, node.block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Cast):
        return node
    value = as_stored(store.value.value)
    if value is None:
        return node
    if _WORDS in block.annotations:
        value = as_word(value)
    elif str(store.buffer.dtype) != "float16":
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
