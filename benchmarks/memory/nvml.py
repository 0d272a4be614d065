"""Memory in use and energy used of a GPU, by NVIDIA's management library."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

__all__ = ["energy_joules", "memory_in_use"]


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def memory_in_use() -> int | None:
    """Bytes that all processes use on the first GPU; ``None`` without one."""
    found = _Memory()
    return int(found.used) if _asked("nvmlDeviceGetMemoryInfo", found) else None


def energy_joules() -> float | None:
    """Energy that the first GPU has used since its driver was loaded; ``None`` if nobody counts."""
    found = ctypes.c_ulonglong()  # millijoules
    return found.value / 1e3 if _asked("nvmlDeviceGetTotalEnergyConsumption", found) else None


def _asked(function: str, answer: Any) -> bool:
    opened = _open()
    if opened is None:
        return False
    library, device = opened
    return bool(getattr(library, function)(device, ctypes.byref(answer)) == 0)


@functools.cache
def _open() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None
    return library, device
