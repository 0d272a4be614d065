"""Kernels along a line: measured times, a lane for each device, or estimated shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_edge.report.page import units
from tvm_edge.report.page.devices import device_classes

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions, KernelInfo
    from tvm_edge.report.measured import Measured

__all__ = ["Lane", "Tick", "estimated", "measured", "ticks"]

_MOST_TICKS = 8
_LETTER = 0.62  # width of a letter of a label, in per cent of a wide screen


@dataclass(frozen=True)
class _Bar:
    """From where, how wide, in per cent of the lane."""

    number: int
    left: float
    width: float
    style: str
    label: str
    title: str


@dataclass(frozen=True)
class Lane:
    """A line of bars, and what it is called."""

    name: str
    bars: list[_Bar]


@dataclass(frozen=True)
class Tick:
    """A mark of the axis, in per cent of its length."""

    left: float
    label: str


def measured(report: Decisions, profile: Measured) -> list[Lane]:
    """A lane for each device; a bar starts where its kernel did in the last run."""
    style = device_classes(report)
    lanes: dict[str, list[_Bar]] = {kernel.device: [] for kernel in report.kernels}
    until = dict.fromkeys(lanes, 0.0)
    span = length(profile)
    for number, (kernel, row) in enumerate(zip(report.kernels, profile.kernels, strict=True), 1):
        # Times are medians of runs: drawn over one another they would hide their neighbours.
        start = max(row.start_us, until[kernel.device])
        end = max(start, row.start_us + row.time_us)
        until[kernel.device] = end
        text = f"{units.time(row.time_us)}, {row.share:.1%} of the run"
        left, width = 100 * start / span, 100 * (end - start) / span
        lanes[kernel.device].append(_bar(number, kernel, left, width, style[kernel.device], text))
    return [Lane(device, bars) for device, bars in lanes.items()]


def length(profile: Measured) -> float:
    """Microseconds that the axis of a profile has."""
    ends = (row.start_us + row.time_us for row in profile.kernels)
    return max(profile.total_us, *ends, 1e-9) if profile.kernels else profile.total_us or 1.0


def estimated(report: Decisions) -> list[Lane]:
    """All kernels in their order, as wide as their shares of FLOPs, and of bytes."""
    style = device_classes(report)
    lanes = []
    values: Sequence[tuple[str, Sequence[float], str]] = (
        ("FLOPs", [kernel.flops for kernel in report.kernels], "of the FLOPs"),
        ("bytes", [kernel.bytes for kernel in report.kernels], "of the bytes"),
    )
    for name, amounts, of in values:
        total, at, bars = sum(amounts) or 1, 0.0, []
        for number, (kernel, amount) in enumerate(zip(report.kernels, amounts, strict=True), 1):
            share = amount / total
            text = f"{share:.1%} {of}"
            bars.append(_bar(number, kernel, 100 * at, 100 * share, style[kernel.device], text))
            at += share
        lanes.append(Lane(name, bars))
    return lanes


def _bar(number: int, kernel: KernelInfo, left: float, width: float, style: str, text: str) -> _Bar:
    labels = [f"{number} {units.tail(name, 24)}" for name in kernel.operators[:1]]
    label = next((x for x in (*labels, str(number)) if (len(x) + 1) * _LETTER <= width), "")
    title = f"{number} {kernel.name} on {kernel.device}: {text}; {', '.join(kernel.operators)}"
    return _Bar(number, round(left, 3), round(width, 3), style, label, title)


def ticks(span: float, unit: str) -> list[Tick]:
    """Marks at 1, 2 or 5 times a power of ten, at most `_MOST_TICKS` and 0."""
    if span <= 0:
        return []
    step = next(
        each
        for power in range(-6, 15)
        for each in (1 * 10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if span / each <= _MOST_TICKS
    )
    marks = [i * step for i in range(_MOST_TICKS + 1) if i * step <= span]
    return [Tick(round(100 * mark / span, 3), f"{mark:g} {unit}") for mark in marks]
