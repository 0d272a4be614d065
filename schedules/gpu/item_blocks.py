"""Convolutions of images in blocks of channels without local memory.

The kernels of :mod:`.direct`, whose items here have whole vectors of channels: of a depthwise
convolution, which needs nothing else, and of all others where local memory is main memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import Origin
from tvm_edge.schedules.gpu.channel_blocks import BlockedSums
from tvm_edge.schedules.gpu.direct import tiled_kernel
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.item_space import is_legal
from tvm_edge.schedules.gpu.items import ITEMS_PER_CORE, ItemTile
from tvm_edge.schedules.gpu.product import VECTOR
from tvm_edge.schedules.workgroup import Problem

__all__ = ["BlockedConv", "ItemBlocks"]

_TILES = ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4))
"""Lines and columns of an item, four channels each."""


class ItemBlocks:
    """Convolutions of blocks, a tile of channels, lines and columns to each work-item."""

    name = "item_blocks"
    origin: Origin = "heuristic"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """The kernel, if `func` is one such convolution and what follows its sums."""
        sums = BlockedSums.of(func)
        if sums is None:
            return None
        found = BlockedConv(sums)
        items = found.items
        if items is not None and not is_legal(found, items.tile):
            items = None  # a record may be another convolution's
        return tiled_kernel(found, items, spec)


class BlockedConv(DirectConv):
    """Such a convolution taken apart: its axes, and its operands at their places.

    Parameters
    ----------
    sums : BlockedSums
    """

    def __init__(self, sums: BlockedSums) -> None:
        super().__init__(sums.func, sums.sums, sums.epilogue, None, sums.conv)
        self.of_block = sums.block
        self.own_channels = sums.is_depthwise

    def suits(self, spec: DeviceSpec) -> bool:
        """Whether no other rule does better: none knows blocks."""
        return True

    def choose_tile(self, spec: DeviceSpec) -> ItemTile:
        """The largest tile that leaves enough work-items to fill the device."""
        wanted = max(spec.cores, 1) * ITEMS_PER_CORE
        tiles = [
            ItemTile(VECTOR, lines, columns)
            for lines, columns in _TILES
            if lines <= self.lines and columns <= self.columns
        ]
        fitting = [tile for tile in tiles if prod(self.space(tile)) >= wanted]
        return fitting[-1] if fitting else tiles[0]

    def problem(self, tile: ItemTile) -> Problem:
        """The same: neighbours along a line are as many elements apart as a block has."""
        plain = super().problem(tile)
        return replace(plain, vector=plain.vector * self.of_block)
