"""Device of a tuning record, and the nearness of two devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tvm_edge.hardware import DeviceSpec

__all__ = ["Nearness", "RecordDevice"]

Nearness = Literal["device", "architecture", "vendor"]

# It names files, and comes out of files: no hidden ones, and none outside of their folder.
_KEY = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+.-]*(/[A-Za-z0-9_+][A-Za-z0-9_+.-]*)+")


@dataclass(frozen=True)
class RecordDevice:
    """Device that a tuning record was measured on.

    Attributes
    ----------
    key : str
        ``vendor/device``, as :attr:`tvm_edge.DeviceSpec.key`.
    architecture : str
        Devices of one are alike to schedules, whatever their number of cores.
    name : str
        For people.
    driver : str
        Its version; empty where there is none, as of CPUs, or nobody said.
    """

    key: str
    architecture: str
    name: str = ""
    driver: str = ""

    @staticmethod
    def of(spec: DeviceSpec, driver: str = "") -> RecordDevice:
        """Return a device as records name it.

        Its architecture is what decides how kernels are cut, in words: vectors and registers of a
        CPU's cores; waves and the kind of local memory of a GPU.
        """
        vendor = spec.key.split("/")[0]
        if spec.has_cpu_cores:
            shape = f"simd{spec.simd_bytes}-registers{spec.vector_registers}"
        else:
            shape = f"wave{spec.wave}-local-{spec.local_memory_kind}"
        return RecordDevice(spec.key, f"{vendor}/{shape}", spec.name, driver)

    @property
    def vendor(self) -> str:
        """First part of the key."""
        return self.key.split("/")[0]

    def check(self) -> None:
        """Refuse a key that cannot name a file.

        Raises
        ------
        ValueError
        """
        if not _KEY.fullmatch(self.key):
            raise ValueError(f"the device key {self.key!r} is not vendor/device")

    def near(self, other: RecordDevice) -> Nearness | None:
        """Return the nearness of another device; ``None`` for one of another vendor."""
        if self.key == other.key:
            return "device"
        if self.vendor != other.vendor:
            return None
        return "architecture" if self.architecture == other.architecture else "vendor"
