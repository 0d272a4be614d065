"""Code generation of convolutions without local memory, see :mod:`.direct`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from math import prod
from typing import Any

from tvm import ir, sym, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import either, hold, int32, launch_grid, registers, when
from tvm_edge.schedules.float16 import widened
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.dot_products import dot_product_of
from tvm_edge.schedules.gpu.epilogue import Epilogue, Memory, place_in_block
from tvm_edge.schedules.gpu.items import ItemTile
from tvm_edge.schedules.gpu.product import VECTOR
from tvm_edge.schedules.gpu.reads import Reads
from tvm_edge.schedules.gpu.written import buffers_of
from tvm_edge.schedules.open_lengths import divides

__all__ = ["write_direct"]


def write_direct(
    conv: DirectConv, tile: ItemTile, items: Sequence[Any], flat: list[Any], spec: DeviceSpec
) -> None:
    """Write the launch.

    Parameters
    ----------
    items : sequence of int or Expr
        Of a work-group, along x, y and z.
    flat : list of buffer
        The function's parameters as vectors, then the padded image if there is one.
    """
    space = conv.run_space(tile)
    groups = [
        tirx.floordiv(size + count - 1, count) for size, count in zip(space, items, strict=True)
    ]
    is_open = any(not isinstance(size, int) for size in space)
    # CUDA has at most 65535 work-groups along y and z.
    order = slice(None, None, -1) if is_open else slice(None)
    with launch_grid(groups[order], items) as (ordered, item):
        group = ordered[order]
        at = [g * count + i for g, count, i in zip(group, items, item, strict=True)]
        bounds = [
            place < size
            for place, size, count in zip(at, space, items, strict=True)
            if not (isinstance(count, int) and divides(count, size))
        ]
        with when(tirx.all(*bounds)) if bounds else nullcontext():
            _Item(conv, tile, at, flat, spec).write()


class _Item:
    """Work-item: its place in the output, and its accumulators."""

    def __init__(
        self,
        source: DirectConv,
        tile: ItemTile,
        at: Sequence[tirx.Expr],
        flat: list[Any],
        spec: DeviceSpec,
    ) -> None:
        self._source, self._tile, self._at = source, tile, at
        self._unaligned = spec.unaligned_vectors
        # Channels side by side are one multiply-add of a GPU that has vectors.
        self._in_vectors = not source.is_words or dot_product_of(spec).in_vectors
        params = buffers_of(source.func)
        if source.padding is not None:
            params = [*params, source.padding.writes[0].source]
        self._memory = Memory(params, flat, sym.Analyzer())
        x, y, z = at
        conv, sizes = source.conv, source.lengths
        channel_tiles = -(-source.channels // tile.channels)
        rest = z if channel_tiles == 1 else tirx.floordiv(z, channel_tiles)
        self._outer: dict[int, tirx.Expr] = {}
        for p in reversed(conv.outer):
            if isinstance(size := sizes[p], int):
                own = tirx.floormod(rest, size)
                self._outer[p] = hold(own) if size > 1 else int32(0)
            else:
                self._outer[p] = hold(rest if p == conv.outer[0] else tirx.floormod(rest, size))
            rest = tirx.floordiv(rest, size)
        # Only the tile's index is held: TVM has to see that vectors of weights are aligned.
        self._channel = hold(tirx.floormod(z, channel_tiles)) * tile.channels
        # The last tile moves back into the image where it is not a whole one.
        self._line, self._column = (
            hold(i * size if divides(size, extent) else tirx.min(i * size, extent - size))
            for i, size, extent in (
                (y, tile.lines, source.lines),
                (x, tile.columns, source.columns),
            )
        )
        self._accumulators = registers(tile.size, source.accumulator_dtype)
        self._halves = source.multiplied == "float16"
        # Over a whole reduction of thousands float16 would lose two digits of its three.
        self._of_window = registers(tile.size, "float16") if self._halves else self._accumulators

    def write(self) -> None:
        """Accumulate, and store."""
        source, conv = self._source, self._source.conv
        for i in range(self._tile.size):
            self._accumulators[i] = tirx.const(0, self._source.accumulator_dtype)
        channels = [p for p in conv.reduction if p not in conv.window]
        count = prod(source.sizes[p] for p in channels)
        *rows, taps = conv.window or (None,)
        with T.serial(0, count) if count > 1 else nullcontext(int32(0)) as term:
            reduction, below = {}, 1
            for p in reversed(channels):
                reduction[p] = tirx.floormod(tirx.floordiv(term, below), source.sizes[p])
                below *= source.sizes[p]
            if self._halves:
                for i in range(self._tile.size):
                    self._of_window[i] = tirx.const(0, "float16")
            # A line of the window at a time: its operands are few registers.
            for row in _steps(rows, source.sizes):
                self._add({**reduction, **row}, _steps([taps], source.sizes))
            if self._halves:
                for i in range(self._tile.size):
                    self._accumulators[i] = self._accumulators[i] + widened(self._of_window[i])
        self._store()

    def _place(self, k: int, i: int, j: int = 0) -> dict[int, Any]:
        """Return the output's axes at channel `k`, line `i` and column `j` of the tile."""
        conv = self._source.conv
        assert conv.lines is not None
        found = {**self._outer, conv.lines: self._line + i, conv.columns: self._column + j}
        if conv.channels is not None:
            found[conv.channels] = self._channel + k
        return found

    def _load(self, expr: Any, places: dict[int, Any]) -> Any:
        variables = [(var, places[p]) for p, var in enumerate(self._source.vars)]
        return self._memory.simplify.simplify(self._memory.flattened(expr, variables))

    def _add(self, reduction: dict[int, Any], taps: list[dict[int, Any]]) -> None:
        """Add the products of one line of the window."""
        tile, source = self._tile, self._source
        guarded = source.of_block > 0
        weights, data = (Reads(self._unaligned, guarded=guarded) for _ in range(2))
        own = tile.channels if source.own_channels else 1
        todo = []
        for tap in taps:
            for i in range(tile.lines):
                for j in range(tile.columns):
                    a, *_ = (
                        weights.add(
                            self._load(source.weight, {**self._place(k, i, j), **reduction, **tap})
                        )
                        for k in range(tile.channels)
                    )
                    b, *_ = (
                        data.add(
                            self._load(source.data, {**self._place(k, i, j), **reduction, **tap})
                        )
                        for k in range(own)
                    )
                    todo.append(((i * tile.columns + j) * tile.channels, a, b))
        w, d = weights.write(), data.write()
        accumulators, multiplied = self._of_window, source.product
        for s, a, b in todo:
            if tile.channels == 1 or not self._in_vectors:
                for k in range(tile.channels):
                    accumulators[s + k] = accumulators[s + k] + multiplied(w[a + k], d[b])
                continue
            width = VECTOR if source.of_block else tile.channels  # CUDA has none of eight
            for first in range(0, tile.channels, width):
                with T.vectorized(0, width) as lane:
                    k = first + lane if first else lane
                    factor = d[b + k if own > 1 else b]
                    accumulators[s + k] = accumulators[s + k] + multiplied(w[a + k], factor)

    def _store(self) -> None:
        if self._source.of_block:
            self._store_quads()
            return
        tile, source, conv = self._tile, self._source, self._source.conv
        spatial = [p for p in range(len(source.vars)) if p not in conv.reduction]
        axes = [tirx.Var(f"axis{p}", "int32") for p in spatial]
        own = len(buffers_of(source.func))
        memory = Memory(self._memory.params[:own], self._memory.flat[:own], sym.Analyzer())
        for axis, p in zip(axes, spatial, strict=True):
            memory.simplify.bind(axis, ir.Range(0, source.lengths[p]))
        accumulators = source.block.writes[0].source
        epilogue = Epilogue(source.epilogue, accumulators, memory, axes, axes)
        vectors = tile.columns in (2, 4) and epilogue.in_vectors(source.columns, tile.columns)
        # Most tiles of an open image are whole ones.
        is_open = not isinstance(source.columns, int) and self._unaligned
        maybe_vectors = is_open and tile.columns in (2, 4) and epilogue.in_vectors(0, tile.columns)
        for k in range(tile.channels):
            for i in range(tile.lines):
                bounds = []
                if source.channels % tile.channels:
                    bounds.append(self._channel + k < source.channels)
                if not divides(tile.lines, source.lines) and i < tile.lines - 1:
                    bounds.append(self._line + i >= self._at[1] * tile.lines)
                here = self._place(k, i)
                where = [here[p] for p in spatial[:-1]]
                kept = registers(tile.columns, source.accumulator_dtype)
                for j in range(tile.columns):
                    kept[j] = self._accumulators[(i * tile.columns + j) * tile.channels + k]
                first = self._at[0] * tile.columns
                with when(tirx.all(*bounds)) if bounds else nullcontext():
                    if vectors:
                        epilogue.write_vector([*where, first], _lanes(kept), tile.columns)
                    elif maybe_vectors:
                        lanes = _lanes(kept)
                        either(
                            self._column.equal(first),
                            partial(epilogue.write_vector, [*where, first], lanes, tile.columns),
                            partial(self._store_columns, epilogue, where, kept),
                        )
                    else:
                        self._store_columns(epilogue, where, kept)

    def _store_columns(self, epilogue: Epilogue, where: list[tirx.Expr], kept: Any) -> None:
        """Store the results of a line that the tile before did not."""
        tile, source = self._tile, self._source
        for j in range(tile.columns):
            moved = j < tile.columns - 1 and not divides(tile.columns, source.columns)
            inside = self._column + j >= self._at[0] * tile.columns
            with when(inside) if moved else nullcontext():
                epilogue.write([*where, self._column + j], kept[j])

    def _store_quads(self) -> None:
        """Store into channel blocks, four channels of a pixel at once."""
        tile, source = self._tile, self._source
        own = len(buffers_of(source.func))
        memory = Memory(self._memory.params[:own], self._memory.flat[:own], sym.Analyzer())
        names = ("image", "quad", "line", "column", "lane")
        axes = image, quad, line, column, lane = [tirx.Var(name, "int32") for name in names]
        extents = (
            source.lengths[0],
            source.channels // VECTOR,
            source.lines,
            source.columns,
            VECTOR,
        )
        for axis, extent in zip(axes, extents, strict=True):
            memory.simplify.bind(axis, ir.Range(0, extent))
        places = place_in_block(image, quad * VECTOR + lane, line, column, source.of_block)
        places = [memory.simplify.simplify(place) for place in places]
        epilogue = Epilogue(source.epilogue, source.block.writes[0].source, memory, axes, places)
        vectors = epilogue.in_vectors(VECTOR, VECTOR)
        for k, i, j in product(
            range(0, tile.channels, VECTOR), range(tile.lines), range(tile.columns)
        ):
            first = (i * tile.columns + j) * tile.channels + k
            kept = registers(VECTOR, source.accumulator_dtype)
            for m in range(VECTOR):
                kept[m] = self._accumulators[first + m]
            n, channel, y, x = (self._place(k, i, j)[p] for p in range(4))
            where = [n, memory.simplify.simplify(tirx.floordiv(channel, VECTOR)), y, x]
            bounds = self._bounds(i, j)
            with when(tirx.all(*bounds)) if bounds else nullcontext():
                if vectors:
                    epilogue.write_vector([*where, int32(0)], _lanes(kept), VECTOR)
                    continue
                for m in range(VECTOR):
                    epilogue.write([*where, int32(m)], kept[m])

    def _bounds(self, i: int, j: int) -> list[tirx.Expr]:
        """Return the conditions under which a place in a tile moved back into the image is new."""
        tile, source, bounds = self._tile, self._source, []
        if not divides(tile.lines, source.lines) and i < tile.lines - 1:
            bounds.append(self._line + i >= self._at[1] * tile.lines)
        if not divides(tile.columns, source.columns) and j < tile.columns - 1:
            bounds.append(self._column + j >= self._at[0] * tile.columns)
        return bounds


def _lanes(values: Any) -> Callable[[Any], tirx.Expr]:
    return lambda lane: values[lane]


def _steps(axes: Sequence[int | None], sizes: Sequence[int]) -> list[dict[int, Any]]:
    """Return all places on some axes of a window, ``None`` being none."""
    found: list[dict[int, Any]] = [{}]
    for axis in axes:
        if axis is not None:
            found = [{**before, axis: int32(i)} for before in found for i in range(sizes[axis])]
    return found
