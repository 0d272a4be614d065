"""Bytes alive at each kernel: weights below, activations of each device stacked on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_edge.report.page import units
from tvm_edge.report.page.devices import device_classes

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions

__all__ = ["Chart", "memory_chart"]

_WIDTH, _HEIGHT = 1040, 260
_LEFT, _TOP, _BOTTOM = 74, 14, 34
_LINES = 5  # of the scale, at most


@dataclass(frozen=True)
class Chart:
    """Shapes that the template draws; lengths in pixels.

    Attributes
    ----------
    areas : list of (str, str, str, str)
        Style, name, path and that of the upper edge alone, from the bottom to the top.
    lines : list of (str, str, float)
        Style, label and height: what is planned, and the budget.
    scale : list of (float, str)
        Height and label.
    kernels : list of (float, str)
        Place and number along the axis.
    peak : str
        In words: how much is alive at most, and when.
    """

    areas: list[tuple[str, str, str, str]]
    lines: list[tuple[str, str, float]]
    scale: list[tuple[float, str]]
    kernels: list[tuple[float, str]]
    peak: str
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    base: int = _HEIGHT - _BOTTOM


def memory_chart(report: Decisions) -> Chart | None:
    """The chart; ``None`` if the report does not know it."""
    memory = report.memory
    count = len(report.kernels)
    if memory is None or not memory.over_time or not count:
        return None
    style = device_classes(report)
    only = report.kernels[0].device
    lanes = {name or only: series for name, series in memory.over_time.items()}
    planned = memory.weights + memory.activations
    top = 1.04 * max(planned, memory.budget or 0, 1)

    def y(nbytes: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * nbytes / top, 1)

    below: Sequence[int] = [0] * count
    areas = []
    for name, series, kind in (
        ("weights", (memory.weights,) * count, "weights"),
        *((f"activations on {n}", s, style.get(n, "device0")) for n, s in lanes.items()),
    ):
        above = [a + b for a, b in zip(below, series, strict=True)]
        if any(series):
            edge = _steps([y(v) for v in above])
            areas.append((kind, name, edge + _back([y(v) for v in below]), edge))
        below = above
    alive = [sum(each) for each in zip(*lanes.values(), strict=True)]
    most = max(alive)
    at = alive.index(most)
    lines = [("planned", f"planned {units.size(planned)}", y(planned))]
    if memory.budget:
        lines.append(("budget", f"budget {units.size(memory.budget)}", y(memory.budget)))
    step = max(1, -(-count // 12))
    return Chart(
        areas,
        lines,
        [(y(value), units.size(value)) for value in _scale(top)],
        [(_x(i + 0.5, count), str(i + 1)) for i in range(0, count, step)],
        f"At most {units.size(most)} of activations hold values at once, at kernel {at + 1} "
        f"({report.kernels[at].name}); {units.size(memory.activations)} are planned.",
    )


def _x(kernel: float, count: int) -> float:
    return round(_LEFT + (_WIDTH - _LEFT) * kernel / count, 1)


def _steps(heights: Sequence[float]) -> str:
    """A path from the left, level over each kernel."""
    count = len(heights)
    steps = [f"M{_x(0, count):g} {heights[0]:g}"]
    for i, height in enumerate(heights):
        if i and height != heights[i - 1]:
            steps.append(f"V{height:g}")
        steps.append(f"H{_x(i + 1, count):g}")
    return "".join(steps)


def _back(heights: Sequence[float]) -> str:
    """The rest of an area's outline: along its lower edge from the right."""
    count = len(heights)
    steps = [f"V{h:g}H{_x(count - 1 - i, count):g}" for i, h in enumerate(reversed(heights))]
    return "".join(steps) + "Z"


def _scale(top: float) -> list[float]:
    """Values at even steps of powers of two, which are even in KiB and MiB."""
    step = 1.0
    while top / step > _LINES:
        step *= 2
    return [i * step for i in range(_LINES + 1) if i * step <= top]
