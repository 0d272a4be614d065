"""Parallel and vector loops on a CPU, and the schedule of a single block made of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import (
    accesses,
    branch_conditions,
    constant,
    nodes_in,
    stride,
    trailing_contiguous,
    uses,
)
from tvm_edge.schedules.analysis import accepts, divisors, extent
from tvm_edge.schedules.cpu.overlap import mark_tiles
from tvm_edge.schedules.cpu.transpose import Transpose, match_transpose
from tvm_edge.schedules.stages import fuse
from tvm_edge.schedules.typical import typical

__all__ = [
    "MIN_PARALLEL_WORK",
    "can_peel",
    "lanes_of",
    "peel_remainder",
    "schedule_spatial",
    "split_vectors",
    "vector_length",
    "vectorize_rows",
]

MIN_PARALLEL_WORK = 4096
"""Vector operations below which a kernel stays on one core: launching a parallel loop costs
1.7 µs, and the second core has to win that back."""

_PEEL = "pragma_loop_partition_hint"


def lanes_of(block: s_tir.SBlock, spec: DeviceSpec) -> int:
    """Lanes of one vector register for the widest type a block reads or writes."""
    widest = max((a.buffer.dtype.bits for a in accesses(block)[0]), default=32)
    return spec.lanes((widest + 7) // 8)


def can_peel(sch: Schedule, loop: LoopRV) -> bool:
    """Return whether the remainder of a loop's last vector can be split off.

    :func:`peel_remainder` does that.

    Only from 32-bit loops, see :func:`tvm_edge.schedules.analysis.narrow_indices`. Elsewhere a
    vector loop with a remainder would run lane by lane.
    """
    return sch.get(loop).loop_var.ty.dtype == "int32" and extent(sch, loop) is not None


def vector_length(sch: Schedule, loop: LoopRV, lanes: int) -> int:
    """Lanes to vectorise a loop by: `lanes` where the remainder can be peeled, else a divisor."""
    size = extent(sch, loop)
    if size is None:
        return 1
    if size <= lanes or can_peel(sch, loop):
        return min(size, lanes)
    return divisors(size, lanes)[-1]


def peel_remainder(sch: Schedule, loops: Sequence[LoopRV]) -> None:
    """Have loops cut where a condition on them changes, so that vectors are free of it.

    `loops` are all those the condition depends on; none may be fused with others.
    """
    for loop in loops:
        sch.annotate(loop, _PEEL, 1)


def split_vectors(
    sch: Schedule, loop: LoopRV, vectors: int, lanes: int, *, peel: bool = False
) -> list[LoopRV]:
    """Split a loop into (tiles, `vectors`, `lanes`) and have the remainder peeled off.

    The peeled part is vector code with fewer vectors, then fewer lanes. The outermost of the
    three must stay a loop of its own: fused with another, the remainder could not be told apart.

    Parameters
    ----------
    peel : bool
        Peel even if nothing remains: the border of a padding, where a condition changes its
        value. The condition must not depend on another loop, or the peeled extents do.
    """
    size = extent(sch, loop)
    parts = sch.split(loop, factors=[None, vectors, lanes])
    if peel or size is None or size % (vectors * lanes):
        peel_remainder(sch, parts)
    return list(parts)


def schedule_spatial(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> None:
    """Schedule a plain block without reduction: contiguous loops become vectors, the rest threads.

    Degrades by itself: without a contiguous direction the loop along the output is vectorised
    (loads are then gathered lane by lane), symbolic extents stay scalar, small blocks serial.
    """
    stmt = sch.get(block)
    loops = list(sch.get_loops(block))
    sizes = [extent(sch, loop) for loop in loops]
    if not loops or 0 in sizes:
        return
    transpose = match_transpose(stmt, spec)
    fits = _may_be_written_twice(sch, stmt) if None in sizes else can_peel(sch, loops[-1])
    if transpose is not None and fits:
        _schedule_transpose(sch, block, transpose, spec)
        return
    found, _ = accesses(stmt)
    variables = [v.var for v in stmt.iter_vars]
    taken = trailing_contiguous(stmt)
    if taken == 0:
        along_output = _output_axis(stmt)
        if along_output is not None and along_output != len(loops) - 1:
            loops.append(loops.pop(along_output))
            variables.append(variables.pop(along_output))
            if not accepts(sch.reorder, *loops):
                return
        taken = 1
    taken = _whole_vectors(sizes, taken, lanes_of(stmt, spec))
    body = fuse(sch, loops[len(loops) - taken :])
    outer = loops[: len(loops) - taken]
    size = extent(sch, body)
    lanes, border = _vectors_of(sch, stmt, body, variables[len(loops) - taken :], spec)
    exact = size is not None and size % lanes == 0 and not border
    twice = _may_be_written_twice(sch, stmt)
    if size is None and taken == 1 and twice and _in_order(stmt, variables[-1]):
        lanes = lanes_of(stmt, spec)
        body, lane = sch.split(body, factors=[None, lanes])
        sch.vectorize(lane)
        axis = next(i for i, v in enumerate(stmt.iter_vars) if v.var.same_as(variables[-1]))
        mark_tiles(sch, [block], axis, lanes)
    elif lanes > 1:
        body, _, lane = split_vectors(sch, body, 1, lanes, peel=border)
        accepts(sch.vectorize, lane)
    total = prod(typical(var.dom.extent) for var in stmt.iter_vars)
    if total * len(found) < MIN_PARALLEL_WORK * lanes:
        return
    rows = prod(s or spec.cores for s in sizes[: len(loops) - taken])
    if rows == 1 or (rows < spec.cores and not exact):
        accepts(sch.parallel, body)
    elif rows < 4 * spec.cores and exact and size is not None and size > lanes:
        accepts(sch.parallel, fuse(sch, [*outer, body]))
    else:
        accepts(sch.parallel, fuse(sch, _tasks(sch, outer, spec)))


def _tasks(sch: Schedule, loops: Sequence[LoopRV], spec: DeviceSpec) -> Sequence[LoopRV]:
    """Return the outermost loops that make tasks: all, or enough where only the run knows lengths.

    Each task, or each element if all loops are tasks, divides by the lengths of what is fused.
    """
    sizes = [typical(sch.get(loop).extent) for loop in loops]
    if all(extent(sch, loop) is not None for loop in loops):
        return loops
    counts = range(1, len(loops) + 1)
    enough = (count for count in counts if prod(sizes[:count]) >= 8 * spec.cores)
    return loops[: next(enough, len(loops))]


def _may_be_written_twice(sch: Schedule, block: s_tir.SBlock) -> bool:
    """Return whether elements may be calculated twice: TVM puts none in the place of an operand.

    Its ``StorageRewrite`` does that with tensors that a kernel allocates.
    """
    return any(block.writes[0].source.same_as(param) for param in sch.mod["main"].params)


def _in_order(block: s_tir.SBlock, var: tirx.Var) -> bool:
    """Return whether every access moves element by element with a variable, or not at all."""
    found, outside = accesses(block)
    moves = all(stride(access, var) in (0, 1) for access in found)
    decides = any(uses(condition, var) for condition in branch_conditions(block))
    return moves and not decides and not any(var.same_as(other) for other in outside)


def _whole_vectors(sizes: Sequence[int | None], most: int, lanes: int) -> int:
    """Number of trailing loops to fuse: as few as give whole vectors, or else `most`.

    With more of them TVM does not see that the fused index is contiguous: of ``t * 16 + lane`` it
    takes ``// 3136`` to be ``t // 196``, and does not put the rest together again. Every vector
    would be gathered and scattered (an image of 255x52x52: 870 instead of 190 µs).
    """
    for count in range(1, most):
        whole = [size for size in sizes[len(sizes) - count :] if size is not None]
        if len(whole) == count and prod(whole) % lanes == 0:
            return count
    return most


def _schedule_transpose(
    sch: Schedule, block: SBlockRV, transpose: Transpose, spec: DeviceSpec
) -> None:
    """Tiles of some vectors of the output, whose elements share the cache lines they come from.

    In the order of the output each element would cost a line of its own, as soon as the lines
    read for one row of the output outgrow the cache (2.5 instead of 1.2 elements a nanosecond).
    """
    stmt = sch.get(block)
    lanes = lanes_of(stmt, spec)
    loops = list(sch.get_loops(block))
    sizes = [typical(sch.get(loop).extent) for loop in loops]
    count, depth = _strip(transpose, [extent(sch, loop) for loop in loops])
    columns = fuse(sch, loops[-transpose.columns :])
    first = transpose.row + 1 - count
    outer = [*loops[:first], *loops[transpose.row + 1 : len(loops) - transpose.columns]]
    row = fuse(sch, loops[first : transpose.row + 1])
    size = extent(sch, row)
    strips, row = sch.split(row, factors=[None, depth])
    if size is None or (size % depth and size > depth and _may_be_written_twice(sch, stmt)):
        mark_tiles(sch, [block], transpose.row, depth)
    if extent(sch, columns) is None:
        mark_tiles(sch, [block], len(loops) - 1, lanes)
        *tiles, lane = sch.split(columns, factors=[None, lanes])
    else:
        *tiles, lane = split_vectors(sch, columns, 1, min(lanes, extent(sch, columns) or 1))
    sch.reorder(*outer, strips, *tiles, row, lane)
    sch.vectorize(lane)
    if prod(sizes) * len(accesses(stmt)[0]) < MIN_PARALLEL_WORK * lanes:
        return
    # Fused with a length as 2 * h + 1 they would be, of strips, what TVM cannot divide again.
    known = (sch.get(loop).extent for loop in outer)
    plain = all(isinstance(length, tirx.IntImm | tirx.Var) for length in known)
    sch.parallel(fuse(sch, [*outer, strips] if plain else outer))


def _strip(transpose: Transpose, sizes: Sequence[int | None]) -> tuple[int, int]:
    """Return how many variables to fuse for rows, and the rows of a tile.

    As many as a cache line has, or nearly, of which whole tiles are made.
    """
    most = transpose.depth
    for count in range(transpose.rows, 0, -1):
        known = [size or 0 for size in sizes[transpose.row + 1 - count : transpose.row + 1]]
        depth = divisors(prod(known), most)[-1] if all(known) else 1
        if 2 * depth >= most:
            return count, depth
    return 1, min(most, sizes[transpose.row] or most)


def vectorize_rows(sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> None:
    """Vectorise the innermost loop of a spatial block that already has its place."""
    stmt = sch.get(block)
    loop = sch.get_loops(block)[-1]
    lanes, border = _vectors_of(sch, stmt, loop, [stmt.iter_vars[-1].var], spec)
    if lanes > 1:
        sch.vectorize(split_vectors(sch, loop, 1, lanes, peel=border)[-1])


def _vectors_of(
    sch: Schedule,
    block: s_tir.SBlock,
    loop: LoopRV,
    variables: Sequence[tirx.Var],
    spec: DeviceSpec,
) -> tuple[int, bool]:
    """Lanes to vectorise a loop over some variables by, and whether it has borders to peel.

    A vector loop over a branch that differs between lanes is emitted lane by lane. Where only
    the vectorised variables decide, the loop can be peeled at the border.
    """
    conditions = [c for c in branch_conditions(block) if any(uses(c, v) for v in variables)]
    lanes = vector_length(sch, loop, lanes_of(block, spec))
    if not conditions:
        return lanes, False
    others = [v.var for v in block.iter_vars if not any(v.var.same_as(w) for w in variables)]
    if not can_peel(sch, loop) or any(uses(c, other) for c in conditions for other in others):
        return 1, False
    if any(_is_periodic(c) for c in conditions):
        return 1, False
    return lanes, True


def _is_periodic(condition: tirx.Expr) -> bool:
    """Return whether a condition may change its value more than once along a loop.

    Peeled, such a loop has vectors of lengths that only the run knows, or stays a loop over single
    elements, of which LLVM with vectors of 512 bits made wrong ones (an index ``i % 8`` in a loop
    of 16).
    """
    return bool(nodes_in(condition, tirx.FloorMod))


def _output_axis(block: s_tir.SBlock) -> int | None:
    """Position of the variable along which a block's output is contiguous."""
    stores = [a for a in accesses(block)[0] if a.is_store]
    for position, var in reversed(list(enumerate(block.iter_vars))):
        if constant(var.dom.extent) != 1 and all(stride(s, var.var) == 1 for s in stores):
            return position
    return None
