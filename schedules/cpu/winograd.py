"""Winograd convolution in three stages: inputs, products, outputs.

Each stage is a loop over cores of its own, and the transformed images go through the caches
between them. Where these are large beside the filters the stages are fused: a core has a line of
tiles from the image to the result, and reads all filters for it. The products are matrix products,
one for each of the (m + 2)**2 frequencies, with the register tile of blocked convolutions. The
transforms are unrolled: a tile's rows, then its columns, in registers and the stack.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tvm import s_tir
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import extent, inline_spatial, root_blocks
from tvm_edge.schedules.cpu.blocked import Loops, schedule_blocks
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, Tile, best_knobs
from tvm_edge.schedules.cpu.conv2d_groups import by_groups
from tvm_edge.schedules.cpu.dot_products import PAIR_PRODUCTS
from tvm_edge.schedules.cpu.float16_runs import (
    fills_float16,
    multiplies_float16,
    run_length,
    split_runs,
)
from tvm_edge.schedules.cpu.loops import can_peel, peel_remainder, schedule_spatial, vectorize_rows
from tvm_edge.schedules.cpu.overlap import mark_parts, mark_tiles, small_tile
from tvm_edge.schedules.float16 import is_half
from tvm_edge.schedules.knobs import CONFIG, read_knobs
from tvm_edge.schedules.stages import ReductionRule, fuse
from tvm_edge.schedules.typical import typical
from tvm_edge.schedules.winograd import PRODUCT, STAGES, TILE, TILE_LINES

__all__ = ["Winograd", "product_tile"]

_GROUPED = 7  # axes of products by groups of channels

_OPEN_TILES = 8
"""Tiles of a task, where only the run tells how many are in a line."""


class Winograd(ReductionRule):
    """Convolutions of :func:`tvm_edge.schedules.winograd.conv2d_winograd`."""

    name = "winograd"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is the product of transformed images."""
        if sch.get(block).name_hint != PRODUCT:
            return None
        is_open = constant(sch.get(block).iter_vars[2].dom.extent) is None
        if not is_open and not can_peel(sch, sch.get_loops(block)[2]):
            return None
        input_rows, transformed, output_rows, output = map(sch.get_sblock, STAGES)
        first = sch.get_sblock(TILE) if is_open else input_rows
        padding = [b for b in sch.get_producers(first) if _is_stage(sch, b)]
        placed = {PRODUCT, TILE, *STAGES, *(sch.get(b).name_hint for b in padding)}
        inline_spatial(sch, keep=placed)
        *others, last = root_blocks(sch)
        epilogue = [b for b in others if sch.get(b).name_hint not in placed]
        m = constant(sch.get(output_rows).iter_vars[2].dom.extent) or 1
        columns = constant(sch.get(output).iter_vars[3].dom.extent) or 1
        in_float16 = _in_float16(sch, block, transformed, spec)
        tile_columns = None if is_open else -(-columns // m)
        knobs = _knobs(sch.get(block), spec, in_float16=in_float16)
        fused = knobs.order == "fused"
        task = _schedule_outputs(sch, output_rows, [output, *epilogue], last, m, fused=fused)
        store = sch.cache_write(block, 0, "local")
        if fused:
            for stage in (store, block, transformed):
                sch.compute_at(stage, task, preserve_unit_loops=True)
        _schedule_inputs(sch, padding, input_rows, transformed, tile_columns, spec)
        # After the instructions of products TVM moves no block.
        _schedule_products(sch, block, store, knobs, spec)
        return sch


def _in_float16(sch: Schedule, block: SBlockRV, transformed: SBlockRV, spec: DeviceSpec) -> bool:
    """Have the products of float16 added up in float16, if that is asked for.

    Images are transformed in float32, and rounded once. An error of 7e-4 of the results is 1.3e-3
    with tiles of 2 x 2, and 3e-3 with those of 4 x 4.
    """
    filters = sch.get(block).reads[1].source
    asked = str(filters.dtype) == "float16" and multiplies_float16(sch.mod["main"], spec)
    if not asked or not fills_float16(int(filters.shape[-1]), spec):
        return False
    sch.unsafe_set_dtype(transformed, 0, "float16")
    return split_runs(sch, block, run_length(spec))


def _is_stage(sch: Schedule, block: SBlockRV) -> bool:
    return sch.get(block).name_hint not in STAGES


def _schedule_inputs(
    sch: Schedule,
    padding: list[SBlockRV],
    rows: SBlockRV,
    transformed: SBlockRV,
    tile_columns: int | None,
    spec: DeviceSpec,
) -> None:
    """Schedule the inputs: a task is a line of tiles of a channel block, padded there.

    Fused stages have them in order. Of an open image, `tile_columns` ``None``, no loop of known
    length has a line of tiles: a task is some of the tiles, and the image is padded before all of
    them.
    """
    *around, frequency, channel, tile, lane = sch.get_loops(transformed)
    lines, tile = sch.split(tile, factors=[None, tile_columns or _OPEN_TILES])
    sch.reorder(channel, lines, tile, frequency, lane)
    task = sch.fuse(channel, lines)
    if not around:
        sch.parallel(task)
    sch.compute_at(rows, tile, preserve_unit_loops=True)
    sch.set_scope(rows, 0, "local")
    for loop in (frequency, *sch.get_loops(rows)[-3:-1]):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(rows)[-1])
    if tile_columns is None:
        gathered = sch.get_sblock(TILE)
        sch.compute_at(gathered, tile, preserve_unit_loops=True)
        sch.set_scope(gathered, 0, "local")
        *_, line, column, elements = sch.get_loops(gathered)
        sch.unroll(line)
        sch.unroll(column)
        sch.vectorize(elements)
        mark_parts(sch, [transformed], 2, _OPEN_TILES)
        mark_parts(sch, [rows, gathered], 1, _OPEN_TILES)
        for block in padding:
            schedule_spatial(sch, block, spec)
        return
    for block in padding:
        sch.compute_at(block, task, preserve_unit_loops=True)
        vectorize_rows(sch, block, spec)


def product_tile(stmt: s_tir.SBlock) -> Tile:
    """The sizes of the products of a Winograd convolution, read off their block."""
    frequencies, blocks, tiles, lanes, depth, steps, *_ = (
        typical(var.dom.extent) for var in stmt.iter_vars
    )
    image, filters = (region.source for region in stmt.reads)
    grouped = _is_grouped(stmt)
    return Tile(
        outer=frequencies,
        blocks=blocks,
        lines=1,
        columns=tiles,
        steps=depth * steps,
        window=(1, 1),
        strides=(1, 1),
        image_bytes=(2 if grouped else 4) * prod(typical(dim) for dim in image.shape[1:]),
        filter_bytes=filters.dtype.bits // 8 * prod(typical(dim) for dim in filters.shape[1:]),
        lanes=lanes,
        padded=False,
        open_columns=constant(stmt.iter_vars[2].dom.extent) is None,
        widened=is_half(filters.dtype) and not grouped,
        tile_lines=int(stmt.annotations.get(TILE_LINES, 0)),
    )


def _is_grouped(stmt: s_tir.SBlock) -> bool:
    """Return whether products are of groups of channels."""
    return len(stmt.iter_vars) == _GROUPED


def _knobs(stmt: s_tir.SBlock, spec: DeviceSpec, *, in_float16: bool) -> Knobs:
    """Return the knobs of products that they were given, or else the best by estimate."""
    config = stmt.annotations.get(CONFIG)
    if config:
        return read_knobs(Knobs, str(config))
    size = product_tile(stmt)
    if in_float16:
        size = replace(size, widened=False, element=2)
    return best_knobs(size, spec)


def _schedule_products(
    sch: Schedule,
    block: SBlockRV,
    store: SBlockRV,
    knobs: Knobs,
    spec: DeviceSpec,
) -> None:
    stmt = sch.get(block)
    places = len(stmt.iter_vars)
    frequency, blocks, tiles, lane, co, ci, *_ = sch.get_loops(block)[-places:]
    loops = Loops([frequency], blocks, None, tiles, lane, [co, ci])
    dot = PAIR_PRODUCTS[spec.pair_product] if _is_grouped(stmt) else None
    _, first = schedule_blocks(
        sch, block, store, knobs, loops, vectorize=dot is None, in_order=spec.in_order
    )
    begin = sch.decompose_reduction(block, first)
    if dot is not None:
        by_groups(sch, begin, block, dot.lanes, dot.broadcast())
        return
    if constant(sch.get(store).iter_vars[2].dom.extent) is None:
        small = small_tile(knobs.columns, knobs.blocks)
        mark_tiles(sch, [begin, block, store], 2, knobs.columns, small)


def _schedule_outputs(
    sch: Schedule,
    rows: SBlockRV,
    stages: list[SBlockRV],
    last: SBlockRV,
    m: int,
    *,
    fused: bool,
) -> LoopRV:
    """Schedule the outputs, and return their loop over tasks.

    A task is a channel block, or a line of its tiles if whole; with `fused` stages a line of all
    blocks' tiles.

    `stages` are the transform's output and those blocks of the epilogue that are not inlined,
    because something uses their results twice.
    """
    batch, channel, y, x, lane = sch.get_loops(last)
    # Of open images each pixel is stored if it is one: rows of tiles are no place to cut.
    exact, exact_columns = ((extent(sch, loop) or m) % m == 0 for loop in (y, x))
    lines, line = sch.split(y, factors=[None, m])
    columns, column = sch.split(x, factors=[None, m])
    if not exact:
        peel_remainder(sch, [lines, line])
    if not exact_columns:
        peel_remainder(sch, [columns, column])
    tasks = [batch, lines] if fused else [batch, channel, *([lines] if exact else [])]
    serial = [channel] if fused else [] if exact else [lines]
    sch.reorder(*tasks, *serial, columns, line, column, lane)
    task = fuse(sch, tasks)
    sch.parallel(task)
    inner = [line, column]
    vectors = [lane]
    outer = len(sch.get_loops(last)) - 3
    for stage in reversed(stages):
        if sch.get(stage).same_as(sch.get(last)):
            continue
        # Computed once for each tile, before its uses.
        sch.set_scope(stage, 0, "local")
        sch.compute_at(stage, columns, preserve_unit_loops=True)
        *own, vector = sch.get_loops(stage)[outer:][-3:]
        inner += own
        vectors.append(vector)
    sch.compute_at(rows, columns, preserve_unit_loops=True)
    sch.set_scope(rows, 0, "local")
    *own, vector = sch.get_loops(rows)[-3:]
    for loop in (*inner, *own):
        sch.unroll(loop)
    for loop in (*vectors, vector):
        sch.vectorize(loop)
    return task
