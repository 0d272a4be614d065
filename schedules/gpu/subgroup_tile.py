"""Choice of a convolution's tile in the registers of an Intel sub-group, by an estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["SubGroupTile", "choose_sub_group_tile", "fits_sub_group"]

# Sizes that Intel's GPUs have; drivers of CPUs offer more, which fill none of their registers.
_SIZES = (8, 16, 32)
_CHANNELS = (2, 4, 8, 16, 32)
_LINES = (1, 2, 3, 4, 6, 8)

# 32-bit registers of a hardware thread (ICPP'19 §3.2.1), and those of a lane beside its tile.
# A sub-group shares the general register file of 4 KiB.
_REGISTERS = 1024
_OTHER_REGISTERS = 8

# Limit of the unrolled multiply-adds of one input channel: larger sources take long to build.
_UNROLLED = 1024

# Costs in multiply-adds of eight lanes, of which an execution unit begins one each cycle: a
# message to memory with its share of the wait; a shuffle over an irregular distance.
_MESSAGE, _SHIFT = 8, 4

# Hardware threads that an execution unit needs to hide its waits.
_THREADS = 4

# With fewer outputs than lanes an image is a vector, whose long reductions work-groups share.
_FEWEST_PIXELS = 8

_MOST_ELEMENTS = 1 << 31  # kernels have 32-bit indices


@dataclass(frozen=True)
class SubGroupTile:
    """Tile of a sub-group: `channels` x `lines` x `size` outputs.

    Attributes
    ----------
    size : int
        Lanes, each of them one column.
    channels : int
        Output channels.
    lines : int
        Lines of the feature map; of a flat convolution runs of `size` pixels.
    """

    size: int
    channels: int
    lines: int

    def pitch(self, kernel: tuple[int, int]) -> int:
        """Packed weights of one line of the window: whole block reads."""
        return -(-kernel[1] * self.channels // self.size) * self.size

    def unrolls(self, kernel: tuple[int, int]) -> bool:
        """Return whether the whole window is unrolled, not only one line of it."""
        return prod(kernel) * self.channels * self.lines <= _UNROLLED

    def registers(self, kernel: tuple[int, int]) -> int:
        """Registers of a lane: accumulators, weights of the unrolled part, and an input line."""
        lines = kernel[0] if self.unrolls(kernel) else 1
        weights = lines * self.pitch(kernel) // self.size
        return self.channels * self.lines + weights + 2 * kernel[1] + _OTHER_REGISTERS


def _is_flat(workload: ConvWorkload) -> bool:
    """Return whether each output depends on one pixel: all lines are then one."""
    return (
        workload.kernel == (1, 1)
        and workload.strides == (1, 1)
        and workload.padding == (0, 0, 0, 0)
    )


def fits_sub_group(tile: SubGroupTile, spec: DeviceSpec) -> bool:
    """Return whether a device accepts kernels that require sub-groups of a tile's size."""
    return tile.size in spec.sub_groups and tile.size <= spec.max_work_group_size


@cache
def choose_sub_group_tile(workload: ConvWorkload, spec: DeviceSpec) -> SubGroupTile | None:
    """Choose the tile with the lowest estimated latency; ``None`` where there is none."""
    lines, columns = workload.output
    image = workload.batch * workload.channels * workload.height * workload.width
    result = workload.batch * workload.filters * lines * columns
    if max(image, result) >= _MOST_ELEMENTS or lines * columns < _FEWEST_PIXELS:
        return None
    return min(
        _possible(workload, spec),
        key=lambda tile: _estimated_cycles(tile, workload, spec),
        default=None,
    )


def _possible(workload: ConvWorkload, spec: DeviceSpec) -> Iterator[SubGroupTile]:
    rows = workload.filters // workload.groups
    channels = (1,) if rows == 1 else tuple(n for n in _CHANNELS if n < 2 * rows)
    for size, count, lines in product(_SIZES, channels, _LINES):
        tile = SubGroupTile(size, count, lines)
        if fits_sub_group(tile, spec) and tile.registers(workload.kernel) <= _REGISTERS // size:
            yield tile


def _estimated_cycles(tile: SubGroupTile, workload: ConvWorkload, spec: DeviceSpec) -> float:
    """Estimate the cycles of an execution unit, from the sub-groups that it runs at a time."""
    lines, columns = workload.output
    height, width = workload.kernel
    rows = workload.filters // workload.groups
    if _is_flat(workload):
        tiles = -(-lines * columns // (tile.size * tile.lines))
        input_lines = tile.lines
    else:
        tiles = -(-lines // tile.lines) * -(-columns // tile.size)
        # Input lines that several outputs use are read once, if their accumulators are at hand.
        input_lines = tile.lines * height
        if tile.unrolls(workload.kernel) and workload.dilation[0] == 1:
            input_lines = min(input_lines, (tile.lines - 1) * workload.strides[0] + height)
    groups = workload.batch * workload.groups * -(-rows // tile.channels) * tiles
    passes = tile.size / 8
    multiply_adds = tile.channels * tile.lines * height * width * passes
    read = height * tile.pitch(workload.kernel) // tile.size
    read += input_lines * (1 + (width > 1) + (workload.strides[1] > 1))
    shifts = input_lines * (width - 1)
    channel = multiply_adds + _MESSAGE * read + _SHIFT * shifts * passes
    stores = tile.channels * tile.lines * _MESSAGE
    rounds = max(-(-groups // max(spec.cores, 1)), _THREADS)
    return rounds * (workload.channels // workload.groups * channel + stores)
