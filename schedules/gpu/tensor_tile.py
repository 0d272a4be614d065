"""Tiles of convolutions on tensor cores: the knobs, the legal ones, and the rule's choice."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.gpu.tensor_conv import TensorConv

__all__ = ["TensorTile", "choose_tensor_tile", "possible_tensor_tiles", "suits"]


@dataclass(frozen=True)
class TensorTile:
    """Division of a convolution among work-groups and warps.

    Attributes
    ----------
    rows, columns : int
        Filters and pixels of a work-group.
    down, beside : int
        Pieces of a warp: 16 filters, and 8 pixels.
    warps : int
        Warps that share the reduction of the same results.
    depth : int
        Units of a step along the reduction.
    stages : int
        Steps in local memory.
    cached : int
        What goes through the L1 cache: nothing, images, or images and filters.
    parts : int
        Work-groups that share the reduction of a tile.
    """

    rows: int
    columns: int
    down: int
    beside: int
    warps: int
    depth: int
    stages: int
    cached: int = 1
    parts: int = 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the kernel's template takes: all but the parts."""
        return tuple(getattr(self, each.name) for each in fields(self)[:-1])

    @property
    def share(self) -> int:
        """Warps that have results of their own."""
        return self.rows // (self.down * 16) * (self.columns // (self.beside * 8))

    @property
    def items(self) -> int:
        """Work-items of a work-group."""
        return 32 * self.share * self.warps

    @property
    def local_bytes(self) -> int:
        """Local memory of a work-group."""
        staged = 16 * self.depth * (self.rows + self.columns) * self.stages
        return max(staged, 4 * (self.warps - 1) * self.rows * self.columns)

    def steps(self, conv: TensorConv) -> int:
        """Count the steps of a work-group."""
        return -(-conv.units // (self.depth * self.parts))


# Shared memory that a work-group may have on every device with these instructions.
_MOST_LOCAL = 99 << 10

_SHAPES = (
    # rows, columns, down, beside, warps, depth, stages
    (128, 112, 4, 7, 1, 4, 3),
    (128, 128, 4, 8, 1, 4, 3),
    (128, 64, 4, 4, 1, 4, 4),
    (128, 56, 4, 7, 2, 8, 3),
    (128, 56, 4, 7, 2, 4, 4),
    (64, 112, 4, 7, 1, 4, 4),
    (64, 112, 4, 7, 2, 8, 3),
    (64, 128, 4, 4, 1, 4, 4),
    (64, 64, 4, 4, 1, 4, 4),
    (64, 64, 4, 4, 2, 8, 3),
    (64, 56, 4, 7, 2, 8, 3),
    (64, 32, 4, 4, 4, 8, 4),
    (64, 32, 2, 2, 1, 8, 4),
    (32, 64, 2, 4, 2, 8, 4),
    (32, 64, 2, 2, 1, 8, 4),
    (32, 32, 2, 2, 2, 8, 4),
    (32, 32, 2, 4, 4, 16, 3),
    (32, 128, 2, 4, 1, 4, 4),
    (32, 256, 2, 8, 1, 2, 4),
    (32, 128, 2, 4, 1, 2, 4),
    (16, 64, 1, 4, 2, 8, 4),
    (16, 256, 1, 8, 1, 2, 4),
)


def suits(tile: TensorTile, conv: TensorConv, spec: DeviceSpec) -> bool:
    """Return whether a device runs a convolution by a tile."""
    return (
        conv.filters % tile.rows == 0
        and tile.down * 16 <= conv.stack
        and tile.down in (1, 2, 4)
        and tile.rows % (tile.down * 16) == 0
        and tile.columns % (tile.beside * 8) == 0
        and tile.depth % (2 * tile.warps) == 0
        and tile.stages > 1
        and 1 <= tile.parts <= -(-conv.units // tile.depth)
        and tile.local_bytes <= _MOST_LOCAL
        and tile.items <= spec.max_work_group_size
    )


def possible_tensor_tiles(conv: TensorConv, spec: DeviceSpec) -> list[TensorTile]:
    """Return the legal tiles, the one with the lowest estimated latency first."""
    found = []
    for shape in _SHAPES:
        for parts in (1, 2, 4, 8):
            tile = TensorTile(*shape, parts=parts)
            if suits(tile, conv, spec) and tile.depth < 2 * conv.units:
                found.append(tile)
    found.sort(key=lambda tile: estimated_seconds(tile, conv, spec))
    return found


@lru_cache(maxsize=512)
def choose_tensor_tile(conv: TensorConv, spec: DeviceSpec) -> TensorTile:
    """Return the legal tile with the lowest estimated latency."""
    return possible_tensor_tiles(conv, spec)[0]


def estimated_seconds(tile: TensorTile, conv: TensorConv, spec: DeviceSpec) -> float:
    """Estimate the latency of the kernels."""
    groups = conv.filters // tile.rows * -(-conv.pixels // tile.columns) * tile.parts
    waves = -(-groups // max(spec.cores, 1))
    return waves * tile.rows * tile.columns * tile.steps(conv) * tile.depth + (tile.parts > 1) * 1e9
