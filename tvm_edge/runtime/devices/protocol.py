"""The protocol of a device: everything that running a model asks of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import tvm

from tvm_edge.errors import DeviceUnavailableError
from tvm_edge.runtime.captures import Turn
from tvm_edge.runtime.dlpack import byte_offset, share_array
from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.staging import ALIGNMENT

__all__ = ["RuntimeDevice"]

_LAST_INDEX = 2**31 - 1  # a device's number is an int32


class RuntimeDevice:
    """A device by its kind and number; nothing is asked of its driver before :meth:`open`.

    Methods that are not overridden are those of a device with memory of its own, whose driver
    takes launches one by one, from any thread.

    Parameters
    ----------
    index : int
        Number among the devices of its kind.

    Attributes
    ----------
    kind : str
        TVM's name of the kind.
    names : tuple of str
        Names by which a caller may ask for one.
    dlpack_type : int
        DLPack's number of the kind.
    needs : str
        Hardware and driver that it takes, for messages.
    is_host : bool
        Whether it is the CPU that the process runs on: TVM's virtual machine has it by itself, runs
        happen at the same time, and kernels share the calling thread's pool.
    may_capture : bool
        Whether a run may record its launches while nobody else uses the driver.
    handle : tvm.runtime.Device
    """

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    dlpack_type: ClassVar[int]
    needs: ClassVar[str]
    is_host: ClassVar[bool] = False
    may_capture: ClassVar[bool] = False

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.handle = tvm.runtime.device(int(self.dlpack_type), min(index, _LAST_INDEX))

    @property
    def exists(self) -> bool:
        """Return whether TVM's runtime reaches it."""
        here = self.index <= _LAST_INDEX and tvm.runtime.enabled(self.kind)
        return here and bool(self.handle.exist)

    def open(self) -> None:
        """Check that it is here.

        Raises
        ------
        DeviceUnavailableError
        """
        if not self.exists:
            raise DeviceUnavailableError(
                f"the model is compiled for {self.kind}, and TVM finds no device "
                f"{self.kind}:{self.index} on this machine (it takes {self.needs}); "
                "to see what is missing, run: tvm-edge doctor"
            )

    # Code.

    @classmethod
    def load_programs(cls, programs: bytes) -> None:
        """Hand the driver kernels that one like it has built; another kind has no use for them.

        Raises
        ------
        ValueError
            The bytes are damaged.
        """

    def build(self, module: tvm.runtime.Module) -> None:
        """Have the driver build a module's kernels now, not while the first frame waits."""

    def builds_for(self, name: str) -> bool:
        """Return whether it is here, has this name, and its driver builds kernels by itself."""
        return False

    @property
    def generates_at_launch(self) -> bool:
        """Return whether a built kernel has no machine code before its first launch."""
        return False

    def programs(self, module: tvm.runtime.Module) -> bytes:
        """Return a module's kernels as the driver built them, for :meth:`load_programs`."""
        return b""

    def too_large_kernels(self, module: tvm.runtime.Module) -> list[str]:
        """Name the kernels whose work-groups are larger than the driver can run."""
        return []

    # Memory.

    def share(self, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor | None:
        """Return a tensor for kernels to read, over one in host memory; None: only a copy will do.

        Nobody may write to the memory while the result lives.
        """
        return None

    @property
    def reads_host_memory(self) -> bool:
        """Return whether :meth:`share` works, which it does where the device is a CPU."""
        return self.share(tvm.runtime.empty((64,))) is not None

    def upload(self, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """Copy a tensor to the device; the copy may still be reading when this returns."""
        return tensor.copyto(self.handle)

    def place(self, value: Bound) -> tvm.runtime.Tensor:
        """Return an input as kernels take it: on the device, on 64 bytes, where its handle points.

        Over the caller's memory where it is so already; else its values are copied when this
        returns.
        """
        if isinstance(value, np.ndarray):
            return self._place_array(value)
        if value.device != self.handle:
            tensor = value.copyto(self.handle)
            value.device.sync()  # its stream is not the one that kernels run on
            return tensor
        if value.data_ptr() % ALIGNMENT or byte_offset(value):
            return value.copyto(self.handle)
        return value

    def _place_array(self, array: np.ndarray) -> tvm.runtime.Tensor:
        tensor = share_array(array).copyto(self.handle)
        self.sync()  # the array is the caller's again
        return tensor

    @property
    def host_writes_at_any_time(self) -> bool:
        """Return whether the host may write the device's memory while kernels run."""
        return False

    @property
    def pinned_memory(self) -> tvm.runtime.Device | None:
        """Place of tensors in host memory that the driver has pinned, if a program can ask."""
        return None

    def release_memory(self) -> None:
        """Give memory that was freed, and is kept for later tensors, back to the driver."""

    # Runs.

    def sync(self) -> None:
        """Wait until the device has done its work."""
        self.handle.sync()

    def finish_run(self) -> None:
        """Wait, before results are handed out, for what whoever takes them cannot wait for."""

    @classmethod
    def driver(cls) -> AbstractContextManager[Turn | None]:
        """Context in which a thread may use the driver."""
        return nullcontext()

    def default_stream(self) -> AbstractContextManager[Any]:
        """Context in which launches go to the default stream, whatever the caller has set."""
        return nullcontext()

    @property
    def replays_launches(self) -> bool:
        """Return whether the driver replays launches that were recorded, where the code has any."""
        return True

    def recording_failure(self) -> str:
        """Say why the driver did not record something that it should; once, then empty."""
        return ""
