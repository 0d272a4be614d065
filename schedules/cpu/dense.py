"""Matrix products.

Three forms, by how the matrix on the right is stored and how much work there is per weight:

* stored [K, N], many rows on the left: register tiles of rows by columns;
* stored [K, N], few rows (a fully connected layer at batch 1): memory-bound, so each core goes
  through a broad stripe of the matrix row by row and adds into sums that stay in its L1 cache;
* stored [N, K]: dot products, lanes along K.
"""

from __future__ import annotations

from math import ceil, prod

from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.analysis import divisors, extent, inline_spatial
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.contraction import Contraction, is_product, match_contraction
from tvm_edge.schedules.cpu.dot import schedule_dot
from tvm_edge.schedules.cpu.loops import can_peel, lanes_of, peel_remainder, split_vectors
from tvm_edge.schedules.cpu.microkernel import schedule_contraction
from tvm_edge.schedules.cpu.stages import schedule_rest
from tvm_edge.schedules.stages import epilogue_of, fuse, open_reduction

__all__ = ["Dense"]

# Rows of the matrix added to the sums at a time: the sums are loaded and stored once for eight
# multiply-adds (four: 45 instead of 50 GB/s).
_ROWS = 8
# Rows on the left up to which the product is bound by reading the matrix.
_FEW = 4


class Dense:
    """Fully connected layers and (batched) matrix products."""

    name = "dense"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> Schedule | None:
        """Schedule `func` if its one reduction is a matrix product."""
        opened = open_reduction(func)
        if opened is None:
            return None
        sch, block = opened
        if not is_product(sch.get(block)):
            return None
        inline_spatial(sch)
        product = match_contraction(sch.get(block))
        if product is not None and (product.lines is not None or product.window):
            return None
        epilogue = epilogue_of(sch, block)
        if product is None:
            _matrix_outermost(sch, block)
            if not schedule_dot(sch, block, epilogue, spec):
                return None
        elif can_peel(sch, sch.get_loops(block)[product.columns]) and _is_few_rows(
            sch.get(block), product, spec
        ):
            _schedule_stripes(sch, block, epilogue, product, spec)
        else:
            schedule_contraction(sch, block, epilogue, product, spec)
        schedule_rest(sch, [block, epilogue], spec)
        return sch


def _matrix_outermost(sch: Schedule, block: SBlockRV) -> None:
    """Have each row of a matrix stored [N, K] serve all rows on the left before the next."""
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    outputs = kinds.index(tirx.IterVar.CommReduce)
    loops = sch.get_loops(block)
    if outputs >= 2 and (extent(sch, loops[outputs - 2]) or 0) > _FEW:
        sch.reorder(loops[outputs - 1], loops[outputs - 2])


def _is_few_rows(block: s_tir.SBlock, product: Contraction, spec: DeviceSpec) -> bool:
    sizes = [constant(var.dom.extent) or 0 for var in block.iter_vars]
    rows = 1 if product.channels is None else sizes[product.channels]
    matrix = prod(int(dim) for dim in product.data.source.shape)
    if rows > _FEW or any(sizes[p] != 1 for p in product.outer):
        return False
    return matrix * product.data.source.dtype.bits // 8 > max(spec.l2_cache, spec.l1_cache)


def _schedule_stripes(
    sch: Schedule, block: SBlockRV, epilogue: SBlockRV, product: Contraction, spec: DeviceSpec
) -> None:
    loops = sch.get_loops(block)
    lanes = lanes_of(sch.get(block), spec)
    sch.set_scope(block, 0, "local")
    columns = loops[product.columns]
    size = extent(sch, columns) or 1
    # Sums in a quarter of the L1 cache; stripes of one width, a multiple of the cores.
    widest = max(1, spec.l1_cache // 16 // lanes) * lanes
    counts = (d for d in divisors(size) if size <= d * widest and d % spec.cores == 0)
    count = next(counts, size)
    width = size // count
    if width < lanes:
        width = ceil(min(widest, size / (4 * spec.cores)) / lanes) * lanes
    rows = [] if product.channels is None else [loops[product.channels]]
    terms = fuse(sch, [loops[p] for p in product.reduction])
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
    exact = (extent(sch, terms) or 0) % _ROWS == 0
    steps, term = sch.split(terms, factors=[None, _ROWS])
    if not exact:
        peel_remainder(sch, [steps, term])
    sch.reorder(steps, vector, term, *rows, lane)
    sch.parallel(stripe)
    sch.vectorize(lane)
    for loop in (term, *rows):
        sch.unroll(loop)
    last = sch.get_loops(epilogue)[-1]
    sch.vectorize(split_vectors(sch, last, 1, lanes, peel=size % width != 0)[-1])
    sch.decompose_reduction(block, steps)
