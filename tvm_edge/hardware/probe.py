"""Which devices are on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import tvm

from tvm_edge.hardware.targets import resolve_target

__all__ = ["Device", "devices"]

_MOST_DEVICES = 16


@dataclass(frozen=True)
class Device:
    """A device that kernels can run on.

    Attributes
    ----------
    target : str
        What to pass as ``target=``.
    index : int
    name : str
    cores : int
        Physical cores or compute units.
    details : dict
        More of what is known of it.
    """

    target: str
    index: int
    name: str
    cores: int
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)


def devices() -> list[Device]:
    """Devices of this machine: the CPU first, then GPUs that TVM's runtime can reach."""
    spec = resolve_target("llvm").spec
    found = [Device("llvm", 0, spec.name, spec.cores, spec.to_dict())]
    for kind in ("cuda", "opencl"):
        if not tvm.runtime.enabled(kind):
            continue
        for index in range(_MOST_DEVICES):
            device = tvm.device(kind, index)
            if not device.exist:
                break
            found.append(
                Device(
                    kind,
                    index,
                    str(device.device_name),
                    int(device.multi_processor_count),
                    {
                        "compute_version": str(device.compute_version or ""),
                        "local_memory": int(device.max_shared_memory_per_block or 0),
                        "max_work_group_size": int(device.max_threads_per_block or 0),
                        "wave": int(device.warp_size or 0),
                    },
                )
            )
    return found
