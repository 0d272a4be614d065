"""Attention in tiles of rows: scores, softmax and the mean of the values while they are cached."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import divisors, extent, open_schedule, root_blocks
from tvm_edge.schedules.attention import ATTENTION
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.cpu.conv2d_groups import by_groups
from tvm_edge.schedules.cpu.dot_products import PAIR_PRODUCTS, DotProduct
from tvm_edge.schedules.cpu.loops import schedule_spatial
from tvm_edge.schedules.knobs import CONFIG, read_knobs
from tvm_edge.schedules.stages import fuse

__all__ = ["Attention"]

_UNROLLED = 4


@dataclass(frozen=True)
class AttentionKnobs:
    """Tile of a kernel for attention: rows, and columns of the scores that are a panel."""

    rows: int
    width: int
    lanes: int


class Attention(ScheduleRule):
    """Kernels of :func:`tvm_edge.schedules.attention.attention`."""

    name = "attention"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if it is one."""
        if not isinstance(func.body, s_tir.SBlockRealize):
            return None
        if all(buffer.name != f"{ATTENTION}_keys" for buffer in func.body.block.alloc_buffers):
            return None
        sch = open_schedule(func)
        blocks = {sch.get(block).name_hint: block for block in root_blocks(sch)}
        knobs = read_knobs(AttentionKnobs, str(sch.get(blocks[ATTENTION]).annotations[CONFIG]))
        own = {name.removeprefix("attention_"): block for name, block in blocks.items()}
        mean = own.pop("mean")
        *batch, row, column = sch.get_loops(mean)
        tiles, row = sch.split(row, factors=[None, knobs.rows])
        vectors = divisors((extent(sch, column) or 1) // knobs.lanes, knobs.width // knobs.lanes)
        parts, vector, lane = sch.split(column, factors=[None, vectors[-1], knobs.lanes])
        sch.reorder(*batch, tiles, parts, row, vector, lane)
        task = fuse(sch, [*batch, tiles])
        sch.parallel(task)
        for loop in (row, vector):
            sch.unroll(loop)
        sch.vectorize(lane)
        weighed = own.pop(ATTENTION)
        sch.compute_at(weighed, parts, preserve_unit_loops=True)
        for name in ("sum", "sum_lanes", "weights", "max", "max_lanes", "scores"):
            sch.compute_at(own[name], task, preserve_unit_loops=True)
        row, panel, column = sch.get_loops(own["scores"])[-3:]
        vector, lane = sch.split(column, factors=[None, knobs.lanes])
        sch.reorder(panel, row, vector, lane)
        sch.compute_at(own["products"], panel, preserve_unit_loops=True)
        for loop in (row, vector):
            sch.unroll(loop)
        sch.vectorize(lane)
        pairs = PAIR_PRODUCTS.get(spec.pair_product) if "values" in own else None
        begun = [_tile(sch, own["products"], knobs, grouped=pairs is not None)]
        for name in ("max", "sum"):
            _reduce(sch, own[f"{name}_lanes"], own[name])
        panel, column = sch.get_loops(own["weights"])[-2:]
        vector, lane = sch.split(column, factors=[None, knobs.lanes])
        sch.vectorize(lane)
        begun.append(_tile(sch, weighed, knobs, grouped=pairs is not None))
        for name in ("filled_keys", "filled_values", "keys", "rows"):
            if name in own and (pairs is None or name != "keys"):
                schedule_spatial(sch, own[name], spec)
        if pairs is not None:
            for name in ("keys", "values"):
                _pack(sch, own[name], pairs)
            for begin, block in zip(begun, (own["products"], weighed), strict=True):
                by_groups(sch, begin, block, pairs.lanes, pairs.broadcast())
        return sch


def _pack(sch: Schedule, block: SBlockRV, dot: DotProduct) -> None:
    """Pack pairs, a panel in a task."""
    *panels, _, columns, _ = sch.get_loops(block)
    vector, lane = sch.split(columns, factors=[None, dot.lanes])
    sch.unroll(vector)
    sch.parallel(fuse(sch, panels))
    sch.tensorize(lane, dot.pack())


def _tile(sch: Schedule, block: SBlockRV, knobs: AttentionKnobs, *, grouped: bool) -> SBlockRV:
    """Keep the accumulators of a product in registers; return what begins them.

    Pairs that are `grouped` are the innermost loop, and are left without their instructions.
    """
    *loops, reduction = sch.get_loops(block)
    group = [reduction] if grouped else []
    if grouped:
        *loops, reduction = loops
    row, *_, column = _spatial(sch, loops, knobs)
    steps, step = sch.split(
        reduction, factors=[None, divisors(extent(sch, reduction) or 1, _UNROLLED)[-1]]
    )
    vector, lane = sch.split(column, factors=[None, knobs.lanes])
    sch.reorder(steps, step, row, vector, lane, *group)
    sch.set_scope(block, 0, "local")
    for loop in (step, row, vector):
        sch.unroll(loop)
    if not grouped:
        sch.vectorize(lane)
    return sch.decompose_reduction(block, steps)


def _spatial(sch: Schedule, loops: list[LoopRV], knobs: AttentionKnobs) -> list[LoopRV]:
    """Return the loops over rows and columns of a tile."""
    last = len(loops) - 1
    first = next(i for i in reversed(range(last)) if extent(sch, loops[i]) == knobs.rows)
    return [loops[first], *loops[first + 1 :]]


def _reduce(sch: Schedule, lanes: SBlockRV, block: SBlockRV) -> None:
    """Reduce all rows vector by vector, then the lanes of each."""
    *_, row, lane, step = sch.get_loops(lanes)
    sch.reorder(step, row, lane)
    sch.set_scope(lanes, 0, "local")
    sch.vectorize(lane)
    sch.unroll(row)
    sch.decompose_reduction(lanes, step)
    sch.unroll(sch.get_loops(block)[-1])
