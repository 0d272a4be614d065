"""Microseconds of kernels and copies by a device's data sheet.

A roofline: the longer of arithmetic over the share of the peak that kernels reach, and of bytes
over bandwidth, and what each launch costs. Good to a factor of two or three.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["copy_us", "kernel_us", "roofline_us"]

# Shares of the peak: of convolutions and matrix products, and of everything else.
_DENSE: Mapping[str, float] = {"gpu": 0.3, "cpu": 0.7}
_OTHER = 0.1

# What stands in for data sheets that nobody has.
_LANES, _CLOCK_GHZ, _CORE_GBS, _SHARED_GBS = 64, 1.0, 12.0, 15.0
_CPU_LAUNCH_US = 2.0

# Latency of a network on pocl over that of the same schedules by LLVM (`benchmarks/RESULTS.md`).
_OPENCL_ON_CPU = 1.15


def roofline_us(work: float, nbytes: float, spec: DeviceSpec, *, contraction: bool) -> float:
    """Microseconds of a kernel that does `work` operations and moves `nbytes`.

    `contraction` says whether it is a convolution or a matrix product, which come nearer to the
    peak.
    """
    share = _DENSE[_kind(spec)] if contraction else _OTHER
    slower = _OPENCL_ON_CPU if spec.on_cpu else 1.0
    return slower * kernel_us(work / share, nbytes, spec)


def kernel_us(work: float, nbytes: float, spec: DeviceSpec, launches: int = 1) -> float:
    """Microseconds of `work` operations at the peak of a device, and of moving `nbytes`."""
    return max(work / _peak(spec), nbytes / _bandwidth(spec)) / 1e3 + launches * _launch(spec)


def copy_us(nbytes: float, gpu: DeviceSpec, shared: bool = False) -> float:
    """Return the microseconds of a tensor's copy between a GPU and its host.

    In `shared` memory nothing is copied, and what is left is to wait for the other side.
    """
    return gpu.copy_latency_us + (0.0 if shared else nbytes / gpu.copy_gbs / 1e3)


def _kind(spec: DeviceSpec) -> str:
    return "cpu" if spec.has_cpu_cores else "gpu"


def _launch(spec: DeviceSpec) -> float:
    return _CPU_LAUNCH_US if spec.has_cpu_cores else spec.launch_us


def _peak(spec: DeviceSpec) -> float:
    """Operations in a nanosecond."""
    return spec.peak_gflops or max(spec.cores, 1) * (spec.alus or _LANES) * 2 * _CLOCK_GHZ


def _bandwidth(spec: DeviceSpec) -> float:
    """Bytes in a nanosecond."""
    if spec.bandwidth_gbs:
        return spec.bandwidth_gbs
    return _SHARED_GBS if spec.unified_memory else _CORE_GBS * max(spec.cores, 1)
