"""Sums of products, and how they are divided among work-groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

__all__ = ["VECTOR", "Product", "Tile"]

Operand = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]

VECTOR = 4
"""Neighbouring elements that are read and written together."""


@dataclass(frozen=True)
class Product:
    """``out[batch, row, column] = sum over term of weight[...] * data[...]``.

    Attributes
    ----------
    batch, rows, columns, terms : int
        Extents; no operand is shared along the batch.
    weight : callable
        ``weight(batch, row, term)``, the factor that all columns share.
    data : callable
        ``data(batch, term, column)``, the factor that all rows share.
    store : callable
        ``store(batch, row, column, sum)`` writes what becomes of a sum.
    store_vector : callable or None
        ``store_vector(batch, row, column, sum, width)``, the same for `width` columns from `column`
        on, 2 or `VECTOR`; ``sum(lane)`` is one of theirs. ``None`` where they do not lie side by
        side.
    store_rows : callable or None
        ``store_rows(batch, row, column, sum)``, the same for `VECTOR` rows from `row` on, which is
        a multiple of it. ``None`` where they do not lie side by side.
    data_quad : callable or None
        ``data_quad(batch, term, lane, column)``, the data of the term `lane` behind `term`, which
        is a multiple of `VECTOR`. ``None`` where so many terms do not lie side by side.
    weight_width, data_width : int
        Neighbouring weights and data that can be read as one vector: 1 or `VECTOR`.
    rows_beside : bool
        Weights of neighbouring rows lie side by side, not those of neighbouring terms.
    stored : {"float32", "float16", "int32"}
        Type of the operands, and of local memory: int32 may be words of four 8-bit numbers.
    multiplied : {"float32", "float16", "int32"}
        Type of the products, and of sums over the terms of a step.
    summed : {"float32", "int32"}
        Type of all other sums.
    multiply : callable
        ``multiply(weight, data)``, the product of two operands.
    data_lines : callable or None
        ``data_lines(batch, term, column)``, of data that are words: four words of numbers that lie
        side by side, whose columns (:func:`~tvm_edge.schedules.words.column`) are the data from
        `column` on. ``None`` where they do not.
    """

    batch: int
    rows: int
    columns: int
    terms: int
    weight: Operand
    data: Operand
    store: Callable[[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr], None]
    store_vector: Callable[..., None] | None = None
    store_rows: Callable[..., None] | None = None
    data_quad: Callable[..., tirx.Expr] | None = None
    weight_width: int = 1
    data_width: int = 1
    rows_beside: bool = False
    stored: str = "float32"
    multiplied: str = "float32"
    summed: str = "float32"
    multiply: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = operator.mul
    data_lines: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], list[tirx.Expr]] | None = None


@dataclass(frozen=True)
class Tile:
    """How a product is divided.

    Attributes
    ----------
    rows, columns : int
        Of a work-group.
    item_rows, item_columns : int
        Of a work-item, or of a warp where one shares its sums; divisors of those.
    depth : int
        Terms of a step.
    parts : int
        Groups that share the terms of a tile.
    wave : int
        Work-items that share a tile of sums: 1, or a warp of 32 on tensor cores.
    """

    rows: int
    columns: int
    item_rows: int
    item_columns: int
    depth: int
    parts: int = 1
    wave: int = 1

    @property
    def items(self) -> int:
        """Work-items of a group."""
        return (self.rows // self.item_rows) * (self.columns // self.item_columns) * self.wave

    @property
    def pitch(self) -> int:
        """Elements from one term's rows in local memory to the next one's.

        Neighbouring work-items bring neighbouring terms of a row: without the gap all of them
        would store into the same bank. Those of a warp read eight rows of four terms at once, from
        as many banks.
        """
        return self.rows + (VECTOR if self.wave == 1 else 2 * VECTOR)

    @property
    def data_pitch(self) -> int:
        """The same of columns."""
        return self.columns + (0 if self.wave == 1 else 2 * VECTOR)

    @property
    def local_bytes(self) -> int:
        """Local memory of a group: two steps of float32; float16 takes half of it."""
        return 2 * self.depth * (self.pitch + self.data_pitch) * 4

    def steps(self, terms: int) -> int:
        """Steps of a group."""
        total = -(-terms // self.depth)
        return -(-total // self.parts)

    def groups(self, product: Product) -> int:
        """Work-groups of the launch."""
        tiles = -(-product.rows // self.rows) * -(-product.columns // self.columns)
        return product.batch * tiles * self.parts

    def bounds(self, product: Product, row: tirx.Expr, column: tirx.Expr) -> list[tirx.Expr]:
        """What must be asked of a place in a tile to know that there is a sum."""
        bounds = []
        if product.rows % self.rows:
            bounds.append(row < product.rows)
        if product.columns % self.columns:
            bounds.append(column < product.columns)
        return bounds
