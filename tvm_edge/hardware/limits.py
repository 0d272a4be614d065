"""Limits of a GPU as far as they can be true: drivers report zeros, and all ones."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from tvm_edge.errors import TvmEdgeWarning
from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["believable"]

# Attribute → the least and the most that any GPU has, and what is safe to assume otherwise: what
# OpenCL promises of every device, and work-groups that every GPU known to us takes.
_BOUNDS = {
    "cores": (1, 1 << 16, 1),
    "wave": (1, 256, 1),
    "max_work_group_size": (1, 1 << 16, 32),
    "local_memory": (1 << 10, 1 << 24, 1 << 10),
    "registers": (0, 1 << 24, 0),
    "cache_line": (8, 1 << 12, 64),
    "l2_cache": (0, 1 << 34, 0),
}


def believable(spec: DeviceSpec) -> DeviceSpec:
    """`spec` with safe values for what cannot be, and a :class:`TvmEdgeWarning` for each of them.

    Schedules divide by these numbers and launch what they allow; a kernel for a limit that is not
    there fails on the device.
    """
    for name, (least, most, safe) in _BOUNDS.items():
        value = getattr(spec, name)
        if not least <= value <= most:
            warnings.warn(
                f"the driver of {spec.name} reports {name}={value}, which cannot be; tvm-edge "
                f"takes {safe} for it, at the cost of speed: update the driver, or compile for a "
                "preset of the device, such as 'mali-t860'",
                TvmEdgeWarning,
                stacklevel=2,
            )
            changes: dict[str, Any] = {name: safe}
            spec = replace(spec, **changes)
    return spec
