"""OpenCL devices, by the runtime of :mod:`tvm_edge.opencl`."""

from __future__ import annotations

import tvm
from tvm_ffi import DLDeviceType

from tvm_edge import opencl
from tvm_edge.runtime.devices.protocol import RuntimeDevice

__all__ = ["OpenCLDevice"]


class OpenCLDevice(RuntimeDevice):
    """An OpenCL device; a kernel may still be running when a call returns.

    Whatever reads a result waits for it.
    """

    kind = "opencl"
    names = ("opencl",)
    dlpack_type = DLDeviceType.kDLOpenCL
    needs = "a GPU with its OpenCL driver"

    @classmethod
    def load_programs(cls, programs: bytes) -> None:
        opencl.load_programs(programs)

    def builds_for(self, name: str) -> bool:
        return self.exists and opencl.device_info(self.index)["name"] == name

    @property
    def generates_at_launch(self) -> bool:
        # pocl knows the grid only then.
        return bool(opencl.device_info(self.index)["platform"] == "Portable Computing Language")

    def programs(self, module: tvm.runtime.Module) -> bytes:
        return opencl.save_programs(module, self.index)

    def too_large_kernels(self, module: tvm.runtime.Module) -> list[str]:
        return opencl.too_large_kernels(module, self.index)
