"""Targets of GPUs: between TVM's attributes and a DeviceSpec."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import tvm

from tvm_edge.hardware.presets import GENERIC_CUDA, GENERIC_OPENCL, PRESETS
from tvm_edge.hardware.probe import compute_version, probe_gpu
from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["describe_gpu", "gpu_config", "this_gpu"]

_LOG = logging.getLogger("tvm_edge.hardware")

_GENERIC = {"cuda": GENERIC_CUDA, "opencl": GENERIC_OPENCL}
_OLDEST_CUDA = "sm_75"

# TVM's attributes → ours; both names of the same limit.
_LIMITS = {
    "max_num_threads": "max_work_group_size",
    "max_threads_per_block": "max_work_group_size",
    "max_shared_memory_per_block": "local_memory",
    "registers_per_block": "registers",
    "l2_cache_size_bytes": "l2_cache",
}


def this_gpu(api: str, index: int = 0) -> tuple[DeviceSpec, str]:
    """A GPU of this machine, by default the first of a kind, and its CUDA architecture.

    Where there is none, a generic one.
    """
    spec = probe_gpu(api, index)
    if spec is None:
        spec = _GENERIC[api]
        _LOG.info("no %s device here: compiling for %s", api, spec.name)
        return spec, _OLDEST_CUDA if api == "cuda" else ""
    return spec, f"sm_{compute_version(index).replace('.', '')}" if api == "cuda" else ""


def gpu_config(api: str, spec: DeviceSpec, arch: str = "") -> dict[str, Any]:
    """TVM's target, as a dict without a host."""
    config: dict[str, Any] = {
        "kind": api,
        "max_num_threads": spec.max_work_group_size,
        "max_threads_per_block": spec.max_work_group_size,
        "max_shared_memory_per_block": spec.local_memory,
        # On OpenCL TVM takes a wave for granted without pinning its size, and then puts barriers
        # inside of `if (lane < width)`: work-items of one wave need none, others never meet it.
        "thread_warp_size": spec.wave if api == "cuda" else 1,
    }
    if api == "cuda":
        config["arch"] = arch
        config["registers_per_block"] = spec.registers
    return config


def describe_gpu(target: tvm.target.Target, tag: str) -> tuple[DeviceSpec, dict[str, Any]]:
    """The DeviceSpec of a GPU that a user or TVM described by a target, and its dict.

    Attributes that differ from the defaults of the target's kind count as said. A target that says
    nothing means this machine's device.

    Parameters
    ----------
    tag : str
        The name that the target was given by, ``nvidia/jetson-orin-nano``, or empty.
    """
    api = str(target.kind.name)
    arch = str(target.attrs.get("arch", ""))
    for preset in PRESETS.values():
        if tag and tag in preset.tags:
            return preset.spec, gpu_config(api, preset.spec, arch)
    here, arch_here = this_gpu(api)
    defaults = tvm.target.Target({"kind": api, **({"arch": arch} if arch else {})}).attrs
    said = {
        ours: int(target.attrs[theirs])
        for theirs, ours in _LIMITS.items()
        if theirs in target.attrs and target.attrs[theirs] != defaults.get(theirs)
    }
    if not tag and not said and arch in ("", arch_here):
        return here, gpu_config(api, here, arch_here)
    name = tag or " ".join(filter(None, (api, arch)))
    spec = replace(
        _GENERIC[api], key=tag or f"{api}/{arch or 'described'}", name=f"{name} (as described)"
    )
    spec = replace(spec, **said)  # type: ignore[arg-type]
    return spec, gpu_config(api, spec, arch)
