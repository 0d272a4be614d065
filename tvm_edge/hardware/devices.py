"""Devices of this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tvm_edge.hardware.kinds import KINDS

__all__ = ["Device", "devices"]

_MOST_DEVICES = 16


@dataclass(frozen=True)
class Device:
    """A device that kernels can run on.

    Attributes
    ----------
    target : str
        Value for ``target=``.
    index : int
        Counts the devices of one kind; ``load(path, device="opencl:1")``.
    key : str
        ``vendor/device``: names the device in tuning records, the same in every process.
    name : str
    cores : int
        Physical cores or compute units.
    details : dict
        Further facts of the device and its driver.
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
    found = []
    for kind in KINDS.values():
        for index in range(_MOST_DEVICES):
            spec = kind.probe(index)
            if spec is None:
                break
            details = {**spec.to_dict(), **kind.driver(index)}
            found.append(Device(kind.name, index, spec.key, spec.name, spec.cores, details))
    return found
