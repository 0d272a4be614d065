"""The ways to compute one convolution: algorithm, layout, knobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.knobs import knobs_as_dict

__all__ = ["ConfigSpace", "ConvConfig"]


@dataclass(frozen=True)
class ConvConfig:
    """One way to compute a convolution.

    Attributes
    ----------
    algorithm : {"direct", "winograd", "subgroup", "items", "tensor", "window", "plain"}
        ``subgroup`` is direct, by sub-groups of an Intel GPU; ``items`` is direct, without local
        memory, each work-item of a GPU by itself; ``tensor`` is direct, on tensor cores, and
        ``winograd`` in blocks on a GPU has its products there;
        ``window`` is depthwise, in vectors of a block's channels; ``plain`` is what the
        rules make of the operator as it is.
    block : int
        Channels in a block of the images it reads and writes, 0 where they stay NCHW.
    m : int
        Outputs of a Winograd tile along a line, 0 for other algorithms.
    knobs : str
        For the schedule: a CPU's :class:`tvm_edge.schedules.cpu.blocked.Knobs`, a GPU's
        :class:`tvm_edge.schedules.gpu.product.Tile`, of sub-groups
        :class:`tvm_edge.schedules.gpu.subgroup_tile.SubGroupTile`, of items
        :class:`tvm_edge.schedules.gpu.items.Items`, on tensor cores
        :class:`tvm_edge.schedules.gpu.tensor_tile.TensorTile`, as text; empty: its choice.
    """

    algorithm: Literal["direct", "winograd", "subgroup", "items", "tensor", "window", "plain"]
    block: int = 0
    m: int = 0
    knobs: str = ""

    def to_dict(self) -> dict[str, object]:
        """The knobs by name."""
        own: dict[str, object] = {"algorithm": self.algorithm, "block": self.block, "m": self.m}
        return own | knobs_as_dict(self.knobs)


@dataclass(frozen=True)
class ConfigSpace:
    """The ways to compute one convolution on one device: what a search chooses from.

    Attributes
    ----------
    workload : ConvWorkload
    configs : tuple of ConvConfig
        All that are legal. Those of one algorithm and layout stand best first, by the cost model
        of the schedule; the heuristic's choice is the first of all.
    """

    workload: ConvWorkload
    configs: tuple[ConvConfig, ...]

    @property
    def knobs(self) -> dict[str, tuple[object, ...]]:
        """Each knob by name, with its values in the order they first occur."""
        values: dict[str, dict[object, None]] = {}
        for config in self.configs:
            for name, value in config.to_dict().items():
                values.setdefault(name, {})[value] = None
        return {name: tuple(found) for name, found in values.items()}

    def top(self, count: int) -> list[ConvConfig]:
        """The first `count` configurations of each algorithm and layout."""
        taken: Counter[tuple[str, int, int]] = Counter()
        chosen = []
        for config in self.configs:
            kind = (config.algorithm, config.block, config.m)
            taken[kind] += 1
            if taken[kind] <= count:
                chosen.append(config)
        return chosen
