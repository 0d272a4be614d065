"""Which algorithm computes a convolution on a CPU, and with which knobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import ConvWorkload, filled

__all__ = ["ConvConfig", "choose_config", "winograd_applies"]


@dataclass(frozen=True)
class ConvConfig:
    """How a convolution is computed.

    Attributes
    ----------
    algorithm : {"direct", "winograd", "plain"}
        ``direct`` and ``winograd`` work on blocked images, ``plain`` on NCHW.
    m : int
        Outputs of a Winograd tile along a line, 0 for other algorithms.
    knobs : str
        For the schedule, see :class:`tvm_edge.schedules.cpu.blocked.Knobs`; empty: its choice.
    """

    algorithm: Literal["direct", "winograd", "plain"]
    m: int = 0
    knobs: str = ""


def winograd_applies(workload: ConvWorkload) -> bool:
    """Whether a convolution has the form that Winograd's algorithm computes."""
    return (
        workload.kernel == (3, 3)
        and workload.strides == (1, 1)
        and workload.dilation == (1, 1)
        and workload.groups == 1
    )


def choose_config(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    """The algorithm with the least cost, knobs left to the schedule.

    The cost is counted in multiply-adds for a pair of an input and an output channel: those of the
    products, those of the transforms shared by the channels, and the time to read the filters once
    from memory, which decides for small images.
    """
    if not winograd_applies(workload) or workload.channels < spec.lanes():
        return ConvConfig("direct")
    lines, columns = workload.output
    # Multiply-adds in the time that one element takes to come from memory.
    read = spec.peak_gflops / 2 / (spec.bandwidth_gbs / 4)
    best, best_cost = 0, workload.batch * 9.0 * lines * columns + 9 * read
    transforms = 24 * (1 / workload.channels + 1 / filled(workload.filters, spec.lanes()))
    for m in (2, 4):
        tiles = workload.batch * -(-lines // m) * -(-columns // m)
        cost = (m + 2) ** 2 * (tiles * (1 + transforms) + read)
        if cost < best_cost:
            best, best_cost = m, cost
    return ConvConfig("winograd", best) if best else ConvConfig("direct")
