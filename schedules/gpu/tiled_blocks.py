"""Convolutions in channel blocks as tiles in local memory.

This is the product of :mod:`.tiled` with other loads and stores. A work-item loads four input
channels of a pixel at once, and stores four output channels of a pixel at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, sym, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.emit import int32
from tvm_edge.schedules.gpu.channel_blocks import BlockedReduction
from tvm_edge.schedules.gpu.epilogue import Epilogue, Memory, place_in_block, substituted
from tvm_edge.schedules.gpu.product import VECTOR, Product
from tvm_edge.schedules.gpu.product_tile import choose_block_tile, fits, suits_blocks
from tvm_edge.schedules.gpu.tiled import Source, digits
from tvm_edge.schedules.gpu.written import buffers_of
from tvm_edge.schedules.open_lengths import Length

__all__ = ["TiledBlocks"]


class TiledBlocks(ScheduleRule):
    """Dense convolutions in channel blocks on GPUs whose local memory is on the chip."""

    name = "tiled_blocks"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such convolution and its epilogue."""
        if spec.local_memory_kind != "dedicated":
            return None
        blocked = BlockedReduction.of(func)
        if blocked is None or blocked.is_depthwise or blocked.for_items:
            return None
        source = _BlockedSource(blocked)
        tile = source.tile
        if tile is None or not (fits(tile, spec) and suits_blocks(tile)):
            tile = choose_block_tile(source.extents, source.line, spec)
        return None if tile is None else source.kernel(tile, spec)


class _BlockedSource(Source):
    """Dense convolution in channel blocks, analyzed.

    Attributes
    ----------
    line : int
        Reduction steps of a line of the window.
    """

    def __init__(self, blocked: BlockedReduction) -> None:
        super().__init__(blocked.func, blocked.reduction, blocked.epilogue, blocked.conv)
        self._width = blocked.block
        _, _, kx, ci = self._reduction
        self._depth = self._sizes[ci]
        self.line = self._sizes[kx] * self._depth

    def _product(self, flat: Sequence[Any]) -> Product:
        product = replace(
            super()._product(flat), store_vector=None, store_rows=self._store_rows(flat)
        )
        if self._depth % VECTOR:
            return product  # an image of few channels, which lies as in NCHW
        return replace(product, data_quad=self._data_quad(flat))

    def _stored_at(self, places: Mapping[int, tirx.Expr]) -> list[tirx.Expr]:
        n, o, y, x = super()._stored_at(places)
        return place_in_block(n, o, y, x, self._width)

    def _store_rows(self, flat: Sequence[Any]) -> Callable[..., None]:
        """Return the function that stores four rows, given the first of them."""
        images, rows, columns, _ = self.lengths
        axes, memory = self._axes(
            flat, batch=images, quad=rows // VECTOR, column=columns, lane=VECTOR
        )
        batch, quad, column, lane = axes
        at = digits(column, self._lines, self._sizes)
        line, pixel = (at[p] for p in self._lines)
        places = place_in_block(batch, quad * VECTOR + lane, line, pixel, self._width)
        places = [memory.simplify.simplify(place) for place in places]
        epilogue = Epilogue(self._epilogue, self._block.writes[0].source, memory, axes, places)
        vectors = epilogue.in_vectors(VECTOR, VECTOR)

        def store(batch: Any, row: Any, column: Any, value: Any) -> None:
            where = [batch, memory.simplify.simplify(tirx.floordiv(row, VECTOR)), column]
            if vectors:
                epilogue.write_vector([*where, int32(0)], value, VECTOR)
                return
            for k in range(VECTOR):
                epilogue.write([*where, int32(k)], value(k))

        return store

    def _data_quad(self, flat: Sequence[Any]) -> Callable[..., tirx.Expr]:
        """Return the data by the first of four reduction steps, the lane, and the column."""
        images, _, columns, reduction = self.lengths
        axes, memory = self._axes(
            flat, batch=images, quad=reduction // VECTOR, lane=VECTOR, column=columns
        )
        batch, quad, lane, column = axes
        *others, ci = self._reduction
        of_block = self._depth // VECTOR
        places = {
            self._outer[0]: batch,
            **digits(column, self._lines, self._sizes),
            **digits(tirx.floordiv(quad, of_block), others, self._sizes),
            ci: tirx.floormod(quad, of_block) * VECTOR + lane,
        }
        variables = [(var, places[p]) for p, var in enumerate(self._vars) if p in places]
        data = memory.flattened(self._data, variables)

        def value(batch: Any, term: Any, lane: Any, column: Any) -> tirx.Expr:
            first = memory.simplify.simplify(tirx.floordiv(term, VECTOR))
            where = (batch, first, lane, column)
            return substituted(data, list(zip(axes, where, strict=True)))

        return value

    def _axes(self, flat: Sequence[Any], **extents: Length) -> tuple[list[tirx.Var], Memory]:
        """Return variables of these extents, and memory that has their ranges."""
        simplify = sym.Analyzer()
        axes = [tirx.Var(name, "int32") for name in extents]
        for axis, size in zip(axes, extents.values(), strict=True):
            simplify.bind(axis, ir.Range(0, size))
        return axes, Memory(buffers_of(self._func), flat, simplify)
