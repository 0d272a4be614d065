"""Accumulators that a work-item keeps in its registers, a tile of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import registers, when
from tvm_edge.schedules.float16 import widened
from tvm_edge.schedules.gpu.product import VECTOR, Product, Tile

__all__ = ["ItemAccumulators"]


class ItemAccumulators:
    """Accumulators of one work-item, zero at first.

    Parameters
    ----------
    tile : Tile
    item : tirx.Expr
        Index of the work-item in its work-group.
    product : Product
        Products of float16 are accumulated in float16 over a step, some ten of them, because
        processors are twice as fast in it. Steps are accumulated in float32: over a whole reduction
        of thousands float16 would lose two digits of its three.
    """

    rounded = None

    def __init__(self, tile: Tile, item: tirx.Expr, product: Product) -> None:
        self._tile = tile
        self._across = tile.columns // tile.item_columns
        # Work-items side by side read vectors side by side: no two of them from one bank.
        self._width = min(tile.item_columns, VECTOR)
        self._row = tirx.floordiv(item, self._across) * tile.item_rows
        self._column = tirx.floormod(item, self._across) * self._width
        count = tile.item_rows * tile.item_columns
        self._accumulators = registers(count, product.accumulator_dtype)
        for i in range(count):
            self._accumulators[i] = tirx.const(0, product.accumulator_dtype)
        self._product, dtype = product, product.multiplied
        self._halves = dtype == "float16"
        self._of_step = registers(count, dtype) if self._halves else self._accumulators
        self._weights = registers(tile.item_rows, dtype)
        self._data = registers(tile.item_columns, dtype)

    def add(self, weights: Any, data: Any, now: tirx.Expr) -> None:
        """Add the products of a step, which are in place `now` of local memory."""
        tile = self._tile
        count = tile.item_rows * tile.item_columns
        if self._halves:
            for k in range(count):
                self._of_step[k] = tirx.const(0, "float16")
        with T.serial(0, tile.depth) as term:
            at = (now * tile.depth + term) * tile.pitch + self._row
            _read(self._weights, weights, at, tile.item_rows, VECTOR)
            at = (now * tile.depth + term) * tile.data_pitch + self._column
            _read(self._data, data, at, tile.item_columns, self._across * self._width)
            self._multiply()
        if self._halves:
            for k in range(count):
                self._accumulators[k] = self._accumulators[k] + widened(self._of_step[k])

    def _multiply(self) -> None:
        """Add the products of one place of the reduction axis."""
        tile = self._tile
        # Half of the speed of float16 is in vectors: an instruction computes two of its products.
        width = self._width if self._halves else 1
        for i in range(tile.item_rows):
            for j in range(0, tile.item_columns, width):
                k = i * tile.item_columns + j
                if width == 1:
                    product = self._product.multiply(self._weights[i], self._data[j])
                    self._of_step[k] = self._of_step[k] + product
                    continue
                with T.vectorized(0, width) as lane:
                    product = self._weights[i] * self._data[j + lane]
                    self._of_step[k + lane] = self._of_step[k + lane] + product

    def store(
        self, product: Product, batch: tirx.Expr, first_row: tirx.Expr, first_column: tirx.Expr
    ) -> None:
        """Store the accumulators whose rows and columns exist."""
        tile = self._tile
        if product.store_rows is not None:
            self._store_rows(product, batch, first_row, first_column)
            return
        vectors = product.store_vector is not None and tile.item_columns % VECTOR == 0
        width = VECTOR if vectors else 1
        for i in range(tile.item_rows):
            for j in range(0, tile.item_columns, width):
                first = i * tile.item_columns + j
                row = first_row + self._row + i
                column = first_column + self._column + self._beside(j)
                bounds = tile.bounds(product, row, column)
                with when(tirx.all(*bounds)) if bounds else nullcontext():
                    if product.store_vector is not None and vectors:
                        lanes = lambda lane, first=first: self._accumulators[first + lane]  # noqa: E731
                        product.store_vector(batch, row, column, lanes, width)
                    else:
                        product.store(batch, row, column, self._accumulators[first])

    def _store_rows(
        self, product: Product, batch: tirx.Expr, first_row: tirx.Expr, first_column: tirx.Expr
    ) -> None:
        """Store the accumulators, four rows of a column at once."""
        tile = self._tile
        assert product.store_rows is not None
        for i in range(0, tile.item_rows, VECTOR):
            for j in range(tile.item_columns):
                kept = registers(VECTOR, "float32")
                for k in range(VECTOR):
                    kept[k] = self._accumulators[(i + k) * tile.item_columns + j]
                row = first_row + self._row + i
                column = first_column + self._column + self._beside(j)
                bounds = tile.bounds(product, row, column)
                with when(tirx.all(*bounds)) if bounds else nullcontext():
                    product.store_rows(batch, row, column, lambda lane, kept=kept: kept[lane])

    def _beside(self, j: int) -> int:
        """Count the columns between the first one of the work-item and its `j`-th."""
        return j // VECTOR * self._across * self._width + j % VECTOR


def _read(own: Any, local: Any, at: tirx.Expr, count: int, apart: int) -> None:
    """Copy `count` elements to registers: vectors that begin `apart` elements from each other."""
    width = min(count, VECTOR)
    for i in range(0, count, width):
        with T.vectorized(0, width) as lane:
            value = local[at + i // width * apart + lane]
            own[i + lane] = widened(value) if own.dtype == "float32" else value
