"""Times of CUDA's kernels by CUPTI, which PyTorch's profiler reads for the whole process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["busy_us", "kernel_times_us"]


def kernel_times_us(run: Callable[[], Any]) -> list[tuple[str, float]]:
    """Names and microseconds of a call's kernels."""
    return [(name, end - start) for name, start, end in _spans_us(run)]


def busy_us(run: Callable[[], Any]) -> float:
    """Microseconds in which any of a call's kernels ran.

    Not the sum of their times: a kernel that is launched early waits for the one before it,
    and CUPTI counts that in.
    """
    busy = last = 0.0
    for _, start, end in sorted(_spans_us(run), key=lambda span: span[1]):
        busy += max(end - max(start, last), 0.0)
        last = max(last, end)
    return busy


def _spans_us(run: Callable[[], Any]) -> list[tuple[str, float, float]]:
    import torch
    from torch.autograd import DeviceType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return [
        (event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA and not event.name.startswith("Mem")
    ]
