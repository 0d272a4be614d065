"""Sums of products through local memory, written out: tiles, a pipeline, parts of a sum.

A work-group takes a tile of rows by columns. Step by step it brings `depth` terms of its rows and
columns to local memory, where each is used as often as the tile is wide; a work-item keeps a tile
of sums in registers. While a step is added up the next one is on its way to registers, so that one
barrier a step is enough. Where the tiles are too few for the device, groups share the terms of a
tile (split-K), and a second kernel adds up the parts in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import barrier, each, hold, launch, register, registers, when

__all__ = ["VECTOR", "Product", "Tile", "write_parts", "write_product"]

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
        The same for `VECTOR` columns from `column` on; ``sum(lane)`` is one of theirs. ``None``
        where they do not lie side by side.
    weight_width, data_width : int
        Neighbouring weights and data that can be read as one vector: 1 or `VECTOR`.
    rows_beside : bool
        Weights of neighbouring rows lie side by side, not those of neighbouring terms.
    """

    batch: int
    rows: int
    columns: int
    terms: int
    weight: Operand
    data: Operand
    store: Callable[[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr], None]
    store_vector: Callable[..., None] | None = None
    weight_width: int = 1
    data_width: int = 1
    rows_beside: bool = False


@dataclass(frozen=True)
class Tile:
    """How a product is divided.

    Attributes
    ----------
    rows, columns : int
        Of a work-group.
    item_rows, item_columns : int
        Of a work-item, divisors of those.
    depth : int
        Terms of a step.
    parts : int
        Groups that share the terms of a tile.
    """

    rows: int
    columns: int
    item_rows: int
    item_columns: int
    depth: int
    parts: int = 1

    @property
    def items(self) -> int:
        """Work-items of a group."""
        return (self.rows // self.item_rows) * (self.columns // self.item_columns)

    @property
    def pitch(self) -> int:
        """Elements from one term's rows in local memory to the next one's.

        Neighbouring work-items bring neighbouring terms of a row: without the gap all of them
        would store into the same bank.
        """
        return self.rows + VECTOR

    @property
    def local_bytes(self) -> int:
        """Local memory of a group, of float32: two steps."""
        return 2 * self.depth * (self.pitch + self.columns) * 4

    def steps(self, terms: int) -> int:
        """Steps of a group."""
        total = -(-terms // self.depth)
        return -(-total // self.parts)

    def groups(self, product: Product) -> int:
        """Work-groups of the launch."""
        tiles = -(-product.rows // self.rows) * -(-product.columns // self.columns)
        return product.batch * tiles * self.parts


def write_product(product: Product, tile: Tile, parts: Any = None) -> None:
    """Write the launch that adds up products.

    Parameters
    ----------
    parts : buffer or None
        Flat ``(part, batch, row, column)``, which takes the sums where the tile has parts.
    """
    row_tiles = -(-product.rows // tile.rows)
    column_tiles = -(-product.columns // tile.columns)
    steps = tile.steps(product.terms)
    across = tile.columns // tile.item_columns
    with launch(tile.groups(product), tile.items) as (group, item):
        column_tile = tirx.floormod(group, column_tiles)
        row_tile = tirx.floormod(tirx.floordiv(group, column_tiles), row_tiles)
        rest = hold(tirx.floordiv(group, column_tiles * row_tiles))
        batch = hold(tirx.floormod(rest, product.batch)) if product.batch > 1 else _int(0)
        part = hold(tirx.floordiv(rest, product.batch)) if tile.parts > 1 else _int(0)
        # What vectors begin at is not held: TVM has to see that it is a multiple of their width.
        first_row, first_column = row_tile * tile.rows, column_tile * tile.columns
        first_step = hold(part * steps)

        weights = T.buffer_proxy(
            T.decl_buffer([2 * tile.depth * tile.pitch], "float32", scope="shared")
        )
        data = T.buffer_proxy(
            T.decl_buffer([2 * tile.depth * tile.columns], "float32", scope="shared")
        )
        loads = [
            _Load(
                "term" if product.rows_beside else "row",
                (tile.depth, tile.rows),
                lambda term, at: product.weight(batch, first_row + at, term),
                product.rows - first_row if product.rows % tile.rows else None,
                weights,
                tile.pitch,
                _width(product.weight_width, tile.rows if product.rows_beside else tile.depth),
            ),
            _Load(
                "term",
                (tile.depth, tile.columns),
                lambda term, at: product.data(batch, term, first_column + at),
                product.columns - first_column if product.columns % tile.columns else None,
                data,
                tile.columns,
                _width(product.data_width, tile.columns),
            ),
        ]
        whole = product.terms == steps * tile.depth * tile.parts
        held = [registers(load.turns(tile.items) * load.width, "float32") for load in loads]

        def bring(step: tirx.Expr) -> None:
            first = (first_step + step) * tile.depth
            for load, kept in zip(loads, held, strict=True):
                for i in range(load.turns(tile.items)):
                    e = (item + i * tile.items) * load.width
                    term, at = load.place(e)
                    bounds = []
                    if (i + 1) * tile.items * load.width > load.size:
                        bounds.append(e < load.size)
                    if load.limit is not None:
                        bounds.append(at < load.limit)
                    if not whole:
                        bounds.append(first + term < product.terms)

                    def value(lane: tirx.Expr, e: tirx.Expr = e, load: _Load = load) -> tirx.Expr:
                        term, at = load.place(e, lane)
                        return load.value(first + term, at)

                    _bring(kept, i * load.width, load.width, value, bounds)

        def put(into: tirx.Expr) -> None:
            for load, kept in zip(loads, held, strict=True):
                for i in range(load.turns(tile.items)):
                    e = (item + i * tile.items) * load.width
                    some = (i + 1) * tile.items * load.width > load.size
                    with when(e < load.size) if some else nullcontext():
                        load.put(kept, i * load.width, e, into * tile.depth)

        own_row = tirx.floordiv(item, across) * tile.item_rows
        # Items side by side read vectors side by side: no two of them from one bank.
        width = min(tile.item_columns, VECTOR)
        own_column = tirx.floormod(item, across) * width
        sums = registers(tile.item_rows * tile.item_columns, "float32")
        for i in range(tile.item_rows * tile.item_columns):
            sums[i] = tirx.const(0, "float32")
        own_weights = registers(tile.item_rows, "float32")
        own_data = registers(tile.item_columns, "float32")
        bring(_int(0))
        put(_int(0))
        barrier()
        with T.serial(0, steps) as step:
            now = hold(tirx.floormod(step, 2))
            with when(step + 1 < steps):
                bring(step + 1)
            with T.serial(0, tile.depth) as term:
                at = (now * tile.depth + term) * tile.pitch + own_row
                _read(own_weights, weights, at, tile.item_rows, VECTOR)
                at = (now * tile.depth + term) * tile.columns + own_column
                _read(own_data, data, at, tile.item_columns, across * width)
                for i in range(tile.item_rows):
                    for j in range(tile.item_columns):
                        k = i * tile.item_columns + j
                        sums[k] = sums[k] + own_weights[i] * own_data[j]
            with when(step + 1 < steps):
                put(1 - now)
            barrier()

        row, column = first_row + own_row, first_column + own_column
        target = product if parts is None else _parts_of(product, part, parts)
        _store(target, tile, (batch, row, column), sums)


@dataclass(frozen=True)
class _Load:
    """An operand's way to local memory.

    Attributes
    ----------
    outer : {"term", "row"}
        What elements are counted by first; those side by side differ in the other one.
    extents : (int, int)
        Terms of a step, and rows (or columns) of the tile.
    value : callable
        The operand at a term and a row (or column) of the tile.
    limit : tirx.Expr or None
        Rows (or columns) that there are.
    local : buffer
    pitch : int
    width : int
        Elements that a work-item brings at once.
    """

    outer: Literal["term", "row"]
    extents: tuple[int, int]
    value: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    limit: tirx.Expr | None
    local: Any
    pitch: int
    width: int

    @property
    def size(self) -> int:
        """Elements of a step."""
        return self.extents[0] * self.extents[1]

    def turns(self, items: int) -> int:
        """How often each of `items` work-items brings elements."""
        return -(-self.size // (items * self.width))

    def place(self, e: tirx.Expr, lane: Any = 0) -> tuple[tirx.Expr, tirx.Expr]:
        """Term and row (or column) of an element, or of the one `lane` elements behind it."""
        depth, rows = self.extents
        if self.outer == "term":
            return tirx.floordiv(e, rows), tirx.floormod(e, rows) + lane
        return tirx.floormod(e, depth) + lane, tirx.floordiv(e, depth)

    def put(self, kept: Any, first: int, e: tirx.Expr, before: tirx.Expr) -> None:
        """Store what was brought for element `e` behind `before` terms."""
        if self.width > 1 and self.outer == "term":
            with T.vectorized(0, self.width) as lane:
                term, at = self.place(e, lane)
                self.local[(before + term) * self.pitch + at] = kept[first + lane]
            return
        for lane in range(self.width):
            term, at = self.place(e, lane)
            self.local[(before + term) * self.pitch + at] = kept[first + lane]


def _width(wanted: int, extent: int) -> int:
    return wanted if extent % wanted == 0 else 1


def _bring(
    kept: Any,
    first: int,
    width: int,
    value: Callable[[Any], tirx.Expr],
    bounds: Sequence[tirx.Expr],
) -> None:
    """Read one element or a vector into registers, zeros where it is out of bounds."""

    def guarded(lane: Any) -> tirx.Expr:
        if not bounds:
            return value(lane)
        return tirx.if_then_else(tirx.all(*bounds), value(lane), tirx.const(0, "float32"))

    if width == 1:
        kept[first] = guarded(0)
        return
    with T.vectorized(0, width) as lane:
        kept[first + lane] = guarded(lane)


def _int(value: int) -> tirx.Expr:
    return tirx.const(value, "int32")


def _read(own: Any, local: Any, at: tirx.Expr, count: int, apart: int) -> None:
    """Copy `count` elements to registers: vectors that begin `apart` elements from each other."""
    width = min(count, VECTOR)
    for i in range(0, count, width):
        with T.vectorized(0, width) as lane:
            own[i + lane] = local[at + i // width * apart + lane]


def _parts_of(product: Product, part: tirx.Expr, parts: Any) -> Product:
    """The same product, whose sums go to `parts`."""

    def place(batch: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        line = (part * product.batch + batch) * product.rows + row
        return line * product.columns + column

    def store(batch: tirx.Expr, row: tirx.Expr, column: tirx.Expr, value: tirx.Expr) -> None:
        parts[place(batch, row, column)] = value

    def store_vector(batch: tirx.Expr, row: tirx.Expr, column: tirx.Expr, value: Any) -> None:
        at = hold(place(batch, row, column))
        with T.vectorized(0, VECTOR) as lane:
            parts[at + lane] = value(lane)

    vectors = store_vector if product.columns % VECTOR == 0 else None
    return replace(product, store=store, store_vector=vectors)


def _store(product: Product, tile: Tile, at: tuple[tirx.Expr, ...], sums: Any) -> None:
    """Hand on the sums of a work-item, those of rows and columns that there are."""
    batch, row, column = at
    vectors = product.store_vector is not None and tile.item_columns % VECTOR == 0
    width = VECTOR if vectors else 1
    for i in range(tile.item_rows):
        for j in range(0, tile.item_columns, width):
            first = i * tile.item_columns + j
            beside = j // VECTOR * (tile.columns * VECTOR // tile.item_columns) + j % VECTOR
            bounds = []
            if product.rows % tile.rows:
                bounds.append(row + i < product.rows)
            if product.columns % tile.columns:
                bounds.append(column + beside < product.columns)

            def write(i: int = i, beside: int = beside, first: int = first) -> None:
                if vectors:
                    assert product.store_vector is not None
                    lanes = lambda lane: sums[first + lane]  # noqa: E731
                    product.store_vector(batch, row + i, column + beside, lanes)
                else:
                    product.store(batch, row + i, column + beside, sums[first])

            if bounds:
                with when(tirx.all(*bounds)):
                    write()
            else:
                write()


def write_parts(product: Product, tile: Tile, parts: Any, spec: DeviceSpec) -> None:
    """Write the launch that adds up the parts of sums, in their order."""
    total = product.batch * product.rows * product.columns

    def add(at: tirx.Expr) -> None:
        sums = register(tirx.const(0, "float32"))
        with T.serial(0, tile.parts) as part:
            sums[0] = sums[0] + parts[part * total + at]
        column = hold(tirx.floormod(at, product.columns))
        line = hold(tirx.floordiv(at, product.columns))
        row, batch = tirx.floormod(line, product.rows), tirx.floordiv(line, product.rows)
        product.store(hold(batch), hold(row), column, sums[0])

    each(spec, total, add)
