"""Writes convolutions without local memory, see :mod:`tvm_edge.schedules.gpu.direct`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import ir, sym, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import hold, launch_grid, registers, when
from tvm_edge.schedules.float16 import widened
from tvm_edge.schedules.gpu.dot_products import dot_product_of
from tvm_edge.schedules.gpu.reads import Reads
from tvm_edge.schedules.gpu.tail import Memory, Tail

if TYPE_CHECKING:
    from tvm_edge.schedules.gpu.direct import DirectConv

__all__ = ["ItemTile", "write_direct"]


@dataclass(frozen=True)
class ItemTile:
    """Sums of a work-item, along channels, lines and columns of the output."""

    channels: int
    lines: int
    columns: int

    @property
    def size(self) -> int:
        """Sums in all."""
        return self.channels * self.lines * self.columns


def write_direct(
    conv: DirectConv, tile: ItemTile, items: Sequence[Any], flat: list[Any], spec: DeviceSpec
) -> None:
    """Write the launch.

    Parameters
    ----------
    items : sequence of int or Expr
        Of a work-group, along x, y and z.
    flat : list of buffer
        The function's parameters as vectors, the padded image behind them if there is one.
    """
    space = conv.space(tile)
    groups = [
        tirx.floordiv(size + count - 1, count) for size, count in zip(space, items, strict=True)
    ]
    with launch_grid(groups, items) as (group, item):
        at = [g * count + i for g, count, i in zip(group, items, item, strict=True)]
        bounds = [
            place < size
            for place, size, count in zip(at, space, items, strict=True)
            if not isinstance(count, int) or size % count
        ]
        with when(tirx.all(*bounds)) if bounds else nullcontext():
            _Item(conv, tile, at, flat, spec).write()


class _Item:
    """One work-item: its place in the output, and its sums."""

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
        params = list(source.func.params)
        if source.padding is not None:
            params = [*params, source.padding.writes[0].source]
        self._memory = Memory(params, flat, sym.Analyzer())
        x, y, z = at
        conv, sizes = source.conv, source.sizes
        channel_tiles = -(-source.channels // tile.channels)
        rest = z if channel_tiles == 1 else tirx.floordiv(z, channel_tiles)
        self._outer: dict[int, tirx.Expr] = {}
        for p in reversed(conv.outer):
            own = tirx.floormod(rest, sizes[p])
            self._outer[p] = hold(own) if sizes[p] > 1 else _int(0)
            rest = tirx.floordiv(rest, sizes[p])
        # Only the number of the tile is held: TVM has to see that vectors of weights are aligned.
        self._channel = hold(tirx.floormod(z, channel_tiles)) * tile.channels
        # The last tile moves back into the image where it is not a whole one.
        self._line, self._column = (
            hold(tirx.min(i * size, extent - size) if extent % size else i * size)
            for i, size, extent in (
                (y, tile.lines, source.lines),
                (x, tile.columns, source.columns),
            )
        )
        self._sums = registers(tile.size, source.sums)
        self._halves = source.multiplied == "float16"
        # Over the thousands of terms of a whole sum float16 would lose two digits of its three.
        self._of_window = registers(tile.size, "float16") if self._halves else self._sums

    def write(self) -> None:
        """Add up, and store."""
        source, conv = self._source, self._source.conv
        for i in range(self._tile.size):
            self._sums[i] = tirx.const(0, self._source.sums)
        channels = [p for p in conv.reduction if p not in conv.window]
        count = prod(source.sizes[p] for p in channels)
        *rows, taps = conv.window or (None,)
        with T.serial(0, count) if count > 1 else nullcontext(_int(0)) as term:
            terms, below = {}, 1
            for p in reversed(channels):
                terms[p] = tirx.floormod(tirx.floordiv(term, below), source.sizes[p])
                below *= source.sizes[p]
            if self._halves:
                for i in range(self._tile.size):
                    self._of_window[i] = tirx.const(0, "float16")
            # A line of the window at a time: what it reads are few registers.
            for row in _steps(rows, source.sizes):
                self._add({**terms, **row}, _steps([taps], source.sizes))
            if self._halves:
                for i in range(self._tile.size):
                    self._sums[i] = self._sums[i] + widened(self._of_window[i])
        self._store()

    def _place(self, k: int, i: int, j: int = 0) -> dict[int, Any]:
        """The output's axes at channel `k`, line `i` and column `j` of the tile."""
        conv = self._source.conv
        assert conv.lines is not None
        found = {**self._outer, conv.lines: self._line + i, conv.columns: self._column + j}
        if conv.channels is not None:
            found[conv.channels] = self._channel + k
        return found

    def _load(self, expr: Any, places: dict[int, Any]) -> Any:
        variables = [(var, places[p]) for p, var in enumerate(self._source.vars)]
        return self._memory.simplify.simplify(self._memory.flattened(expr, variables))

    def _add(self, terms: dict[int, Any], taps: list[dict[int, Any]]) -> None:
        """Add the products of one line of the window."""
        tile, source = self._tile, self._source
        weights, data = Reads(self._unaligned), Reads(self._unaligned)
        todo = []
        for tap in taps:
            for i in range(tile.lines):
                for j in range(tile.columns):
                    a, *_ = (
                        weights.add(
                            self._load(source.weight, {**self._place(k, i, j), **terms, **tap})
                        )
                        for k in range(tile.channels)
                    )
                    b = data.add(self._load(source.data, {**self._place(0, i, j), **terms, **tap}))
                    todo.append(((i * tile.columns + j) * tile.channels, a, b))
        w, d = weights.write(), data.write()
        sums, product = self._of_window, source.product
        for s, a, b in todo:
            if tile.channels == 1 or not self._in_vectors:
                for k in range(tile.channels):
                    sums[s + k] = sums[s + k] + product(w[a + k], d[b])
                continue
            with T.vectorized(0, tile.channels) as k:
                sums[s + k] = sums[s + k] + product(w[a + k], d[b])

    def _store(self) -> None:
        tile, source, conv = self._tile, self._source, self._source.conv
        spatial = [p for p in range(len(source.vars)) if p not in conv.reduction]
        axes = [tirx.Var(f"axis{p}", "int32") for p in spatial]
        own = len(source.func.params)
        memory = Memory(self._memory.params[:own], self._memory.flat[:own], sym.Analyzer())
        for axis, p in zip(axes, spatial, strict=True):
            memory.simplify.bind(axis, ir.Range(0, source.sizes[p]))
        sums = source.block.writes[0].source
        tail = Tail(source.epilogue, sums, memory, axes, axes)
        vectors = tile.columns in (2, 4) and tail.in_vectors(source.columns, tile.columns)
        for k in range(tile.channels):
            for i in range(tile.lines):
                bounds = []
                if source.channels % tile.channels:
                    bounds.append(self._channel + k < source.channels)
                if source.lines % tile.lines and i < tile.lines - 1:
                    bounds.append(self._line + i >= self._at[1] * tile.lines)
                here = self._place(k, i)
                where = [here[p] for p in spatial[:-1]]
                kept = registers(tile.columns, source.sums)
                for j in range(tile.columns):
                    kept[j] = self._sums[(i * tile.columns + j) * tile.channels + k]
                with when(tirx.all(*bounds)) if bounds else nullcontext():
                    if vectors:
                        first = self._at[0] * tile.columns
                        tail.write_vector([*where, first], _lanes(kept), tile.columns)
                        continue
                    for j in range(tile.columns):
                        moved = source.columns % tile.columns and j < tile.columns - 1
                        inside = self._column + j >= self._at[0] * tile.columns
                        with when(inside) if moved else nullcontext():
                            tail.write([*where, self._column + j], kept[j])


def _int(value: int) -> tirx.Expr:
    return tirx.const(value, "int32")


def _lanes(values: Any) -> Callable[[Any], tirx.Expr]:
    return lambda lane: values[lane]


def _steps(axes: Sequence[int | None], sizes: Sequence[int]) -> list[dict[int, Any]]:
    """All places on some axes of a window, ``None`` being none."""
    found: list[dict[int, Any]] = [{}]
    for axis in axes:
        if axis is not None:
            found = [{**before, axis: _int(i)} for before in found for i in range(sizes[axis])]
    return found
