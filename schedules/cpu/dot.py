"""Reductions along the contiguous axis: the lanes of a vector hold partial results.

Dot products of rows (a matrix stored [N, K]), means over an image, sums and maxima over a last
axis. LLVM may not reorder a floating-point sum, so the lanes are made explicit with ``rfactor``:
each holds every `lanes`-th term, and a short second reduction combines them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant, trailing_contiguous
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.cpu.loops import MIN_PARALLEL_WORK, can_peel, lanes_of, peel_remainder
from tvm_edge.schedules.stages import fuse

__all__ = ["schedule_dot"]

# Outputs a core works on at once. Each has its own partial results and its own stream of memory.
# Four hide the latency of an addition; eight streams fall behind the prefetcher (143 against
# 34 GB/s on a 2048x1000 product).
_OUTPUTS = 4


def _factor_lanes(
    sch: Schedule, block: SBlockRV, spec: DeviceSpec, *, exact: bool
) -> SBlockRV | None:
    """Split off partial results, one for each lane, into a block of their own.

    Returns that block; ``None`` and no change where the reduction axis is strided or short, or
    the reduction has several results at once (arg-maximum).

    Parameters
    ----------
    exact : bool
        Use a number of lanes that divides the reduction axis. Needed if the block is to be
        moved: TVM's ``compute_at`` drops the predicate that guards an incomplete last vector.
    """
    stmt = sch.get(block)
    if not isinstance(stmt.body, tirx.BufferStore):
        return None
    count, length = 0, 1
    for var in list(reversed(stmt.iter_vars))[: trailing_contiguous(stmt)]:
        if var.iter_type != tirx.IterVar.CommReduce:
            break
        count, length = count + 1, length * (constant(var.dom.extent) or 0)
    lanes = lanes_of(stmt, spec)
    # With a reduction shorter than the lanes some partial results would never be initialised.
    if length < 2 * lanes:
        return None
    if exact:
        lanes = divisors(length, lanes)[-1]
        if lanes == 1:
            return None
    loops = sch.get_loops(block)
    _, lane = sch.split(fuse(sch, loops[-count:]), factors=[None, lanes])
    return sch.rfactor(lane, 0)


def _in_registers(
    sch: Schedule,
    partial: SBlockRV,
    reduction: Sequence[LoopRV],
    outputs: Sequence[LoopRV],
    lane: LoopRV,
) -> None:
    sch.reorder(*reduction, *outputs, lane)
    if constant(get_sblockrealize(sch, partial).predicate) != 1:
        peel_remainder(sch, [reduction[-1], lane])
    sch.vectorize(lane)
    for loop in outputs:
        sch.unroll(loop)
    sch.set_scope(partial, 0, "local")
    sch.decompose_reduction(partial, reduction[0])


def schedule_dot(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV | None, spec: DeviceSpec
) -> bool:
    """Schedule a reduction along the contiguous axis; ``False`` if it is none."""
    sizes = [extent(sch, loop) or spec.cores for loop in sch.get_loops(block)]
    partial = _factor_lanes(sch, block, spec, exact=not can_peel(sch, sch.get_loops(block)[-1]))
    if partial is None:
        return False
    rank = len(sch.get_loops(block)) - 1  # its other loop is the one over lanes
    loops = sch.get_loops(partial)
    outputs, reduction, lane = loops[:rank], loops[rank:-1], loops[-1]
    extents = [extent(sch, loop) for loop in outputs]
    inner = next((size or 1 for size in reversed(extents) if size != 1), 1)
    tile = next(d for d in range(_OUTPUTS, 0, -1) if inner % d == 0)
    if tile > 1 and None in extents:
        # Of a tile of fused loops TVM does not find the elements where it divides by lengths.
        last = max(i for i, size in enumerate(extents) if size != 1)
        tiles, output = sch.split(outputs[last], factors=[None, tile])
        task = fuse(sch, [*outputs[:last], tiles])
        sch.reorder(task, *outputs[last + 1 :], output)
    else:
        axis = fuse(sch, outputs) if outputs else sch.add_unit_loop(loops[0])
        task, output = sch.split(axis, factors=[None, tile])
    if prod(sizes) >= MIN_PARALLEL_WORK * lanes_of(sch.get(block), spec):
        sch.parallel(task)
    sch.reverse_compute_at(block, task, preserve_unit_loops=True)
    if epilogue is not None:
        sch.reverse_compute_at(epilogue, task, preserve_unit_loops=True)
    _in_registers(sch, partial, reduction, [output], lane)
    return True
