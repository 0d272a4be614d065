"""Contractions, and how their reductions are divided among work-groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from tvm_edge.schedules.open_lengths import Length, ceil_div, divides, total

__all__ = ["VECTOR", "Product", "Tile"]

Operand = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]

VECTOR = 4
"""Neighbouring elements that are read and written together."""


@dataclass(frozen=True)
class Product:
    """Contraction ``out[batch, row, column] = sum over term of weight[...] * data[...]``.

    Attributes
    ----------
    batch, rows, columns : int or Expr
        Extents. No operand is shared along the batch.
    reduction : int
        Length of that axis.
    weight : callable
        ``weight(batch, row, term)``, the factor that all columns share.
    data : callable
        ``data(batch, term, column)``, the factor that all rows share.
    store : callable
        ``store(batch, row, column, sum)`` stores the epilogue of a result.
    store_vector : callable or None
        ``store_vector(batch, row, column, sum, width)``, the same for `width` columns from `column`
        on, 2 or `VECTOR`; ``sum(lane)`` is one of theirs. ``None`` where they do not lie side by
        side.
    store_rows : callable or None
        ``store_rows(batch, row, column, sum)``, the same for `VECTOR` rows from `row` on, which is
        a multiple of it. ``None`` where they do not lie side by side.
    data_quad : callable or None
        ``data_quad(batch, term, lane, column)``, the data of the term `lane` after `term`, which
        is a multiple of `VECTOR`. ``None`` where so many reduction steps do not lie side by side.
    weight_width, data_width : int
        Neighbouring weights and data that can be read as one vector: 1 or `VECTOR`.
    rows_beside : bool
        Weights of neighbouring rows lie side by side, not those of neighbouring reduction steps.
    stored : {"float32", "float16", "int32"}
        Type of the operands, and of local memory: int32 may be words of four 8-bit numbers.
    multiplied : {"float32", "float16", "int32"}
        Type of the products, and of partial sums over a step.
    accumulator_dtype : {"float32", "int32"}
        Type of all other accumulators.
    multiply : callable
        ``multiply(weight, data)``, the product of two operands.
    data_lines : callable or None
        ``data_lines(batch, term, column)``, of data that are words: four words of numbers that lie
        side by side, whose columns (:func:`~tvm_edge.schedules.words.column`) are the data from
        `column` on. ``None`` where they do not.
    """

    batch: Length
    rows: Length
    columns: Length
    reduction: int
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
    accumulator_dtype: str = "float32"
    multiply: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = operator.mul
    data_lines: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], list[tirx.Expr]] | None = None


@dataclass(frozen=True)
class Tile:
    """Division of a product among work-groups and work-items.

    Attributes
    ----------
    rows, columns : int
        Of a work-group.
    item_rows, item_columns : int
        Of a work-item, or of a warp that shares its accumulators; divisors of those.
    depth : int
        Length of a step along the reduction axis.
    parts : int
        Work-groups that share the reduction of a tile.
    wave : int
        Work-items that share a tile of accumulators: 1, or a warp of 32 on tensor cores.
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
        """Work-items of a work-group."""
        return (self.rows // self.item_rows) * (self.columns // self.item_columns) * self.wave

    @property
    def pitch(self) -> int:
        """Elements in local memory from the rows of one reduction step to those of the next.

        Neighbouring work-items bring neighbouring reduction steps of a row. Without the gap all
        would store into the same bank. A warp reads eight rows of four reduction steps at once,
        from as many banks.
        """
        return self.rows + (VECTOR if self.wave == 1 else 2 * VECTOR)

    @property
    def data_pitch(self) -> int:
        """Elements in local memory from the columns of one reduction step to those of the next."""
        return self.columns + (0 if self.wave == 1 else 2 * VECTOR)

    @property
    def local_bytes(self) -> int:
        """Local memory of a work-group: two steps of float32; float16 uses half of it."""
        return 2 * self.depth * (self.pitch + self.data_pitch) * 4

    def steps(self, reduction: int) -> int:
        """Count the steps of a work-group."""
        total = -(-reduction // self.depth)
        return -(-total // self.parts)

    def groups(self, product: Product) -> Length:
        """Count the work-groups of the launch."""
        tiles = [ceil_div(product.rows, self.rows), ceil_div(product.columns, self.columns)]
        return total([product.batch, *tiles, self.parts])

    def bounds(self, product: Product, row: tirx.Expr, column: tirx.Expr) -> list[tirx.Expr]:
        """Return the conditions under which a place in a tile has a result."""
        bounds = []
        if not divides(self.rows, product.rows):
            bounds.append(row < product.rows)
        if not divides(self.columns, product.columns):
            bounds.append(column < product.columns)
        return bounds
