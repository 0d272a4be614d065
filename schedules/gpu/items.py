"""Knobs of convolutions without local memory: the tile of a work-item, and its work-group.

:mod:`tvm_edge.schedules.gpu.direct` writes their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.reduce import has_few_results
from tvm_edge.schedules.workgroup import WorkGroup

__all__ = [
    "ITEMS",
    "ITEMS_PER_CORE",
    "LONGEST_WINDOW",
    "RESULTS_PER_CORE",
    "ItemTile",
    "Items",
    "items_apply",
]

ITEMS = "tvm_edge.items"
"""Annotation of a convolution's block: an :class:`Items` as text."""

LONGEST_WINDOW = 49
"""Limit of the unrolled steps of a window."""

RESULTS_PER_CORE = 64
"""Results for each core below which a work-group shares a reduction, as in the reduction rule."""

ITEMS_PER_CORE = 512
"""Work-items for each core that hide the latency of memory."""


@dataclass(frozen=True)
class ItemTile:
    """Accumulators of a work-item, along channels, lines and columns of the output."""

    channels: int
    lines: int
    columns: int

    @property
    def size(self) -> int:
        """Number of accumulators."""
        return self.channels * self.lines * self.columns


@dataclass(frozen=True)
class Items:
    """Tile of a work-item, and work-items of a work-group.

    Attributes
    ----------
    channels, lines, columns : int
        Outputs of a work-item.
    x, y, z : int
        Work-items of a work-group along columns, lines, and channels with all else.
    """

    channels: int
    lines: int
    columns: int
    x: int
    y: int
    z: int

    @staticmethod
    def of(tile: ItemTile, group: WorkGroup) -> Items:
        """Combine a tile and a work-group as knobs."""
        return Items(tile.channels, tile.lines, tile.columns, *group.sizes)

    @property
    def tile(self) -> ItemTile:
        """Outputs of a work-item."""
        return ItemTile(self.channels, self.lines, self.columns)

    @property
    def group(self) -> WorkGroup:
        """Work-items of a work-group."""
        return WorkGroup(self.x, self.y, self.z)


def items_apply(workload: ConvWorkload, spec: DeviceSpec) -> bool:
    """Return whether the rule for convolutions without local memory accepts one on a GPU."""
    if spec.has_cpu_cores or prod(workload.kernel) > LONGEST_WINDOW:
        return False
    if workload.depthwise:
        return True
    results = workload.batch * workload.filters * prod(workload.output)
    few = has_few_results(workload.macs // max(results, 1), results, spec, RESULTS_PER_CORE)
    return spec.local_memory_kind != "dedicated" and not few
