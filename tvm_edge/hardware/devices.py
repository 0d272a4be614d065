"""Which devices are on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tvm_edge.hardware.probe import GPU_APIS, compute_version, opencl_info, probe_gpu
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
        Counts the devices of one kind; ``load(path, device="opencl:1")``.
    key : str
        ``vendor/device``: names the device in tuning records, the same in every process.
    name : str
    cores : int
        Physical cores or compute units.
    details : dict
        More of what is known of it.
    """

    target: str
    index: int
    key: str
    name: str
    cores: int
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)


def devices() -> list[Device]:
    """Devices of this machine: the CPU first, then GPUs that TVM's runtime can reach."""
    spec = resolve_target("llvm").spec
    found = [Device("llvm", 0, spec.key, spec.name, spec.cores, spec.to_dict())]
    for api in GPU_APIS:
        for index in range(_MOST_DEVICES):
            gpu = probe_gpu(api, index)
            if gpu is None:
                break
            details = {**gpu.to_dict(), **_driver(api, index)}
            found.append(Device(api, index, gpu.key, gpu.name, gpu.cores, details))
    return found


def _driver(api: str, index: int) -> dict[str, Any]:
    if api == "cuda":
        return {"compute_version": compute_version(index)}
    info = opencl_info(index)
    return {key: str(info[key]) for key in ("platform", "version", "driver", "type") if key in info}
