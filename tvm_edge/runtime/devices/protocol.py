"""The protocol of a device: what loading a model asks of it.

Running one is in C++ (``native/csrc/device.cc``).
"""

from __future__ import annotations

from typing import ClassVar

import tvm

from tvm_edge.errors import DeviceUnavailableError

__all__ = ["RuntimeDevice"]

_LAST_INDEX = 2**31 - 1  # a device's number is an int32


class RuntimeDevice:
    """A device by its kind and number; nothing is asked of its driver before :meth:`open`.

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
    libraries : tuple of str
        Libraries of TVM's that it takes beside the runtime's, by their file names.
    is_host : bool
        Whether it is the CPU that the process runs on.
    handle : tvm.runtime.Device
    """

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    dlpack_type: ClassVar[int]
    needs: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()
    is_host: ClassVar[bool] = False

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
