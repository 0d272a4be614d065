"""Matrix products.

Three forms, by how the matrix on the right is stored and how much work there is per weight:

* stored [K, N], many rows on the left: register tiles of rows by columns;
* stored [K, N], few rows (a fully connected layer at batch 1): bound by reading the matrix, so each
  core goes through a broad stripe of it row by row, with partial sums that stay in its L1 cache;
* stored [N, K]: dot products, lanes along K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import divisors, extent, inline_spatial
from tvm_edge.schedules.contraction import Contraction, is_product, match_contraction
from tvm_edge.schedules.cpu.dense_panels import FEW, schedule_packed, steps_in_float16
from tvm_edge.schedules.cpu.dot import schedule_dot
from tvm_edge.schedules.cpu.float16_runs import multiplies_float16, split_runs
from tvm_edge.schedules.cpu.loops import (
    MIN_PARALLEL_WORK,
    can_peel,
    lanes_of,
    peel_remainder,
    split_vectors,
)
from tvm_edge.schedules.cpu.microkernel import schedule_contraction
from tvm_edge.schedules.cpu.panel_tiles import choose_tile
from tvm_edge.schedules.cpu.panels import Product, add_parts, pack_panels, schedule_panels
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.panels import DENSE
from tvm_edge.schedules.stages import ReductionRule, epilogue_of, fuse
from tvm_edge.schedules.typical import typical

__all__ = ["Dense"]

# Rows of the matrix added to the partial sums at a time: these are loaded and stored once for
# eight multiply-adds (four: 45 instead of 50 GB/s).
_ROWS = 8
# Bytes that a core should read in sequence: prefetchers stop at the end of a page.
_PAGE = 4096
# Vector operations from which cores share such a matrix, even one that a single core's cache holds
# (half a MiB of float32): of less a core is through in the 4 µs that the pool leaves to it alone.
_FEWEST_TO_SHARE = 2 * MIN_PARALLEL_WORK


class Dense(ReductionRule):
    """Fully connected layers and (batched) matrix products."""

    name = "dense"

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is a matrix product."""
        if not is_product(sch.get(block)):
            return None
        inline_spatial(sch)
        if sch.get(block).name_hint.startswith(DENSE):
            schedule_packed(sch, block, spec)
            return sch
        product = match_contraction(sch.get(block))
        if product is not None and (product.lines is not None or product.window):
            return None
        product = _with_open_rows(sch.get(block), product)
        epilogue = epilogue_of(sch, block)
        if product is None:
            _matrix_outermost(sch, block)
            if not schedule_dot(sch, block, epilogue, spec):
                return None
        elif can_peel(sch, sch.get_loops(block)[product.columns]) and _is_few_rows(
            sch.get(block), product, spec
        ):
            if _is_narrow(sch, block, product, spec):
                _schedule_shares(sch, block, epilogue, product, spec)
            else:
                _schedule_stripes(sch, block, epilogue, product, spec)
        elif _is_many_rows(sch, block, product, spec):
            _schedule_copied(sch, block, epilogue, product, spec)
        else:
            schedule_contraction(sch, block, epilogue, product, spec)
        schedule_rest(sch, [block, epilogue], spec)
        return sch


def _with_open_rows(block: s_tir.SBlock, product: Contraction | None) -> Contraction | None:
    """Return a product whose rows are tiled though only the run tells how many there are."""
    if product is None or product.channels is not None:
        return product
    found = match_contraction(block, open_axes=True)
    if found is None or found.group or found.lines is not None or found.channels is None:
        return product
    # Steps and batch of a recurrence both are rows: the longer axis gives more of them to a tile.
    others = (p for p in found.outer if constant(block.iter_vars[p].dom.extent) is None)
    axes = [found.channels, *(p for p in others if not found.uses_data(block.iter_vars[p].var))]
    longest = max(axes, key=lambda p: typical(block.iter_vars[p].dom.extent))
    outer = sorted({*found.outer, found.channels} - {longest})
    return replace(found, channels=longest, outer=tuple(outer))


def _matrix_outermost(sch: Schedule, block: SBlockRV) -> None:
    """Have each row of a matrix stored [N, K] serve all rows on the left before the next."""
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    outputs = kinds.index(tirx.IterVar.CommReduce)
    loops = sch.get_loops(block)
    if outputs >= 2 and (extent(sch, loops[outputs - 2]) or 0) > FEW:
        sch.reorder(loops[outputs - 1], loops[outputs - 2])


def _is_few_rows(block: s_tir.SBlock, product: Contraction, spec: DeviceSpec) -> bool:
    sizes = [constant(var.dom.extent) or 0 for var in block.iter_vars]
    rows = 1 if product.channels is None else sizes[product.channels]
    if rows > FEW or any(sizes[p] != 1 for p in product.outer):
        return False
    if spec.cores > 1 and prod(sizes) >= _FEWEST_TO_SHARE * lanes_of(block, spec):
        return True
    matrix = prod(int(dim) for dim in product.data.source.shape)
    # In a cache by itself one of 16 bits is out of it again before the model's next run.
    return 4 * matrix > max(spec.l2_cache, spec.l1_cache)


def _is_many_rows(sch: Schedule, block: SBlockRV, product: Contraction, spec: DeviceSpec) -> bool:
    """Return whether the matrix is read so often that a copy of it in panels pays."""
    stmt, loops = sch.get(block), sch.get_loops(block)
    if product.channels is None or len(product.reduction) != 1:
        return False
    (term,) = product.reduction
    rows, columns = (extent(sch, loops[p]) or 0 for p in (product.channels, product.columns))
    depth = product.data.indices[-2]
    return (
        product.group == rows > 2 * FEW
        and columns >= lanes_of(stmt, spec)
        and can_peel(sch, loops[product.columns])
        and len(product.data.indices) > 1
        and depth.same_as(stmt.iter_vars[term].var)
        and all(extent(sch, loop) is not None for loop in loops)
    )


def _schedule_copied(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, product: Contraction, spec: DeviceSpec
) -> None:
    stmt = sch.get(block)
    steps = steps_in_float16(sch, block, spec)
    lanes = spec.lanes(2) if steps else lanes_of(stmt, spec)
    assert product.channels is not None
    sizes = [constant(var.dom.extent) or 1 for var in stmt.iter_vars]
    tile = choose_tile(
        sizes[product.channels],
        sizes[product.columns],
        spec,
        lanes,
        batch=prod(sizes[p] for p in product.outer),
        float16_steps=steps,
    )
    copy = pack_panels(sch, block, product.data.source, tile.vectors * lanes)
    shared = not any(product.uses_data(stmt.iter_vars[p].var) for p in product.outer)
    schedule_panels(
        sch,
        block,
        epilogue,
        Product(product.outer, product.channels, product.columns, product.reduction[0]),
        tile,
        lanes,
        spec,
        copies=[copy],
        shared=shared,
        in_float16=steps > 0,
    )


def _is_narrow(sch: Schedule, block: SBlockRV, product: Contraction, spec: DeviceSpec) -> bool:
    """Return whether a core's stripe of a row is less than a page of memory, and a row fits L1."""
    sizes = [extent(sch, loop) or 0 for loop in sch.get_loops(block)]
    reduction = prod(sizes[p] for p in product.reduction)
    row = sizes[product.columns] * product.data.source.dtype.bits // 8
    return (
        spec.cores > 1
        and row < min(spec.cores * _PAGE, spec.l1_cache // 4)
        and reduction % spec.cores == 0
    )


def _schedule_shares(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, product: Contraction, spec: DeviceSpec
) -> None:
    """Have each core add up a share of the matrix's rows, then add their partial sums."""
    lanes = lanes_of(sch.get(block), spec)
    loops = sch.get_loops(block)
    share, _ = sch.split(
        fuse(sch, [loops[p] for p in product.reduction]), factors=[spec.cores, None]
    )
    partial = sch.rfactor(share, 0)
    *spatial, share, reduction = sch.get_loops(partial)
    rows = [] if product.channels is None else [spatial[product.channels]]
    columns = spatial[product.columns]
    own = _lanes(sch, partial, [reduction], spec)
    sch.reorder(share, *(loop for loop in spatial if loop not in (*rows, columns)), *rows, columns)
    sch.parallel(share)
    vector, _, lane = split_vectors(sch, columns, 1, own)
    _add_rows(sch, partial, reduction, rows, vector, lane)
    add_parts(sch, block, epilogue, lanes, parallel=False)


def _schedule_stripes(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, product: Contraction, spec: DeviceSpec
) -> None:
    loops = sch.get_loops(block)
    lanes = _lanes(sch, block, [loops[p] for p in product.reduction], spec)
    sch.set_scope(block, 0, "local")
    columns = loops[product.columns]
    size = extent(sch, columns) or 1
    # Partial sums in a quarter of the L1 cache; stripes of one width, a multiple of the cores.
    widest = max(1, spec.l1_cache // 16 // lanes) * lanes
    counts = (d for d in divisors(size) if size <= d * widest and d % spec.cores == 0)
    count = next(counts, size)
    width = size // count
    if width < lanes:
        width = ceil(min(widest, size / (4 * spec.cores)) / lanes) * lanes
    rows = [] if product.channels is None else [loops[product.channels]]
    reduction = fuse(sch, [loops[p] for p in product.reduction])
    if size % width == 0:
        stripe, columns = sch.split(columns, factors=[None, width])
        sch.reorder(stripe, *rows, columns)
        # Before the columns get an incomplete vector: TVM would round the epilogue's share up to
        # whole vectors, and have it write into the next stripe.
        sch.reverse_compute_at(epilogue, stripe, preserve_unit_loops=True)
        vector, _, lane = split_vectors(sch, columns, 1, lanes)
    else:
        stripe, vector, lane = split_vectors(sch, columns, width // lanes, lanes)
        sch.reorder(stripe, *rows, vector, lane)
        sch.reverse_compute_at(epilogue, stripe, preserve_unit_loops=True)
    sch.parallel(stripe)
    last = sch.get_loops(epilogue)[-1]
    sch.vectorize(split_vectors(sch, last, 1, lanes, peel=size % width != 0)[-1])
    _add_rows(sch, block, reduction, rows, vector, lane)


def _lanes(sch: Schedule, block: SBlockRV, reduction: Sequence[LoopRV], spec: DeviceSpec) -> int:
    """Return the lanes of a product's vectors, which are float16 if that is asked for."""
    exact = prod(extent(sch, loop) or 0 for loop in reduction) % _ROWS == 0
    if exact and multiplies_float16(sch.mod["main"], spec) and split_runs(sch, block, _ROWS):
        return spec.lanes(2)
    return lanes_of(sch.get(block), spec)


def _add_rows(
    sch: Schedule,
    block: SBlockRV,
    reduction: LoopRV,
    rows: Sequence[LoopRV],
    vector: LoopRV,
    lane: LoopRV,
) -> None:
    """Add some rows of the matrix at a time to partial sums that stay in the cache."""
    exact = (extent(sch, reduction) or 0) % _ROWS == 0
    steps, term = sch.split(reduction, factors=[None, _ROWS])
    if not exact:
        peel_remainder(sch, [steps, term])
    sch.reorder(steps, vector, term, *rows, lane)
    sch.vectorize(lane)
    for loop in (term, *rows):
        sch.unroll(loop)
    sch.decompose_reduction(block, steps)
