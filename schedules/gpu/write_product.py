"""Code generation of products through local memory: tiles, a pipeline, split reductions.

A work-group computes a tile of rows by columns. Each step brings `depth` reduction steps of its
rows and columns to local memory, where each is used as often as the tile is wide. It accumulates
in registers. During one step the next one is on its way to registers, so that one barrier a step
is enough. Where the tiles are too few for the device, work-groups share the reduction of a tile
(split-K). A second kernel then adds the partial sums in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import barrier, each, hold, int32, launch, register, registers, when
from tvm_edge.schedules.gpu.item_accumulators import ItemAccumulators
from tvm_edge.schedules.gpu.product import VECTOR, Product, Tile
from tvm_edge.schedules.gpu.staging import Load, Stage
from tvm_edge.schedules.gpu.tensor_core import WarpAccumulators
from tvm_edge.schedules.open_lengths import ceil_div, divides, total

__all__ = ["write_parts", "write_product"]


def write_product(product: Product, tile: Tile, parts: Any = None) -> None:
    """Write the launch that accumulates products.

    Parameters
    ----------
    parts : buffer or None
        Flat ``(part, batch, row, column)``, the partial sums of a tile with parts.
    """
    row_tiles = ceil_div(product.rows, tile.rows)
    column_tiles = ceil_div(product.columns, tile.columns)
    steps = tile.steps(product.reduction)
    with launch(tile.groups(product), tile.items) as (group, item):
        column_tile = tirx.floormod(group, column_tiles)
        row_tile = tirx.floormod(tirx.floordiv(group, column_tiles), row_tiles)
        rest = hold(tirx.floordiv(group, column_tiles * row_tiles))
        alone = isinstance(product.batch, int) and product.batch <= 1
        batch = int32(0) if alone else hold(tirx.floormod(rest, product.batch))
        part = hold(tirx.floordiv(rest, product.batch)) if tile.parts > 1 else int32(0)
        # The start of a vector is not held: TVM has to see that it is a multiple of its width.
        first_row, first_column = row_tile * tile.rows, column_tile * tile.columns
        first_step = hold(part * steps)

        weights, data = (
            T.buffer_proxy(T.decl_buffer([2 * tile.depth * pitch], product.stored, scope="shared"))
            for pitch in (tile.pitch, tile.data_pitch)
        )
        accumulators: ItemAccumulators | WarpAccumulators
        if tile.wave > 1:
            accumulators = WarpAccumulators(tile, item)
        else:
            accumulators = ItemAccumulators(tile, item, product)
        by_row = (tile.depth, tile.rows)
        data_width = VECTOR
        if product.data_quad is None:
            data_width = _width(product.data_width, tile.columns)

        def lines(term: tirx.Expr, at: tirx.Expr) -> list[tirx.Expr]:
            assert product.data_lines is not None
            return product.data_lines(batch, term, first_column + at)

        loads = (
            Load(
                "term" if product.rows_beside else "row",
                by_row,
                lambda term, at: product.weight(batch, first_row + at, term),
                None if divides(tile.rows, product.rows) else product.rows - first_row,
                weights,
                tile.pitch,
                _width(product.weight_width, by_row[int(product.rows_beside)]),
                accumulators.rounded,
                product.stored,
            ),
            Load(
                "term" if product.data_quad is None else "quad",
                (tile.depth, tile.columns),
                _data(product, batch, first_column),
                None if divides(tile.columns, product.columns) else product.columns - first_column,
                data,
                tile.data_pitch,
                data_width,
                accumulators.rounded,
                product.stored,
                lines if data_width > 1 and product.data_lines is not None else None,
            ),
        )
        whole = product.reduction == steps * tile.depth * tile.parts
        stage = Stage(loads, tile.items, item, None if whole else product.reduction)
        stage.bring(first_step * tile.depth)
        stage.put(int32(0))
        barrier()
        with T.serial(0, steps) as step:
            now = hold(tirx.floormod(step, 2))
            with when(step + 1 < steps):
                stage.bring((first_step + step + 1) * tile.depth)
            accumulators.add(weights, data, now)
            with when(step + 1 < steps):
                stage.put(1 - now)
            barrier()
        target = product if parts is None else _parts_of(product, part, parts)
        accumulators.store(target, batch, first_row, first_column)


def _data(product: Product, batch: tirx.Expr, first: tirx.Expr) -> Callable[..., tirx.Expr]:
    """Return the data of a tile whose first column is `first`."""
    quad = product.data_quad
    if quad is None:
        return lambda term, at: product.data(batch, term, first + at)
    return lambda term, lane, at: quad(batch, term, lane, first + at)


def _width(wanted: int, extent: int) -> int:
    return wanted if extent % wanted == 0 else 1


def _parts_of(product: Product, part: tirx.Expr, parts: Any) -> Product:
    """Return the product with its partial sums stored to `parts`."""

    def place(batch: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        line = (part * product.batch + batch) * product.rows + row
        return line * product.columns + column

    def store(batch: tirx.Expr, row: tirx.Expr, column: tirx.Expr, value: tirx.Expr) -> None:
        parts[place(batch, row, column)] = value

    def store_vector(
        batch: tirx.Expr, row: tirx.Expr, column: tirx.Expr, value: Any, width: int
    ) -> None:
        at = place(batch, row, column)
        with T.vectorized(0, width) as lane:
            parts[at + lane] = value(lane)

    vectors = store_vector if divides(VECTOR, product.columns) else None
    return replace(product, store=store, store_vector=vectors, store_rows=None)


def write_parts(product: Product, tile: Tile, parts: Any, spec: DeviceSpec) -> None:
    """Write the launch that adds the partial sums, in their order."""
    results = total([product.batch, product.rows, product.columns])
    if product.store_rows is not None:
        _write_parts_of_rows(product, tile, parts, spec)
        return

    def add(at: tirx.Expr) -> None:
        accumulators = register(tirx.const(0, product.accumulator_dtype))
        with T.serial(0, tile.parts) as part:
            accumulators[0] = accumulators[0] + parts[part * results + at]
        column = hold(tirx.floormod(at, product.columns))
        line = hold(tirx.floordiv(at, product.columns))
        row, batch = tirx.floormod(line, product.rows), tirx.floordiv(line, product.rows)
        product.store(hold(batch), hold(row), column, accumulators[0])

    each(spec, results, add)


def _write_parts_of_rows(product: Product, tile: Tile, parts: Any, spec: DeviceSpec) -> None:
    """Write the launch that adds the partial sums, four rows of a column at once."""
    store_rows = product.store_rows
    assert store_rows is not None
    quads = product.rows // VECTOR
    results = total([product.batch, product.rows, product.columns])

    def add(at: tirx.Expr) -> None:
        column = hold(tirx.floormod(at, product.columns))
        line = hold(tirx.floordiv(at, product.columns))
        row, batch = hold(tirx.floormod(line, quads)) * VECTOR, hold(tirx.floordiv(line, quads))
        first = hold((batch * product.rows + row) * product.columns + column)
        accumulators = registers(VECTOR, product.accumulator_dtype)
        for k in range(VECTOR):
            accumulators[k] = tirx.const(0, product.accumulator_dtype)
        with T.serial(0, tile.parts) as part:
            for k in range(VECTOR):
                accumulators[k] = (
                    accumulators[k] + parts[part * results + first + k * product.columns]
                )
        store_rows(batch, row, column, lambda lane: accumulators[lane])

    each(spec, total([product.batch, quads, product.columns]), add)
