"""Partitions in the order of a run: what each computes, and the tensors it reads from others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_edge.report.page import units
from tvm_edge.report.page.devices import device_classes
from tvm_edge.report.page.placement_graph import device_copies

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions
    from tvm_edge.report.measured import Measured

__all__ = ["Partition", "flow"]


@dataclass(frozen=True)
class Partition:
    """A maximal run of kernels on one device, in words.

    Attributes
    ----------
    device, style : str
    kernels : str
        How many, which, and their work or latency.
    types : str
        Its operators, most frequent first.
    arriving : list of (str, str)
        Tensor and size of what operators of other devices computed and it is the first to read.
    """

    device: str
    style: str
    kernels: str
    types: str
    arriving: list[tuple[str, str]]


def flow(report: Decisions, profile: Measured | None) -> list[Partition]:
    """The partitions of a report."""
    style = device_classes(report)
    op_types = {placement.operator: placement.op_type for placement in report.placements}
    first: dict[str, int] = {}  # the kernel that starts an operator
    for number, kernel in enumerate(report.kernels):
        for operator in kernel.operators:
            first.setdefault(operator, number)
    arrivals = []  # the kernel that reads it first, and the copy
    for copy in device_copies(report):
        names = [report.operators[reader].name for reader in copy.readers]
        at = min((first[name] for name in names if name in first), default=None)
        if at is not None:
            arrivals.append((at, copy))
    found = []
    start = 0
    for device, count in report.partitions:
        end = start + count
        kernels = report.kernels[start:end]
        operators = list(dict.fromkeys(name for kernel in kernels for name in kernel.operators))
        types = Counter(op_types.get(name, "?") for name in operators)
        which = f"{start + 1} to {end}" if count > 1 else f"{end}"
        parts = [
            f"{'kernels' if count > 1 else 'kernel'} {which}",
            units.plural(len(operators), "operator"),
        ]
        if flops := sum(kernel.flops for kernel in kernels):
            parts.append(units.short_flops(flops))
        if profile is not None:
            parts.append(units.time(sum(k.time_us for k in profile.kernels[start:end])))
        found.append(
            Partition(
                device,
                style[device],
                ", ".join(parts),
                ", ".join(f"{op_type} ×{n}" for op_type, n in types.most_common()),
                [
                    (report.operators[copy.source].name, copy.label)
                    for at, copy in arrivals
                    if start <= at < end
                ],
            )
        )
        start = end
    return found
