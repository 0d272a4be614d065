"""Sums that a work-item keeps in its registers, a tile of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import registers, when
from tvm_edge.schedules.gpu.product import VECTOR, Product, Tile

__all__ = ["ItemSums"]


class ItemSums:
    """The sums of one work-item, zero at first.

    Parameters
    ----------
    tile : Tile
    item : tirx.Expr
        Which work-item of the group.
    """

    rounded = None

    def __init__(self, tile: Tile, item: tirx.Expr) -> None:
        self._tile = tile
        self._across = tile.columns // tile.item_columns
        # Items side by side read vectors side by side: no two of them from one bank.
        self._width = min(tile.item_columns, VECTOR)
        self._row = tirx.floordiv(item, self._across) * tile.item_rows
        self._column = tirx.floormod(item, self._across) * self._width
        count = tile.item_rows * tile.item_columns
        self._sums = registers(count, "float32")
        for i in range(count):
            self._sums[i] = tirx.const(0, "float32")
        self._weights = registers(tile.item_rows, "float32")
        self._data = registers(tile.item_columns, "float32")

    def add(self, weights: Any, data: Any, now: tirx.Expr) -> None:
        """Add the products of a step, which are in place `now` of local memory."""
        tile = self._tile
        with T.serial(0, tile.depth) as term:
            at = (now * tile.depth + term) * tile.pitch + self._row
            _read(self._weights, weights, at, tile.item_rows, VECTOR)
            at = (now * tile.depth + term) * tile.data_pitch + self._column
            _read(self._data, data, at, tile.item_columns, self._across * self._width)
            for i in range(tile.item_rows):
                for j in range(tile.item_columns):
                    k = i * tile.item_columns + j
                    self._sums[k] = self._sums[k] + self._weights[i] * self._data[j]

    def store(
        self, product: Product, batch: tirx.Expr, first_row: tirx.Expr, first_column: tirx.Expr
    ) -> None:
        """Hand on the sums, those of rows and columns that there are."""
        tile = self._tile
        vectors = product.store_vector is not None and tile.item_columns % VECTOR == 0
        width = VECTOR if vectors else 1
        for i in range(tile.item_rows):
            for j in range(0, tile.item_columns, width):
                first = i * tile.item_columns + j
                beside = j // VECTOR * self._across * self._width + j % VECTOR
                row = first_row + self._row + i
                column = first_column + self._column + beside
                bounds = tile.bounds(product, row, column)
                with when(tirx.all(*bounds)) if bounds else nullcontext():
                    if product.store_vector is not None and vectors:
                        lanes = lambda lane, first=first: self._sums[first + lane]  # noqa: E731
                        product.store_vector(batch, row, column, lanes, width)
                    else:
                        product.store(batch, row, column, self._sums[first])


def _read(own: Any, local: Any, at: tirx.Expr, count: int, apart: int) -> None:
    """Copy `count` elements to registers: vectors that begin `apart` elements from each other."""
    width = min(count, VECTOR)
    for i in range(0, count, width):
        with T.vectorized(0, width) as lane:
            own[i + lane] = local[at + i // width * apart + lane]
