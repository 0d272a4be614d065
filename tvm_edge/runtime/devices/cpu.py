"""The CPU that the process runs on."""

from __future__ import annotations

import numpy as np
import tvm
from tvm_ffi import DLDeviceType

from tvm_edge.runtime.devices.protocol import RuntimeDevice
from tvm_edge.runtime.staging import as_tensor

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

    def share(self, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """Return the tensor itself."""
        return tensor

    def _place_array(self, array: np.ndarray) -> tvm.runtime.Tensor:
        return as_tensor(array)

    def sync(self) -> None:
        """Return: kernels are done when the call that launched them returns."""
