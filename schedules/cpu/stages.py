"""The copies that a reduction reads its input through, laid out for vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import (
    branch_conditions,
)
from tvm_edge.schedules.analysis import (
    extent,
    plain_blocks,
)
from tvm_edge.schedules.contraction import Contraction
from tvm_edge.schedules.cpu.loops import lanes_of, schedule_spatial, vectorize_rows
from tvm_edge.schedules.stages import axis_map, fuse, read_index

__all__ = [
    "drop_window",
    "gather_pixels",
    "schedule_phases",
    "schedule_rest",
    "split_phases",
    "vectorize_phases",
]


def drop_window(sch: Schedule, block: SBlockRV, conv: Contraction) -> Contraction:
    """Remove the variables of a 1x1 window from a block."""
    stmt = sch.get(block)
    kept = [p for p in range(len(stmt.iter_vars)) if p not in conv.window]
    mapping = axis_map(stmt, len(stmt.iter_vars), lambda v: [v[p] for p in kept])
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

    index_map = axis_map(stmt, len(used), pixels_last)
    sch.transform_layout(stage, ("write", 0), index_map)
    sch.transform_block_layout(stage, index_map)


def split_phases(sch: Schedule, block: SBlockRV, data: tirx.Buffer, step: int) -> SBlockRV:
    """Have `block` read a copy of `data` whose last axis is stored ``[w % step, w // step]``.

    A window that moves by `step` then reads contiguous elements. Returns the copying block.
    """
    copy = sch.cache_read(block, read_index(sch.get(block), data), "global")
    stmt = sch.get(copy)
    rank = len(data.shape)

    def phases(v: list[tirx.Expr]) -> list[tirx.Expr]:
        return [*v[:-1], v[-1] % step, v[-1] // step]

    index_map = axis_map(stmt, rank, phases)
    # Where `step` does not divide the width, the new layout has elements that nobody reads.
    sch.transform_layout(copy, ("write", 0), index_map, pad_value=tirx.const(0, data.dtype))
    if len(sch.get(copy).iter_vars) == rank:
        sch.transform_block_layout(copy, index_map)
    return copy


def schedule_phases(
    sch: Schedule, copy: SBlockRV, padding: SBlockRV | None, spec: DeviceSpec
) -> None:
    """Schedule the copy of :func:`split_phases`, with the padding before it row by row.

    Padding and splitting in one pass is four times slower (90 against 22 µs for
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
    for block in plain_blocks(sch, done):
        schedule_spatial(sch, block, spec)
