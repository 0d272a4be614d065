"""OpenCL devices: GPUs of any vendor, and CPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import tvm_ffi

from tvm_edge.hardware.cpu import cpu_spec, native_cpu
from tvm_edge.hardware.kinds.cuda import has_dp4a
from tvm_edge.hardware.kinds.protocol import GpuKind
from tvm_edge.hardware.presets import GENERIC_OPENCL, preset_by_device_name
from tvm_edge.hardware.slug import slug
from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.native import native_errors

__all__ = ["OpenCLKind"]

# What the host waits for the end of a kernel of pocl (`python -m benchmarks run fallback`).
_WAIT_ON_CPU_US = 40.0

# What an OpenCL extension gives, the preferred one first.
_DOT_PRODUCTS: Mapping[str, Literal["arm_dot", "khr_dot", "qcom_dot"]] = {
    "cl_arm_integer_dot_product_accumulate_int8": "arm_dot",
    "cl_khr_integer_dot_product": "khr_dot",
    "cl_qcom_dot_product8": "qcom_dot",
}


class OpenCLKind(GpuKind):
    """Devices of OpenCL drivers, by the runtime of :mod:`tvm_edge.opencl`.

    On OpenCL TVM takes a wave for granted without pinning its size, and then puts barriers inside
    of ``if (lane < width)``: work-items of one wave need none, others never meet it. So targets
    have a wave of 1.
    """

    name = "opencl"
    generic = GENERIC_OPENCL
    limits_kernels = True
    maps_memory = True
    pools_memory = True

    def spec_of(self, device: Any, index: int) -> DeviceSpec:
        info = _device_info(index)
        name = str(info.get("name") or device.device_name)
        vendor = slug(str(info.get("vendor") or "opencl")).split("-")[0]
        cores = int(info.get("compute_units") or device.multi_processor_count or 0)
        limit = int(info.get("max_work_group_size") or device.max_threads_per_block or 0)
        # Work-groups are one-dimensional first: a limit per dimension is one of the whole.
        sizes = [int(size) for size in info.get("max_work_item_sizes", ())]
        local_memory = int(info.get("local_memory") or device.max_shared_memory_per_block or 0)
        dedicated = str(info.get("local_memory_kind", "dedicated")) == "dedicated"
        sub_groups = [int(size) for size in info.get("sub_group_sizes", ())]
        # A CPU's sub-groups, of up to 512 with pocl 5, are loops.
        wave = int(info.get("warp_size", 0)) or max(sub_groups, default=1)
        is_cpu = info.get("type") == "cpu"
        wave = 1 if is_cpu else wave
        extensions = str(info.get("extensions", "")).split()
        known = preset_by_device_name(name)
        if known is not None:
            spec = known.spec
        else:
            spec = DeviceSpec(
                key=f"{vendor}/{slug(name, vendor)}",
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
        if is_cpu:
            return _on_this_cpu(spec, 4 * int(info.get("native_float_width", 0)))
        return spec

    def driver(self, index: int) -> dict[str, Any]:
        info = _device_info(index)
        found = ("platform", "version", "driver", "type")
        return {key: str(info[key]) for key in found if key in info}


def _device_info(index: int) -> Mapping[str, Any]:
    """Ask the OpenCL runtime of tvm-edge; empty with another runtime."""
    query = tvm_ffi.get_global_func("tvm_edge.opencl.device_info", allow_missing=True)
    if query is None:
        return {}
    with native_errors():
        return {str(k): v for k, v in query(index).items()}


def _dot_product(
    name: str, extensions: Collection[str]
) -> Literal["", "arm_dot", "khr_dot", "qcom_dot", "ptx_dp4a"]:
    """Return the instruction for products of 8-bit numbers of an OpenCL device."""
    for extension, found in _DOT_PRODUCTS.items():
        if extension in extensions:
            return found
    # NVIDIA has no such extension, and takes PTX; which GPU it is CUDA knows.
    return "ptx_dp4a" if "cl_nv_compiler_options" in extensions and has_dp4a(name) else ""


def _on_this_cpu(spec: DeviceSpec, simd_bytes: int) -> DeviceSpec:
    """Complete the spec of a device that is this CPU, whose cores the operating system knows.

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
