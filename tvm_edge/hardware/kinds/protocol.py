"""The protocol of a kind of target: facts of it, and what this machine has of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import tvm

from tvm_edge.hardware.limits import believable
from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.hardware.tensor_cores import TensorCores

__all__ = ["GpuKind", "TargetKind"]


class TargetKind(ABC):
    """Kind of target, whatever the device.

    Attributes
    ----------
    name : str
        TVM's.
    limits_kernels : bool
        Whether a driver may allow a kernel fewer work-items than its device, which is known when it
        has built the kernel, maybe on another machine.
    maps_memory : bool
        Whether the host reads the device's tensors where they are, if they share memory.
    pools_memory : bool
        Whether tensors are in blocks of a few sizes, so that a freed one fits a later one.
    pins_memory : bool
        Whether copies of streamed weights go through memory that the driver has pinned.
    """

    name: ClassVar[str]
    limits_kernels: ClassVar[bool] = False
    maps_memory: ClassVar[bool] = False
    pools_memory: ClassVar[bool] = False
    pins_memory: ClassVar[bool] = False

    @abstractmethod
    def probe(self, index: int = 0) -> DeviceSpec | None:
        """Describe this machine's device at `index`; ``None`` if there is none."""

    def driver(self, index: int) -> dict[str, Any]:
        """Return the driver's facts that no DeviceSpec has, such as versions."""
        return {}


class GpuKind(TargetKind):
    """Kind of GPU.

    Attributes
    ----------
    generic : DeviceSpec
        Device to compile for where none is here to ask.
    oldest_arch : str
        Architecture of that device, as targets have it; empty where targets have none.
    """

    generic: ClassVar[DeviceSpec]
    oldest_arch: ClassVar[str] = ""

    def probe(self, index: int = 0) -> DeviceSpec | None:
        """Ask the driver; ``None`` if TVM's runtime reaches no such device."""
        if not tvm.runtime.enabled(self.name):
            return None
        device = tvm.device(self.name, index)
        if not device.exist:
            return None
        return believable(self.spec_of(device, index))

    @abstractmethod
    def spec_of(self, device: Any, index: int) -> DeviceSpec:
        """Return the answers of a driver, as they come."""

    def arch_of(self, index: int) -> str:
        """Return the architecture of a device that is here, as targets have it."""
        return ""

    def tensor_cores(self, arch: str) -> TensorCores | None:
        """Return the tensor cores of an architecture that kernels of this kind reach."""
        return None

    def config(self, spec: DeviceSpec, arch: str = "") -> dict[str, Any]:
        """Return TVM's target, as a dict without a host."""
        return {
            "kind": self.name,
            "max_num_threads": spec.max_work_group_size,
            "max_threads_per_block": spec.max_work_group_size,
            "max_shared_memory_per_block": spec.local_memory,
            "thread_warp_size": 1,
        }
