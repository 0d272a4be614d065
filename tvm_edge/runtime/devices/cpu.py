"""The CPU that the process runs on."""

from __future__ import annotations

from tvm_ffi import DLDeviceType

from tvm_edge.runtime.devices.protocol import RuntimeDevice

__all__ = ["CpuDevice"]


class CpuDevice(RuntimeDevice):
    """All cores that the process may use; there is one, always."""

    kind = "llvm"
    names = ("llvm", "cpu")
    dlpack_type = DLDeviceType.kDLCPU
    needs = "a CPU"
    is_host = True

    def __init__(self, index: int = 0) -> None:
        super().__init__(0)

    @property
    def exists(self) -> bool:
        """True, with TVM's compiler and without it."""
        return True
