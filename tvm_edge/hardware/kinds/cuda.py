"""NVIDIA's GPUs, by CUDA."""

from __future__ import annotations

import re
from typing import Any

import tvm

from tvm_edge.hardware.kinds.protocol import GpuKind
from tvm_edge.hardware.presets import GENERIC_CUDA, preset_by_device_name
from tvm_edge.hardware.slug import slug
from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.hardware.tensor_cores import TensorCores, tensor_cores_since

__all__ = ["CudaKind", "has_dp4a"]

# Single-precision lanes of a multiprocessor by compute capability, where it is not 128.
_LANES = {"7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64}

# Compute capability with ``dp4a``, and with launches that do not wait for the one before
# (`tvm_edge/lowering/dependent_launches.py`).
_DP4A, _DEPENDENT_LAUNCHES = (6, 1), (9, 0)

# Turing without tensor cores (TU116, TU117): its compute capability is 7.5 as well, and those
# instructions run there, slowly. Only the name tells.
_WITHOUT_TENSOR_CORES = re.compile(r"GTX 16|\bT\d{3,4}\b|\bMX[45]50\b")

# What one more kernel costs in a CUDA graph, microseconds: on an H100 that waits, and on one that
# does not (0.40 less, the median of 72 groups of kernels).
_LAUNCH_US, _DEPENDENT_LAUNCH_US = 1.65, 1.25


class CudaKind(GpuKind):
    """GPUs with CUDA's driver, which records launches as graphs and has memory of its own."""

    name = "cuda"
    generic = GENERIC_CUDA
    oldest_arch = "sm_75"
    pins_memory = True

    def spec_of(self, device: Any, index: int) -> DeviceSpec:
        name = str(device.device_name)
        cores = int(device.multi_processor_count)
        alus = _LANES.get(str(device.compute_version), 128)
        clock_khz = int(device.max_clock_rate or 0)
        board = preset_by_device_name(name, cores)
        return DeviceSpec(
            key=f"nvidia/{slug(name, 'nvidia')}",
            kind="gpu",
            name=name,
            cores=cores,
            alus=alus,
            wave=int(device.warp_size),
            simd_bytes=16,
            unaligned_vectors=False,
            max_work_group_size=int(device.max_threads_per_block),
            registers=65536,
            local_memory=int(device.max_shared_memory_per_block),
            local_memory_kind="dedicated",
            cache_line=128,
            l2_cache=int(device.l2_cache_size_bytes or 0),
            peak_gflops=round(cores * alus * 2 * clock_khz / 1e6, 1),
            # A driver does not say it, and only a board's memory is slow enough to count.
            bandwidth_gbs=board.spec.bandwidth_gbs if board is not None else 0.0,
            launch_us=_DEPENDENT_LAUNCH_US if _since(_DEPENDENT_LAUNCHES, device) else _LAUNCH_US,
            dot_product="dp4a" if _since(_DP4A, device) else "",
            unified_memory=False,
            float16=True,
            tensor_cores=_tensor_cores(name, str(device.compute_version)),
        )

    def arch_of(self, index: int) -> str:
        return f"sm_{_compute_version(index).replace('.', '')}"

    def tensor_cores(self, arch: str) -> TensorCores | None:
        number = re.match(r"sm_(\d+)", arch)
        return tensor_cores_since(divmod(int(number[1]), 10)) if number else None

    def config(self, spec: DeviceSpec, arch: str = "") -> dict[str, Any]:
        return {
            **super().config(spec, arch),
            "thread_warp_size": spec.wave,
            "arch": arch,
            "registers_per_block": spec.registers,
        }

    def driver(self, index: int) -> dict[str, Any]:
        return {"compute_version": _compute_version(index)}


def has_dp4a(name: str) -> bool:
    """Return whether this machine has a CUDA device of that name with the instruction ``dp4a``."""
    if not tvm.runtime.enabled(CudaKind.name):
        return False
    index = 0
    while (device := tvm.device(CudaKind.name, index)).exist:
        if str(device.device_name) == name:
            return _since(_DP4A, device)
        index += 1
    return False


def _tensor_cores(name: str, capability: str) -> TensorCores | None:
    if _WITHOUT_TENSOR_CORES.search(name):
        return None
    major, minor = map(int, capability.split("."))
    return tensor_cores_since((major, minor))


def _compute_version(index: int) -> str:
    """Return the compute capability of a device of this machine, ``9.0``."""
    return str(tvm.cuda(index).compute_version)


def _since(capability: tuple[int, int], device: Any) -> bool:
    return tuple(map(int, str(device.compute_version).split("."))) >= capability
