"""The devices of a report, each with the colour and pattern that it has all over the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions

__all__ = ["MISSING", "device_classes"]

_ELIDED = "elided"
"""The style class of operators without a kernel."""

MISSING = "missing"
"""Device of operators without an implementation."""

_STYLES = 3


def device_classes(report: Decisions) -> dict[str, str]:
    """The style class of each device, that of the target first; of ``""``, no device, too."""
    target = report.target.split(" ")[0]
    named = [kernel.device for kernel in report.kernels]
    named += [placement.device for placement in report.placements]
    found = sorted({name for name in named if name}, key=lambda name: (name != target, name))
    return {"": _ELIDED} | {name: f"device{min(i, _STYLES - 1)}" for i, name in enumerate(found)}
