"""Convolutions in channel blocks without local memory.

These are the kernels of :mod:`.direct` with work-items that have whole vectors of channels. They
run depthwise convolutions everywhere, and all others where local memory is main memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.gpu.channel_blocks import BlockedReduction
from tvm_edge.schedules.gpu.direct import tiled_kernel
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.item_space import legal_items
from tvm_edge.schedules.gpu.items import ITEMS_PER_CORE, ItemTile
from tvm_edge.schedules.gpu.product import VECTOR
from tvm_edge.schedules.workgroup import Problem

__all__ = ["BlockedConv", "ItemBlocks"]

_TILES = ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4))
"""Lines and columns of a work-item, four channels each."""


class ItemBlocks(ScheduleRule):
    """Convolutions in channel blocks, a tile of channels, lines and columns to each work-item."""

    name = "item_blocks"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such convolution and its epilogue."""
        blocked = BlockedReduction.of(func)
        if blocked is None:
            return None
        found = BlockedConv(blocked)
        return tiled_kernel(found, legal_items(found), spec)


class BlockedConv(DirectConv):
    """Convolution in channel blocks, analyzed: its axes, and its operands at their places.

    Parameters
    ----------
    blocked : BlockedReduction
    """

    def __init__(self, blocked: BlockedReduction) -> None:
        super().__init__(blocked.func, blocked.reduction, blocked.epilogue, None, blocked.conv)
        self.of_block = blocked.block
        self.own_channels = blocked.is_depthwise

    def suits(self, spec: DeviceSpec) -> bool:
        """Return whether no other rule does better: no other supports channel blocks."""
        return True

    def choose_tile(self, spec: DeviceSpec) -> ItemTile:
        """Choose the largest tile that leaves enough work-items to fill the device."""
        wanted = max(spec.cores, 1) * ITEMS_PER_CORE
        tiles = [
            ItemTile(VECTOR, lines, columns)
            for lines, columns in _TILES
            if lines <= self.typical_lines and columns <= self.typical_columns
        ]
        fitting = [tile for tile in tiles if prod(self.space(tile)) >= wanted]
        return fitting[-1] if fitting else tiles[0]

    def problem(self, tile: ItemTile) -> Problem:
        """Describe the problem for choosing a work-group: columns are a channel block apart."""
        plain = super().problem(tile)
        return replace(plain, vector=plain.vector * self.of_block)
