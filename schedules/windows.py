"""Depthwise convolution and pooling: each output element is made from a window of one channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm import s_tir
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.contraction import Contraction, match_contraction, match_pooling
from tvm_edge.schedules.stages import ReductionRule

__all__ = ["Window", "match_depthwise", "match_pool"]


class Window(ReductionRule):
    """Functions whose one reduction is over windows.

    Parameters
    ----------
    name : str
    match : callable
        Recognises the reduction.
    schedule : callable
        Schedules a function with one for a kind of device.
    """

    def __init__(
        self,
        name: str,
        match: Callable[[s_tir.SBlock], Contraction | None],
        schedule: Callable[[Schedule, SBlockRV, Contraction, DeviceSpec], Schedule],
    ) -> None:
        self.name, self._match, self._schedule = name, match, schedule

    def schedule(self, sch: Schedule, block: SBlockRV, spec: DeviceSpec) -> Schedule | None:
        """Schedule the reduction if it is such a one."""
        found = self._match(sch.get(block))
        return None if found is None else self._schedule(sch, block, found, spec)


def match_depthwise(block: s_tir.SBlock, *, open_axes: bool = False) -> Contraction | None:
    """A convolution whose output channels each read one input channel of their own."""
    conv = match_contraction(block, open_axes=open_axes)
    if conv is None or conv.channels is not None or not conv.window:
        return None
    return None if _extent(block, conv.channel_sum) > 1 else conv


def match_pool(block: s_tir.SBlock, *, open_axes: bool = False) -> Contraction | None:
    """Maximum, minimum or average that leaves an image of more than one column."""
    pool = match_pooling(block, open_axes=open_axes)
    if pool is None or not pool.window or _extent(block, (pool.columns,)) == 1:
        return None
    return pool


def _extent(block: s_tir.SBlock, positions: Sequence[int]) -> int:
    return prod(constant(block.iter_vars[p].dom.extent) or 0 for p in positions)
