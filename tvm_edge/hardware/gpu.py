"""Targets of GPUs: between TVM's attributes and a DeviceSpec."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import tvm

from tvm_edge.hardware.kinds import GpuKind
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["describe_gpu", "this_gpu"]

_LOG = logging.getLogger("tvm_edge.hardware")

# TVM's attributes → ours; both names of the same limit.
_LIMITS = {
    "max_num_threads": "max_work_group_size",
    "max_threads_per_block": "max_work_group_size",
    "max_shared_memory_per_block": "local_memory",
    "registers_per_block": "registers",
    "l2_cache_size_bytes": "l2_cache",
}


def this_gpu(kind: GpuKind, index: int = 0) -> tuple[DeviceSpec, str]:
    """Return a GPU of this machine, by default the first of a kind, and its architecture.

    Where there is none, a generic one.
    """
    spec = kind.probe(index)
    if spec is None:
        _LOG.info("no %s device here: compiling for %s", kind.name, kind.generic.name)
        return kind.generic, kind.oldest_arch
    return spec, kind.arch_of(index)


def describe_gpu(
    kind: GpuKind, target: tvm.target.Target, tag: str
) -> tuple[DeviceSpec, dict[str, Any]]:
    """Return the DeviceSpec of a GPU that a user or TVM described by a target, and its dict.

    Attributes that differ from the defaults of the target's kind count as said. A target that says
    nothing means this machine's device.

    Parameters
    ----------
    kind : GpuKind
        The target's.
    target : tvm.target.Target
    tag : str
        The name that the target was given by, ``nvidia/jetson-orin-nano``, or empty.
    """
    arch = str(target.attrs.get("arch", ""))
    for preset in PRESETS.values():
        if tag and tag in preset.tags:
            return preset.spec, kind.config(preset.spec, arch)
    here, arch_here = this_gpu(kind)
    defaults = tvm.target.Target({"kind": kind.name, **({"arch": arch} if arch else {})}).attrs
    said = {
        ours: int(target.attrs[theirs])
        for theirs, ours in _LIMITS.items()
        if theirs in target.attrs and target.attrs[theirs] != defaults.get(theirs)
    }
    if not tag and not said and arch in ("", arch_here):
        return here, kind.config(here, arch_here)
    name = tag or " ".join(filter(None, (kind.name, arch)))
    spec = replace(
        kind.generic,
        key=tag or f"{kind.name}/{arch or 'described'}",
        name=f"{name} (as described)",
    )
    spec = replace(spec, **said, tensor_cores=kind.tensor_cores(arch))  # type: ignore[arg-type]
    return spec, kind.config(spec, arch)
