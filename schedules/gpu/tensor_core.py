"""Accumulators that a warp keeps in its registers, on the tensor cores of an NVIDIA GPU.

Products of float32 that is rounded to tf32 (8 bits of exponent, 10 of mantissa), accumulated in
float32: ``mma.sync.aligned.m16n8k8`` of PTX (ISA 7.0, "Matrix Fragments for mma.m16n8k8"). A lane
has four weights, two of the data and four accumulators of each 16 by 8 piece.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import hold, registers, when
from tvm_edge.schedules.gpu.product import Product, Tile

__all__ = ["PIECE", "WARP", "WarpAccumulators"]

WARP = 32
"""Work-items that share a tile of accumulators."""

PIECE = (16, 8, 8)
"""Rows, columns and reduction length of one instruction."""

_ROUND = """
__device__ __forceinline__ float tvm_edge_tf32(float value) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}
"""
_MULTIPLY = """
__device__ __forceinline__ void tvm_edge_mma_tf32(float* sums, float a0, float a1, float a2,
                                                  float a3, float b0, float b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)),
        "r"(__float_as_uint(a3)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
"""


class WarpAccumulators:
    """Accumulators of one warp, zero at first.

    Parameters
    ----------
    tile : Tile
        Of warps: ``tile.wave`` is `WARP`, and a warp's part is whole in pieces.
    item : tirx.Expr
        Index of the work-item in its work-group.
    """

    def __init__(self, tile: Tile, item: tirx.Expr) -> None:
        rows, columns, _ = PIECE
        self._tile = tile
        across = tile.columns // tile.item_columns
        warp, lane = tirx.floordiv(item, WARP), tirx.floormod(item, WARP)
        # Of a piece: the lane's first row, and reduction step or pair of columns.
        self._group, self._member = hold(tirx.floordiv(lane, 4)), hold(tirx.floormod(lane, 4))
        self._row = hold(tirx.floordiv(warp, across) * tile.item_rows)
        self._column = hold(tirx.floormod(warp, across) * tile.item_columns)
        self._down, self._beside = tile.item_rows // rows, tile.item_columns // columns
        count = self._down * self._beside * 4
        self._accumulators = registers(count, "float32")
        for i in range(count):
            self._accumulators[i] = tirx.const(0, "float32")
        self._weights = registers(self._down * 4, "float32")
        self._data = registers(self._beside * 2, "float32")

    def rounded(self, value: tirx.Expr) -> tirx.Expr:
        """Round `value` to the nearest tf32; the instruction itself would truncate it."""
        return cuda_func_call("tvm_edge_tf32", value, source_code=_ROUND, return_type="float32")

    def add(self, weights: Any, data: Any, now: tirx.Expr) -> None:
        """Add the products of a step, which are in place `now` of local memory."""
        tile = self._tile
        rows, columns, reduction = PIECE
        with T.serial(0, tile.depth // reduction) as step:
            term = hold(now * tile.depth + step * reduction + self._member)
            first = hold(term * tile.pitch + self._row + self._group)
            for i in range(self._down):
                for k in range(4):
                    further = k // 2 * 4 * tile.pitch + i * rows + k % 2 * 8
                    self._weights[i * 4 + k] = weights[first + further]
            first = hold(term * tile.data_pitch + self._column + self._group)
            for j in range(self._beside):
                for k in range(2):
                    further = k * 4 * tile.data_pitch + j * columns
                    self._data[j * 2 + k] = data[first + further]
            for i in range(self._down):
                for j in range(self._beside):
                    own = [self._weights[i * 4 + k] for k in range(4)]
                    accumulators = T.address_of(self._accumulators[(i * self._beside + j) * 4])
                    call = cuda_func_call(
                        "tvm_edge_mma_tf32",
                        accumulators,
                        *own,
                        self._data[j * 2],
                        self._data[j * 2 + 1],
                        source_code=_MULTIPLY,
                    )
                    T.evaluate(call)

    def store(
        self, product: Product, batch: tirx.Expr, first_row: tirx.Expr, first_column: tirx.Expr
    ) -> None:
        """Store the accumulators whose rows and columns exist."""
        rows, columns, _ = PIECE
        for i in range(self._down):
            for j in range(self._beside):
                for half in range(2):
                    first = (i * self._beside + j) * 4 + half * 2
                    row = first_row + self._row + self._group + (i * rows + half * 8)
                    column = first_column + self._column + self._member * 2 + j * columns
                    if product.store_vector is not None:
                        self._store_pair(product, batch, row, column, first)
                        continue
                    for lane in range(2):
                        bounds = self._tile.bounds(product, row, column + lane)
                        with when(tirx.all(*bounds)) if bounds else nullcontext():
                            product.store(
                                batch, row, column + lane, self._accumulators[first + lane]
                            )

    def _store_pair(
        self,
        product: Product,
        batch: tirx.Expr,
        row: tirx.Expr,
        column: tirx.Expr,
        first: int,
    ) -> None:
        assert product.store_vector is not None
        bounds = self._tile.bounds(product, row, column)
        with when(tirx.all(*bounds)) if bounds else nullcontext():
            product.store_vector(
                batch, row, column, lambda lane: self._accumulators[first + lane], 2
            )
