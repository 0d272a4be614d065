"""Convolutions in channel blocks on tensor cores.

The kernel's tile is CUDA C (:mod:`.tensor_source`); what follows an accumulator is the function's
own expression, in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.emit import each, hold, int32, launch, registers, when
from tvm_edge.schedules.gpu.blocked_kernel import BlockedKernel, Operands
from tvm_edge.schedules.gpu.tensor_conv import GEOMETRY, TensorConv
from tvm_edge.schedules.gpu.tensor_epilogue import TensorEpilogue
from tvm_edge.schedules.gpu.tensor_source import multiply_tile
from tvm_edge.schedules.gpu.tensor_tile import TensorTile, choose_tensor_tile, suits
from tvm_edge.schedules.gpu.tensor_vectors import add_sums, store_vector
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of
from tvm_edge.schedules.knobs import read_knobs

__all__ = ["TensorBlocks"]


_Pixel = tuple[tirx.Expr, Any]
"""A pixel of the result, and the condition that it exists; ``None``: it does."""


class TensorBlocks(ScheduleRule):
    """Dense convolutions of float16, int8 and tf32 in channel blocks, on tensor cores."""

    name = "tensor_blocks"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such convolution and its epilogue."""
        found = _Source.of(func) if spec.tensor_cores else None
        if found is None:
            return None
        tile = found.tile
        if tile is None or not suits(tile, found.conv, spec):  # a record may be another device's
            tile = choose_tensor_tile(found.conv, spec)
        return found.kernel(tile, spec)


@dataclass(frozen=True)
class _Source:
    """Function, analyzed: its geometry and its operands."""

    found: BlockedKernel
    conv: TensorConv
    operands: Operands

    @staticmethod
    def of(func: tirx.PrimFunc) -> _Source | None:
        """Analyze `func`; return ``None`` if it is something else."""
        found = BlockedKernel.of(func, GEOMETRY)
        if found is None:
            return None
        conv = read_knobs(TensorConv, found.geometry)
        filters = [conv.kernel_h, conv.kernel_w, conv.blocks, conv.filters, conv.lanes]
        if conv.products > 1:
            filters = [conv.products, *filters]
        operands = found.operands(filters, conv.dtype)
        several = conv.batch * conv.products > 1
        if operands is None or (several and operands.planes != conv.blocks):
            return None
        return _Source(found, conv, operands)

    @property
    def tile(self) -> TensorTile | None:
        """The tile that the function was given."""
        return read_knobs(TensorTile, self.found.config) if self.found.config else None

    def kernel(self, tile: TensorTile, spec: DeviceSpec) -> tirx.PrimFunc:
        """Write the function with loops for `tile`."""
        conv, own = self.conv, len(buffers_of(self.found.func))
        space = []
        if tile.parts > 1:
            space = [([tile.parts * conv.filters * conv.pixels], conv.accumulator_dtype)]

        def body(flat: list[Any]) -> None:
            epilogue = self.found.epilogue_over(flat[:own])
            if not space:
                self._write_tiles(tile, flat, epilogue, None, spec)
                return
            self._write_tiles(tile, flat, epilogue, flat[-1], spec)
            self._write_parts(tile, flat[-1], epilogue, spec)

        return kernel_of(self.found.func, space, body)

    def _write_tiles(
        self,
        tile: TensorTile,
        flat: Sequence[Any],
        epilogue: TensorEpilogue,
        parts: Any,
        spec: DeviceSpec,
    ) -> None:
        """Write the launch that multiplies; partial sums go to `parts`."""
        conv, cores = self.conv, spec.tensor_cores
        assert cores is not None, "the rule looks for them"
        down, across = conv.filters // tile.rows, tile.across(conv)
        groups = down * across * tile.parts * conv.products
        with launch(groups, tile.items) as (group, item):
            # Work-groups of the same pixels follow each other, those of a part or a product too.
            first_row = hold(tirx.floormod(group, down) * tile.rows)
            rest = tirx.floordiv(group, down)
            first_column = hold(tirx.floormod(rest, across) * (1 if tile.patch else tile.columns))
            rest = tirx.floordiv(rest, across)
            part = hold(rest) if tile.parts > 1 else int32(0)
            product = hold(rest) if conv.products > 1 else int32(0)
            local = tile.local_bytes(conv)
            memory = T.buffer_proxy(T.decl_buffer([local], "uint8", scope="shared.dyn"))
            accumulators = registers(tile.down * tile.beside * 4, conv.accumulator_dtype)
            steps = tile.steps(conv)
            first_of = (cores.async_copies, conv.lanes, conv.zero)
            parameters = (*first_of, *tile.numbers, steps, tile.whole(conv), *conv.numbers)
            plane = product * conv.blocks + self.operands.first
            image = flat[self.operands.image], plane * (conv.height * conv.width * conv.lanes)
            own = product * (conv.units * conv.filters * conv.lanes)
            filters = flat[self.operands.filters], own
            first = (first_row, first_column, part * steps)
            multiply_tile(parameters, accumulators, image, filters, memory, first)
            warp, lane = tirx.floordiv(item, 32), tirx.floormod(item, 32)
            with when(warp < tile.share) if tile.warps > 1 else nullcontext():
                place = (first_row, first_column, part, product)
                self._store(tile, epilogue, parts, place, (warp, lane), accumulators)

    def _store(
        self,
        tile: TensorTile,
        epilogue: TensorEpilogue,
        parts: Any,
        first: Sequence[tirx.Expr],
        item: tuple[tirx.Expr, tirx.Expr],
        accumulators: Any,
    ) -> None:
        """Store a lane's results: of each piece two channels of two pixels."""
        conv = self.conv
        (first_row, first_column, *number), (warp, lane) = first, item
        beside = tile.columns // (tile.beside * 8)
        stack = conv.stack
        row = first_row + tirx.floordiv(warp, beside) * (tile.down * 16)
        channel = hold(
            tirx.floordiv(row, stack) * stack
            + tirx.floordiv(lane, 4) * (stack // 8)
            + tirx.floordiv(tirx.floormod(row, stack), 8)
        )
        own_column = tirx.floormod(warp, beside) * (tile.beside * 8) + tirx.floormod(lane, 4)
        pixels = self._pixels(tile, first_column, own_column)
        count = min(2 * tile.down, conv.lanes)
        for piece in range(0, 2 * tile.down, count):
            own = channel if piece == 0 else channel + piece
            own_lanes = range(piece, piece + count)
            values = [
                [accumulators[(i // 2 * tile.beside + j) * 4 + i % 2 * 2 + k] for i in own_lanes]
                for j in range(tile.beside)
                for k in range(2)
            ]
            stored = list(zip(pixels, values, strict=True))
            self._store_lanes(epilogue, parts, (own, *number), stored)

    def _pixels(self, tile: TensorTile, first: tirx.Expr, own: tirx.Expr) -> list[_Pixel]:
        """Return a lane's pixels: every fourth one from `own` on in the tile."""
        conv, numbers = self.conv, range(0, 8 * tile.beside, 4)
        if not tile.patch:
            start = hold(first + own)
            outside = conv.pixels % tile.columns != 0
            pixels = [start + number for number in numbers]
            return [(p, p < conv.pixels if outside else None) for p in pixels]
        lines = tile.columns // tile.patch
        across = -(-conv.columns // tile.patch)
        of_image = across * -(-conv.lines // lines)
        patch = first if conv.batch == 1 else hold(tirx.floormod(first, of_image))
        top = hold(tirx.floordiv(patch, across) * lines)
        left = hold(tirx.floormod(patch, across) * tile.patch)
        begin = hold(own)
        found: list[_Pixel] = []
        for number in numbers:
            line = top + tirx.floordiv(begin + number, tile.patch)
            column = left + tirx.floormod(begin + number, tile.patch)
            bounds = []
            if conv.lines % lines:
                bounds.append(line < conv.lines)
            if conv.columns % tile.patch:
                bounds.append(column < conv.columns)
            pixel = line * conv.columns + column
            if conv.batch > 1:
                pixel += tirx.floordiv(first, of_image) * (conv.lines * conv.columns)
            found.append((hold(pixel), tirx.all(*bounds) if bounds else None))
        return found

    def _store_lanes(
        self,
        epilogue: TensorEpilogue,
        parts: Any,
        first: Sequence[tirx.Expr],
        pixels: Sequence[tuple[_Pixel, Sequence[tirx.Expr]]],
    ) -> None:
        """Store neighbouring channels of pixels."""
        conv, (channel, part, product) = self.conv, first
        count = len(pixels[0][1])
        block = hold(tirx.floordiv(channel, conv.lanes))
        at = int32(0) if count == conv.lanes else hold(tirx.floormod(channel, conv.lanes))
        fewer = self.found.blocks * conv.lanes < conv.filters
        with when(block < self.found.blocks) if fewer else nullcontext():
            shared = [] if parts is not None else epilogue.of_channels(block, at, count)
            for (pixel, exists), own in pixels:
                with nullcontext() if exists is None else when(exists):
                    if parts is not None:
                        line = part * (conv.filters // conv.lanes) + block
                        place = (line * conv.pixels + pixel) * conv.lanes + at
                        store_vector(parts, place, own)
                    else:
                        where = self._pixel(pixel, block, product)
                        epilogue.write_lanes((*where, at), own, shared)

    def _pixel(
        self, pixel: tirx.Expr, block: tirx.Expr, product: tirx.Expr
    ) -> tuple[tirx.Expr, ...]:
        """Return image, block and pixel in the image of a column of a product."""
        if self.conv.batch == 1:
            return product, block, pixel
        size = self.conv.lines * self.conv.columns
        return hold(tirx.floordiv(pixel, size)), block, hold(tirx.floormod(pixel, size))

    def _write_parts(
        self, tile: TensorTile, parts: Any, epilogue: TensorEpilogue, spec: DeviceSpec
    ) -> None:
        """Write the launch that adds the partial sums, in their order."""
        conv = self.conv
        blocks, count = conv.filters // conv.lanes, min(conv.lanes, 8)
        shares = conv.lanes // count

        def add(item: tirx.Expr) -> None:
            at = int32(0) if shares == 1 else hold(tirx.floormod(item, shares) * count)
            rest = item if shares == 1 else hold(tirx.floordiv(item, shares))
            pixel = hold(tirx.floormod(rest, conv.pixels))
            block = hold(tirx.floordiv(rest, conv.pixels))
            accumulators = registers(count, conv.accumulator_dtype)
            for k in range(count):
                accumulators[k] = tirx.const(0, conv.accumulator_dtype)
            with T.serial(0, tile.parts) as part:
                place = (part * blocks + block) * conv.pixels + pixel
                add_sums(accumulators, parts, place * conv.lanes + at, count)
            values = [accumulators[k] for k in range(count)]
            shared = epilogue.of_channels(block, at, count)
            where = self._pixel(pixel, block, int32(0))
            epilogue.write_lanes((*where, at), values, shared)

        each(spec, self.found.blocks * conv.pixels * shares, add)
