"""Matrix products of many rows: register tiles over panels of the matrix.

A panel ``[K, l]`` holds `l` neighbouring columns and lies in memory as one piece: going through
it takes one stream of memory and one set after the other of the cache, whatever the width of the
matrix (197x768x3072, read where it lies: 14 times slower). Constant matrices are packed when the
model is compiled (:mod:`tvm_edge.schedules.panels`), others are copied in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import divisors, extent
from tvm_edge.schedules.cpu.float16_runs import run_length, split_runs
from tvm_edge.schedules.cpu.loops import MIN_PARALLEL_WORK, peel_remainder, split_vectors
from tvm_edge.schedules.cpu.overlap import mark_tiles, small_tile
from tvm_edge.schedules.cpu.panel_tiles import UNROLLED, Tile
from tvm_edge.schedules.panels import FILLED, PACKED
from tvm_edge.schedules.stages import axis_map, fuse, read_index

__all__ = [
    "Product",
    "add_parts",
    "pack_panels",
    "schedule_open_panels",
    "schedule_panels",
]


@dataclass(frozen=True)
class Product:
    """The variables of a matrix product, by their position in the block.

    Attributes
    ----------
    outer : sequence of int
        Batch.
    rows, columns, reduction : int
        M, N and K; after K there may be an axis of groups that an instruction multiplies.
    """

    outer: Sequence[int]
    rows: int
    columns: int
    reduction: int


def pack_panels(sch: Schedule, block: SBlockRV, matrix: tirx.Buffer, width: int) -> SBlockRV:
    """Have `block` read a copy of `matrix` [..., K, N] as [..., N/width, K, width].

    Returns the block that copies, whose loops stay those over [..., K, N].
    """
    copy = sch.cache_read(block, read_index(sch.get(block), matrix), "global")

    def panels(v: list[tirx.Expr]) -> list[tirx.Expr]:
        return [*v[:-2], v[-1] // width, v[-2], v[-1] % width]

    index_map = axis_map(sch.get(copy), len(matrix.shape), panels)
    # The last panel may have columns that nobody writes or reads.
    sch.transform_layout(copy, ("write", 0), index_map, assume_injective_transform=True)
    return copy


def schedule_panels(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV,
    product: Product,
    tile: Tile,
    lanes: int,
    spec: DeviceSpec,
    *,
    copies: Sequence[SBlockRV] = (),
    shared: bool = True,
    in_float16: bool = False,
) -> tuple[SBlockRV, SBlockRV]:
    """Schedule a product that reads its matrix in panels.

    Returns what begins the accumulators of a tile, and what adds products to them.

    Parameters
    ----------
    block : SBlockRV
        The reduction, without window or broadcast; an axis of groups and the lanes stay loops.
    epilogue : SBlockRV
        The only block that reads it, maybe without the columns that fill up the last panel.
    tile : Tile
        Its vectors make the width of a panel.
    copies : sequence of SBlockRV
        The block that packs the matrix, in the task that has it, and what it reads.
    shared : bool
        Whether all of the batch multiplies the same matrix.
    in_float16 : bool
        Whether to add products up in float16.
    """
    sizes = [extent(sch, loop) or spec.cores for loop in sch.get_loops(block)]
    rows, reduction = sizes[product.rows], sizes[product.reduction]
    columns = extent(sch, sch.get_loops(epilogue)[product.columns]) or 1
    batch = prod(sizes[p] for p in product.outer)
    parallel = batch * rows * columns * reduction >= MIN_PARALLEL_WORK * lanes
    width = tile.vectors * lanes
    by_rows = _is_by_rows(rows, columns, reduction, width, spec)
    # A panel that one strip of rows reads need not stay in a cache.
    once = rows <= tile.rows and columns >= spec.cores * width
    parts = 1 if by_rows or once else _parts(rows, reduction, width, spec)
    final = block if parts > 1 else None
    if final is not None:
        part, _ = sch.split(sch.get_loops(block)[product.reduction], factors=[parts, None])
        block = sch.rfactor(part, 0)  # what `final` adds up
    if in_float16:
        split_runs(sch, block, run_length(spec))
    loops = list(sch.get_loops(block))
    outer = [loops.pop(product.reduction)] if parts > 1 else []
    outer += [loops[p] for p in product.outer]
    group = loops[product.reduction + 1 :]
    panels, vector, lane = _split_columns(sch, loops[product.columns], tile, lanes, bool(group))
    if columns < sizes[product.columns]:
        peel_remainder(sch, [panels])  # for the epilogue
    chunk = _chunk(rows, reduction, tile, spec) if by_rows else ceil(rows / tile.rows)
    chunks, strips, row = split_vectors(sch, loops[product.rows], chunk, tile.rows)
    unrolled = divisors(reduction // parts, UNROLLED)[-1]
    steps, step = _split_steps(sch, loops[product.reduction], unrolled, streams=once)
    first, second = (chunks, panels) if by_rows else (panels, chunks)
    sch.reorder(*outer, first, second, strips, steps, step, row, vector, lane, *group)
    left = rows % (chunk * tile.rows) != 0, columns % width != 0
    task, own = first, False
    if not left[0 if by_rows else 1]:  # a loop of which some is peeled stays
        task, own = fuse(sch, [*outer, first]), not by_rows and (batch == 1 or not shared)
    elif outer and batch >= spec.cores:
        task, own = fuse(sch, outer), not shared
    if parallel:
        sch.parallel(task)
    if not group:
        sch.vectorize(lane)
    for loop in (step, row, vector):
        sch.unroll(loop)
    for copy in copies:
        _place_copy(sch, copy, task if own else None, tile, lanes, parallel=parallel)
    _store_tiles(sch, block, epilogue if final is None else None, strips, product, lanes, left)
    begin = sch.decompose_reduction(block, steps)
    if final is not None:
        add_parts(sch, final, epilogue, lanes, parallel=True)
    return begin, block


def _split_columns(
    sch: Schedule, loop: LoopRV, tile: Tile, lanes: int, whole: bool
) -> list[LoopRV]:
    """Split columns into panels, vectors and lanes; of `whole` vectors no lane has a condition."""
    if not whole:
        return split_vectors(sch, loop, tile.vectors, lanes)
    count, lane = sch.split(loop, factors=[None, lanes])
    exact = (extent(sch, count) or 0) % tile.vectors == 0
    parts = sch.split(count, factors=[None, tile.vectors])
    if not exact:
        peel_remainder(sch, parts)
    return [*parts, lane]


def _split_steps(
    sch: Schedule, loop: LoopRV, unrolled: int, *, streams: bool
) -> tuple[LoopRV, LoopRV]:
    """Split a reduction into steps, of neighbours or in as many streams: the loop and its steps.

    From memory a matrix of 9216x4096 takes 4.2 ms in four streams, 5.2 ms in one.
    """
    factors = [unrolled, None] if streams else [None, unrolled]
    first, second = sch.split(loop, factors=factors)
    return (second, first) if streams else (first, second)


def _store_tiles(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV | None,
    strips: LoopRV,
    product: Product,
    lanes: int,
    left: tuple[bool, bool],
) -> None:
    """Store the accumulators of each tile, without an epilogue as they are.

    `left`: whether rows and columns end incomplete.
    """
    if epilogue is None:
        epilogue = sch.cache_write(block, 0, "local")
    else:
        sch.set_scope(block, 0, "local")
    sch.reverse_compute_at(epilogue, strips, preserve_unit_loops=True)
    own = sch.get_loops(epilogue)
    row, column = own[product.rows - product.columns - 1], own[-1]
    if left[0]:
        peel_remainder(sch, [row])
    sch.unroll(row)
    sch.vectorize(split_vectors(sch, column, 1, lanes, peel=left[1])[-1])


def schedule_open_panels(
    sch: Schedule,
    block: SBlockRV,
    epilogue: SBlockRV,
    product: Product,
    tile: Tile,
    lanes: int,
    spec: DeviceSpec,
) -> tuple[SBlockRV, SBlockRV]:
    """Schedule a product of rows that only the run counts with a matrix packed in advance.

    A task goes through a panel for all rows, or for some where there are few panels; columns are
    those of whole panels. For arguments and results see :func:`schedule_panels`.
    """
    loops = sch.get_loops(block)
    reduction = extent(sch, loops[product.reduction]) or 1
    panels, vector, lane = sch.split(loops[product.columns], factors=[None, tile.vectors, lanes])
    strips, row = sch.split(loops[product.rows], factors=[None, tile.rows])
    unrolled = divisors(reduction, UNROLLED)[-1]
    steps, step = sch.split(loops[product.reduction], factors=[None, unrolled])
    outer = [loops[p] for p in product.outer]
    group = loops[product.reduction + 1 :]
    sch.reorder(panels, *outer, strips, steps, step, row, vector, lane, *group)
    if (extent(sch, panels) or 1) < 2 * spec.cores:
        strips = task = fuse(sch, [panels, *outer, strips])
    else:
        task = panels
    sch.parallel(task)
    if not group:
        sch.vectorize(lane)
    for loop in (step, row, vector):
        sch.unroll(loop)
    sch.set_scope(block, 0, "local")
    sch.reverse_compute_at(epilogue, strips, preserve_unit_loops=True)
    row, column = sch.get_loops(epilogue)[-2:]
    vector, lane = sch.split(column, factors=[None, lanes])
    sch.vectorize(lane)
    sch.unroll(row)
    sch.unroll(vector)
    begin = sch.decompose_reduction(block, steps)
    small = small_tile(tile.rows, tile.vectors)
    mark_tiles(sch, [begin, block, epilogue], product.rows, tile.rows, small)
    return begin, block


def _parts(rows: int, reduction: int, width: int, spec: DeviceSpec) -> int:
    """Number of parts of the reduction, so that rows and a panel stay in a core's cache."""
    cache = max(spec.l2_cache, spec.l1_cache)
    for parts in divisors(reduction, 64):
        share = reduction // parts * 4
        if share * width <= cache // 8 and share * rows <= cache // 2:
            return parts
    return 1


def _is_by_rows(rows: int, columns: int, reduction: int, width: int, spec: DeviceSpec) -> bool:
    """Return whether a task goes through the whole matrix, for a chunk of rows in its cache.

    Otherwise each task takes a panel for all rows, which it then reads once for every panel
    (3136x384x96 at AVX2 and half a MiB of cache: 4.2 ms instead of 1.0 ms). The matrix is read
    once for every chunk: one of fewer rows than a panel has columns reads more.
    """
    cache = max(spec.l2_cache, spec.l1_cache)
    matrix, data, chunk = (size * reduction * 4 for size in (columns, rows, width))
    return rows > columns and (matrix <= cache // 4 or (data > cache // 2 and chunk <= cache // 4))


def _chunk(rows: int, reduction: int, tile: Tile, spec: DeviceSpec) -> int:
    """Strips of rows in a task: as many as stay in the cache, and the same for each core."""
    strips = rows // tile.rows
    most = min(
        max(spec.l2_cache, spec.l1_cache) // 4 // (reduction * tile.rows * 4), strips // spec.cores
    )
    chunks = divisors(strips, max(most, 1))
    # Strips of the core that has most of them.
    longest = {chunk: ceil(strips // chunk / spec.cores) * chunk for chunk in chunks}
    least = min(longest.values())
    return max(chunk for chunk in chunks if longest[chunk] <= 1.05 * least)


def add_parts(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, lanes: int, *, parallel: bool
) -> None:
    """Schedule the block that ``rfactor`` leaves to add up parts, a vector at a time."""
    *rows, columns, part = sch.get_loops(block)
    stored = extent(sch, sch.get_loops(epilogue)[-1]) or 1
    remainder = stored % lanes != 0
    shorter = stored < (extent(sch, columns) or 1)
    sch.set_scope(block, 0, "local")
    vector, _, lane = split_vectors(sch, columns, 1, lanes)
    if shorter:
        peel_remainder(sch, [vector])  # for the epilogue
    sch.reorder(*rows, vector, part, lane)
    if parallel:
        sch.parallel(fuse(sch, rows))
    sch.vectorize(lane)
    sch.unroll(part)
    sch.reverse_compute_at(epilogue, vector, preserve_unit_loops=True)
    last = sch.get_loops(epilogue)[-1]
    sch.vectorize(split_vectors(sch, last, 1, lanes, peel=remainder)[-1])
    sch.decompose_reduction(block, part)


def _place_copy(
    sch: Schedule, copy: SBlockRV, task: LoopRV | None, tile: Tile, lanes: int, *, parallel: bool
) -> None:
    """Copy panel by panel, row by row: in the task that has panels of its own, or before all."""
    if task is not None:
        sch.compute_at(copy, task, preserve_unit_loops=True)
    loops = list(sch.get_loops(copy))
    name = sch.get(copy).name_hint
    if name == PACKED:  # panels already; an instruction takes two rows
        vector, _ = sch.split(loops[-2], factors=[None, lanes])
        tasks = loops[:-3]
    else:
        *outer, reduction, columns = loops
        peel = name == FILLED
        panels, vector, lane = split_vectors(sch, columns, tile.vectors, lanes, peel=peel)
        sch.reorder(panels, reduction, vector, lane)
        sch.vectorize(lane)
        if peel:
            peel_remainder(sch, [reduction])
        tasks = outer if peel and outer else [panels]
    if parallel and task is None:
        sch.parallel(fuse(sch, tasks))
    sch.unroll(vector)
