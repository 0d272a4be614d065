"""The stages around a reduction: the copy its input is read through, what follows its sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_sblock_info
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import (
    Access,
    accesses,
    branch_conditions,
    constant,
    is_copy,
)
from tvm_edge.schedules.analysis import (
    count_reductions,
    extent,
    inline_spatial,
    is_plain,
    open_schedule,
    root_blocks,
)
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.cpu.loops import (
    fuse,
    lanes_of,
    schedule_spatial,
    vectorize_rows,
)

__all__ = [
    "aligned_consumer",
    "drop_window",
    "epilogue_of",
    "fuse_lines",
    "gather_pixels",
    "isolate",
    "open_reduction",
    "read_index",
    "schedule_phases",
    "schedule_rest",
    "split_phases",
    "vectorize_phases",
]


def open_reduction(func: tirx.PrimFunc) -> tuple[Schedule, SBlockRV] | None:
    """A schedule of a function with one reduction among spatial blocks, and that reduction."""
    if count_reductions(func) != 1:
        return None
    sch = open_schedule(func)
    blocks = [get_sblock_info(sch, block) for block in root_blocks(sch)]
    return sch, next(block.block_rv for block in blocks if not block.is_injective())


def read_index(block: s_tir.SBlock, buffer: tirx.Buffer) -> int:
    """Position of `buffer` among the reads of a block."""
    return next(i for i, region in enumerate(block.reads) if region.source.same_as(buffer))


def isolate(sch: Schedule, block: SBlockRV, data: tirx.Buffer) -> SBlockRV | None:
    """Inline all spatial blocks but the last before and the first after the reduction `block`.

    Returns the block that pads `data`, ``None`` if `data` then is a parameter of the function.
    """
    stage = None
    for producer in sch.get_producers(block):
        if sch.get(producer).writes[0].source.same_as(data):
            stage = producer
    inline_spatial(sch, keep=[] if stage is None else [sch.get(stage).name_hint])
    if stage is not None and is_copy(sch.get(stage)):
        # topi emits a padding by zero as a copy.
        sch.compute_inline(stage)
        return None
    return stage


def aligned_consumer(sch: Schedule, block: SBlockRV) -> SBlockRV | None:
    """The only consumer of a reduction's sums, if it takes each of them once, in their order."""
    sums = sch.get(block).writes[0].source
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_plain(sch, consumers[0]):
        return None
    if len(sch.get_producers(consumers[0])) != 1:
        return None  # ``reverse_compute_at`` wants all of them at the same loop
    stmt = sch.get(consumers[0])
    if any(v.iter_type != tirx.IterVar.DataPar for v in stmt.iter_vars):
        return None
    reads = [a for a in accesses(stmt)[0] if a.buffer.same_as(sums)]
    return consumers[0] if all(_indexed_by(access, stmt) for access in reads) else None


def epilogue_of(sch: Schedule, block: SBlockRV) -> SBlockRV:
    """The block that takes a reduction's sums out of their buffer, over the same axes.

    That is the reduction's consumer (bias, residual and activation inlined into it) or, where it
    has none of that form, a copy made for the purpose.
    """
    return aligned_consumer(sch, block) or sch.cache_write(block, 0, "local")


def _indexed_by(access: Access, block: s_tir.SBlock) -> bool:
    return len(access.indices) == len(block.iter_vars) and all(
        index.same_as(var.var) or constant(var.dom.extent) == 1
        for index, var in zip(access.indices, block.iter_vars, strict=True)
    )


Mapping = Callable[[list[tirx.Expr]], list[tirx.Expr]]


def _index_map(block: s_tir.SBlock, rank: int, mapping: Mapping) -> tirx.IndexMap:
    dtype = str(block.iter_vars[0].var.ty.dtype)
    return tirx.IndexMap.from_func(lambda *v: mapping(list(v)), ndim=rank, index_dtype=dtype)


def drop_window(sch: Schedule, block: SBlockRV, conv: Contraction) -> Contraction:
    """Remove the variables of a 1x1 window from a block."""
    stmt = sch.get(block)
    kept = [p for p in range(len(stmt.iter_vars)) if p not in conv.window]
    mapping = _index_map(stmt, len(stmt.iter_vars), lambda v: [v[p] for p in kept])
    sch.transform_block_layout(block, mapping)
    return conv.moved(sch.get(block), {p: i for i, p in enumerate(kept)})


def gather_pixels(sch: Schedule, block: SBlockRV, conv: Contraction) -> None:
    """Copy the elements of `data` that a strided pointwise contraction uses, pixels last."""
    stmt = sch.get(block)
    used = [p for p, v in enumerate(stmt.iter_vars) if conv.uses_data(v.var)]
    stage = sch.reindex(block, ("read", read_index(stmt, conv.data.source)))
    pixels = (conv.lines, conv.columns)
    order = [p for p in used if p in conv.outer]
    order += [p for p in used if p not in order and p not in pixels]
    order += [p for p in used if p in pixels]

    def pixels_last(v: list[tirx.Expr]) -> list[tirx.Expr]:
        return [v[used.index(p)] for p in order]

    index_map = _index_map(stmt, len(used), pixels_last)
    sch.transform_layout(stage, ("write", 0), index_map)
    sch.transform_block_layout(stage, index_map)


def fuse_lines(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, conv: Contraction
) -> Contraction:
    """Fuse lines and columns of a pointwise contraction and its epilogue into one axis."""
    first = conv.lines
    assert first is not None
    width = constant(sch.get(block).iter_vars[conv.columns].dom.extent)

    def fused(v: list[tirx.Expr]) -> list[tirx.Expr]:
        return [*v[:first], v[first] * width + v[first + 1], *v[first + 2 :]]

    for which in (block, epilogue):
        stmt = sch.get(which)
        sch.transform_block_layout(which, _index_map(stmt, len(stmt.iter_vars), fused))
    stmt = sch.get(block)
    rank = len(stmt.writes[0].source.shape)
    sch.transform_layout(block, ("write", 0), _index_map(stmt, rank, fused))
    left = range(len(sch.get(block).iter_vars))
    position = {p if p < conv.columns else p + 1: p for p in left if p != first}
    fused_conv = conv.moved(stmt, {**position, conv.columns: first})
    return replace(fused_conv, strides=(1, 1))


def split_phases(sch: Schedule, block: SBlockRV, data: tirx.Buffer, step: int) -> SBlockRV:
    """Have `block` read a copy of `data` whose last axis is stored ``[w % step, w // step]``.

    A window that moves by `step` then reads contiguous elements. Returns the copying block.
    """
    copy = sch.cache_read(block, read_index(sch.get(block), data), "global")
    stmt = sch.get(copy)
    rank = len(data.shape)

    def phases(v: list[tirx.Expr]) -> list[tirx.Expr]:
        return [*v[:-1], v[-1] % step, v[-1] // step]

    index_map = _index_map(stmt, rank, phases)
    # Where `step` does not divide the width, the new layout has elements that nobody reads.
    sch.transform_layout(copy, ("write", 0), index_map, pad_value=tirx.const(0, data.dtype))
    if len(sch.get(copy).iter_vars) == rank:
        sch.transform_block_layout(copy, index_map)
    return copy


def schedule_phases(
    sch: Schedule, copy: SBlockRV, padding: SBlockRV | None, spec: DeviceSpec
) -> None:
    """Schedule the copy of :func:`split_phases`, with the padding before it row by row.

    Padding and splitting in one pass takes four times as long (90 against 22 µs for
    128x58x58): its condition changes between the lanes.
    """
    *rows, _, _ = sch.get_loops(copy)
    row = fuse(sch, rows)
    sch.parallel(row)
    if padding is not None:
        sch.compute_at(padding, row, preserve_unit_loops=True)
        vectorize_rows(sch, padding, spec)
    vectorize_phases(sch, copy, spec)


def vectorize_phases(sch: Schedule, copy: SBlockRV, spec: DeviceSpec) -> None:
    """Vectorise the copy of :func:`split_phases` where it is.

    With the phases unrolled LLVM turns their strided loads into shuffles, 14 elements a
    nanosecond. It does so for loops longer than a vector: shorter ones are made one here, unless
    the phases differ in length and a lane may have nothing to copy.
    """
    stmt = sch.get(copy)
    *_, phase, column = sch.get_loops(copy)
    sch.unroll(phase)
    if (extent(sch, column) or 0) <= lanes_of(stmt, spec) and not branch_conditions(stmt):
        sch.vectorize(column)


def schedule_rest(sch: Schedule, done: Sequence[SBlockRV], spec: DeviceSpec) -> None:
    """Schedule the spatial blocks that are not in `done`, each by itself."""
    names = {sch.get(block).name_hint for block in done}
    for block in root_blocks(sch):
        if sch.get(block).name_hint not in names and is_plain(sch, block):
            schedule_spatial(sch, block, spec)
