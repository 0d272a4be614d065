"""What the cores of a GPU take for parts of a kernel, in cycles.

Fitted to 660 kernels of 20 layers on an H200 (benchmarks/RESULTS.md). Estimates rank what can be
chosen; they are no times.
"""

from __future__ import annotations

__all__ = [
    "ALUS",
    "LATENCY",
    "LATENCY_OF_LOAD",
    "LOAD",
    "OTHER_REGISTERS",
    "PROLOGUE",
    "REGISTERS",
    "RESIDENT",
    "STEP",
]

PROLOGUE = 760.0
"""Until a group's first step has begun."""

LATENCY, LATENCY_OF_LOAD = 470.0, 35.0
"""Until the operands of a step are there, and for each of them that a work-item brings."""

STEP, LOAD = 9.0, 2.45
"""Of a step itself, and of each wave's load in it."""

OTHER_REGISTERS = 16
"""Registers of a work-item beside what it keeps in arrays."""

REGISTERS, ALUS, RESIDENT = 65536, 128, 2048
"""Of unknown devices: registers, and lanes of a core; and work-items that a core holds."""
