"""CPUs, by LLVM."""

from __future__ import annotations

from tvm_edge.hardware.cpu import cpu_spec, native_cpu
from tvm_edge.hardware.kinds.protocol import TargetKind
from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["CpuKind"]


class CpuKind(TargetKind):
    """The CPU; of this machine all cores are one device."""

    name = "llvm"

    def probe(self, index: int = 0) -> DeviceSpec | None:
        return None if index else cpu_spec(native_cpu(), native=True)
