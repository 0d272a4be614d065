"""Depthwise convolution and pooling: each output element is made from a window of one channel.

There is no weight or input to share between channels, so a core takes a channel at a time. Its
padded and phase-sorted copy stays in the core's cache; the kernel's taps are unrolled, so rows
loaded for one line of a tile serve the lines below it.
"""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.contraction import Contraction, match_contraction, match_pooling
from tvm_edge.schedules.cpu.loops import MIN_PARALLEL_WORK, can_peel, lanes_of, vectorize_rows
from tvm_edge.schedules.cpu.microkernel import Axes, choose_tile, schedule_tile
from tvm_edge.schedules.cpu.stages import (
    schedule_phases,
    schedule_rest,
    split_phases,
    vectorize_phases,
)
from tvm_edge.schedules.stages import epilogue_of, isolate

__all__ = ["schedule_window"]


def schedule_window(
    sch: Schedule, block: SBlockRV, pool: Contraction, spec: DeviceSpec
) -> Schedule:
    """Schedule a function with a depthwise convolution or a pool, on the cores of a CPU."""
    match = match_pooling if pool.weight is None else match_contraction
    padding = isolate(sch, block, pool.data.source)
    epilogue = epilogue_of(sch, block)
    stmt = sch.get(block)
    inlined = match(stmt)
    assert inlined is not None, "inlining a copy keeps the pattern"
    pool = inlined
    phases = None
    if pool.strides[1] > 1:
        phases = split_phases(sch, block, pool.data.source, pool.strides[1])
    copies = [stage for stage in (phases, padding) if stage is not None]
    loops = sch.get_loops(block)
    sizes = [constant(var.dom.extent) or spec.cores for var in stmt.iter_vars]
    channels = prod(sizes[p] for p in pool.outer)
    # A window across channels (LRN) would have neighbours repeat each other's copies.
    per_channel = channels >= spec.cores and all(sizes[p] == 1 for p in pool.channel_sum)
    lanes = lanes_of(stmt, spec)
    task = schedule_tile(
        sch,
        block,
        Axes(
            [loops[p] for p in pool.outer],
            None,
            None if pool.lines is None else loops[pool.lines],
            loops[pool.columns],
            [loops[p] for p in pool.reduction],
        ),
        choose_tile(
            spec,
            lanes,
            channels=1,
            lines=1 if pool.lines is None else sizes[pool.lines],
            columns=sizes[pool.columns],
            outer=channels,
            exact=not can_peel(sch, loops[pool.columns]),
        ),
        epilogue=epilogue,
        lines_serial=per_channel and bool(copies),
        parallel=prod(sizes) >= MIN_PARALLEL_WORK * lanes,
    )
    if per_channel:
        for stage in copies:
            sch.compute_at(stage, task, preserve_unit_loops=True)
        if padding is not None:
            vectorize_rows(sch, padding, spec)
        if phases is not None:
            vectorize_phases(sch, phases, spec)
    elif phases is not None:
        schedule_phases(sch, phases, padding, spec)
    else:
        copies = []  # the padding is a block like any other
    schedule_rest(sch, [block, epilogue, *copies], spec)
    return sch
