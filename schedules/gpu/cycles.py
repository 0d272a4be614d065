"""Latency of the parts of a kernel on a GPU core, in cycles.

Fitted to 660 kernels of 20 layers on an H200 (benchmarks/RESULTS.md). Estimates rank the choices;
they are no measured latency.
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
"""Cycles until the first step of a work-group has begun."""

LATENCY, LATENCY_OF_LOAD = 470.0, 35.0
"""Cycles until the operands of a step arrive, and for each one that a work-item brings."""

STEP, LOAD = 9.0, 2.45
"""Cycles of a step itself, and of each load of a wave in it."""

OTHER_REGISTERS = 16
"""Registers of a work-item beside what it keeps in arrays."""

REGISTERS, ALUS, RESIDENT = 65536, 128, 2048
"""Defaults of unknown devices: registers and lanes of a core, and work-items resident on it."""
