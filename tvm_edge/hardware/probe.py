"""Ask a GPU of this machine what it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import tvm
import tvm_ffi

from tvm_edge.hardware.cpu import cpu_spec, native_cpu
from tvm_edge.hardware.limits import believable
from tvm_edge.hardware.presets import preset_by_device_name
from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["GPU_APIS", "compute_version", "opencl_info", "probe_gpu"]

GPU_APIS = ("cuda", "opencl")
"""Kinds of GPU that tvm-edge compiles for, in the order in which devices are listed."""

# What the host waits for the end of a kernel of pocl (`python -m benchmarks run fallback`).
_WAIT_ON_CPU_US = 40.0

# Single-precision lanes of a multiprocessor by compute capability, where it is not 128.
_CUDA_LANES = {"7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64}

# Compute capability with ``dp4a``, and with launches that do not wait for the one in front
# (`tvm_edge/lowering/dependent_launches.py`).
_DP4A, _DEPENDENT_LAUNCHES = (6, 1), (9, 0)

# What one more kernel costs in a CUDA graph, microseconds: on an H100 that waits, and on one that
# does not (0.40 less, the median of 72 groups of kernels).
_LAUNCH_US, _DEPENDENT_LAUNCH_US = 1.65, 1.25

# What an extension of OpenCL's gives, the one to take first.
_DOT_PRODUCTS: Mapping[str, Literal["arm_dot", "khr_dot", "qcom_dot"]] = {
    "cl_arm_integer_dot_product_accumulate_int8": "arm_dot",
    "cl_khr_integer_dot_product": "khr_dot",
    "cl_qcom_dot_product8": "qcom_dot",
}


def probe_gpu(api: str, index: int = 0) -> DeviceSpec | None:
    """What the driver says of a GPU; ``None`` if TVM's runtime reaches no such device."""
    if not tvm.runtime.enabled(api):
        return None
    device = tvm.device(api, index)
    if not device.exist:
        return None
    return believable(_cuda_spec(device) if api == "cuda" else _opencl_spec(device, index))


def compute_version(index: int = 0) -> str:
    """CUDA's compute capability of a device of this machine, ``9.0``."""
    return str(tvm.cuda(index).compute_version)


def opencl_info(index: int) -> Mapping[str, Any]:
    """What the OpenCL runtime of tvm-edge knows of a device; empty with another runtime."""
    query = tvm_ffi.get_global_func("tvm_edge.opencl.device_info", allow_missing=True)
    return {} if query is None else {str(k): v for k, v in query(index).items()}


def _cuda_spec(device: Any) -> DeviceSpec:
    name = str(device.device_name)
    cores = int(device.multi_processor_count)
    alus = _CUDA_LANES.get(str(device.compute_version), 128)
    clock_khz = int(device.max_clock_rate or 0)
    return DeviceSpec(
        key=f"nvidia/{_slug(name, 'nvidia')}",
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
        launch_us=_DEPENDENT_LAUNCH_US if _since(_DEPENDENT_LAUNCHES, device) else _LAUNCH_US,
        dot_product="dp4a" if _since(_DP4A, device) else "",
        unified_memory=False,
        float16=True,
    )


def _opencl_spec(device: Any, index: int) -> DeviceSpec:
    info = opencl_info(index)
    name = str(info.get("name") or device.device_name)
    vendor = _slug(str(info.get("vendor") or "opencl")).split("-")[0]
    cores = int(info.get("compute_units") or device.multi_processor_count or 0)
    limit = int(info.get("max_work_group_size") or device.max_threads_per_block or 0)
    # Kernels are one-dimensional work-groups first: a limit per dimension is a limit of the whole.
    sizes = [int(size) for size in info.get("max_work_item_sizes", ())]
    local_memory = int(info.get("local_memory") or device.max_shared_memory_per_block or 0)
    dedicated = str(info.get("local_memory_kind", "dedicated")) == "dedicated"
    sub_groups = [int(size) for size in info.get("sub_group_sizes", ())]
    # A CPU's sub-groups, of up to 512 with pocl 5, are loops.
    wave = int(info.get("warp_size", 0)) or max(sub_groups, default=1)
    wave = 1 if info.get("type") == "cpu" else wave
    extensions = str(info.get("extensions", "")).split()
    known = preset_by_device_name(name)
    if known is not None:
        spec = known.spec
    else:
        spec = DeviceSpec(
            key=f"{vendor}/{_slug(name, vendor)}",
            kind="gpu",
            name=name,
            cores=cores,
            wave=wave,
            simd_bytes=16,
            cache_line=int(info.get("cache_line", 0)) or 64,
            l2_cache=int(info.get("cache_size", 0)),
        )
    # What a preset says of peaks stays; what a driver says of its limits goes before it.
    spec = replace(
        spec,
        cores=cores,
        sub_groups=tuple(sub_groups) if "cl_intel_subgroups" in extensions else (),
        max_work_group_size=min([limit, *sizes[:1]]),
        registers=int(info.get("registers", 0)) or spec.registers,
        local_memory=local_memory,
        local_memory_kind="dedicated" if dedicated else "global",
        unified_memory=bool(info.get("unified_memory", spec.unified_memory)),
        fine_grained_memory=info.get("memory") == "svm-fine",
        float16=bool(info.get("float16", spec.float16)),
        float64=bool(info.get("float64", spec.float64)),
        dot_product=_dot_product(name, extensions) if extensions else spec.dot_product,
    )
    if info.get("type") == "cpu":
        return _on_this_cpu(spec, 4 * int(info.get("native_float_width", 0)))
    return spec


def _since(capability: tuple[int, int], device: Any) -> bool:
    return tuple(map(int, str(device.compute_version).split("."))) >= capability


def _dot_product(
    name: str, extensions: Collection[str]
) -> Literal["", "arm_dot", "khr_dot", "qcom_dot", "ptx_dp4a"]:
    """The instruction for products of 8-bit numbers of an OpenCL device."""
    for extension, found in _DOT_PRODUCTS.items():
        if extension in extensions:
            return found
    # NVIDIA has no such extension, and takes PTX; which GPU it is CUDA knows.
    if "cl_nv_compiler_options" in extensions and tvm.runtime.enabled("cuda"):
        index = 0
        while (device := tvm.device("cuda", index)).exist:
            if str(device.device_name) == name:
                return "ptx_dp4a" if _since(_DP4A, device) else ""
            index += 1
    return ""


def _on_this_cpu(spec: DeviceSpec, simd_bytes: int) -> DeviceSpec:
    """An OpenCL device that is the CPU we run on: the operating system knows its cores better.

    Parameters
    ----------
    simd_bytes : int
        The widest vectors of floats that the driver's compiler makes, 0 if it does not say.
    """
    host = cpu_spec(native_cpu(), native=True, most_simd_bytes=simd_bytes)
    return replace(
        spec,
        on_cpu=True,
        simd_bytes=host.simd_bytes,
        vector_registers=host.vector_registers,
        l1_cache=host.l1_cache,
        l2_cache=host.l2_cache,
        l3_cache=host.l3_cache,
        peak_gflops=host.peak_gflops,
        bandwidth_gbs=host.bandwidth_gbs,
        copy_latency_us=_WAIT_ON_CPU_US,
        dot_product="",  # its kernels are those of a CPU
    )


def _slug(text: str, vendor: str = "") -> str:
    """Lower-case words joined by hyphens, trade marks and a leading vendor left out."""
    plain = re.sub(r"\((?:r|tm|c)\)", " ", text.lower())
    words = re.findall(r"[a-z0-9.]+", plain)
    if len(words) > 1 and words[0] == vendor:
        words = words[1:]
    return "-".join(words) or "unknown"
