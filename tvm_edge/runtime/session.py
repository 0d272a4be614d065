"""A loaded library on its devices: TVM's virtual machine and the weights it runs with."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvm_edge import opencl
from tvm_edge.errors import ArtifactError, DeviceUnavailableError
from tvm_edge.host import host_features, machine
from tvm_edge.runtime.placement import DevicePlan
from tvm_edge.runtime.threads import configure_pool

__all__ = ["Instrument", "Session", "as_tensor", "check_host", "load_library"]

Instrument = Callable[[str, bool], None]
"""Called with a kernel's name, before (True) and after (False) its launch."""

_ALIGNMENT = 64  # TVM's kAllocAlignment; kernels may load whole cache lines


def check_host(what: str, architecture: str, features: Sequence[str]) -> None:
    """Refuse code that this CPU cannot execute; running it would end in SIGILL.

    Parameters
    ----------
    what : str
        The artifact or model, for the message.
    architecture : str
    features : sequence of str
        In LLVM's names.

    Raises
    ------
    ArtifactError
        Code for another architecture.
    DeviceUnavailableError
        An instruction set is missing here.
    """
    if architecture != machine():
        raise ArtifactError(
            f"{what} is compiled for {architecture}, and this machine is {machine()}; "
            f"run it there, or compile it with target='llvm' here"
        )
    here = host_features()
    if here is None:
        return
    missing = sorted(set(features) - here)
    if missing:
        raise DeviceUnavailableError(
            f"{what} is compiled for a CPU with {', '.join(missing)}, which this CPU lacks; "
            "compile it with target='llvm' on this machine or name its CPU: "
            "{'kind': 'llvm', 'mcpu': ...}"
        )


def load_library(what: str, content: bytes) -> tvm.runtime.Module:
    """Load a shared library that lies in memory; `what` it belongs to is for messages.

    Raises
    ------
    ArtifactError
        The temporary folder is full or not writable, or the library cannot be linked here.
    """
    with tempfile.TemporaryDirectory(prefix="tvm-edge-") as folder:
        path = Path(folder) / "library.so"
        try:
            path.write_bytes(content)
        except OSError as err:
            raise ArtifactError(
                f"cannot unpack the library of {what} into {folder!r}: {err.strerror}; "
                "set TMPDIR to a folder with space"
            ) from err
        try:
            # Stays mapped after the file is gone; TVM's own load_module would keep every module
            # for the life of the process.
            return tvm_ffi.load_module(path, keep_module_alive=False)
        except RuntimeError as err:
            reason = str(err).splitlines()[0][:200]
            raise ArtifactError(
                f"the dynamic linker refuses the library of {what}: {reason}; "
                "set TMPDIR to a folder mounted without noexec, or export the model again"
            ) from err


class Session:
    """The virtual machine on its devices, one call at a time.

    Parameters
    ----------
    module : tvm.runtime.Module
    weights : sequence of tvm.runtime.Tensor
        In host memory; those of a GPU are copied to it, once.
    num_threads : int
    plan : DevicePlan
        Where inputs and weights belong.
    devices : sequence of tvm.runtime.Device
        Those of the plan, from :func:`~tvm_edge.runtime.placement.open_devices`.
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        weights: Sequence[tvm.runtime.Tensor],
        num_threads: int,
        plan: DevicePlan,
        devices: Sequence[tvm.runtime.Device],
    ) -> None:
        configure_pool(num_threads)
        self.num_threads = num_threads
        self._devices = list(devices)
        self._plan = plan
        self._module = module
        for device in devices:
            if _is_opencl(device):  # now, not while the first frame waits
                opencl.build(module, device.index)
        self._main = self._machine()["main"]
        on = zip(weights, plan.weights, strict=True)
        self._weights = tvm_ffi.Array([self._upload(w, self._devices[d]) for w, d in on])
        self._lock = threading.Lock()
        self._process = os.getpid()

    def _machine(self) -> VirtualMachine:
        # The devices in the order of the code's virtual devices; TVM appends the CPU by itself.
        return VirtualMachine(
            self._module, [d for d in self._devices if not _is_cpu(d)] or tvm.cpu()
        )

    @staticmethod
    def _upload(weight: tvm.runtime.Tensor, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
        return weight if _is_cpu(device) else weight.copyto(device)

    def place(self, inputs: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """The inputs where ``main`` wants them.

        TVM's own ``VirtualMachine.set_input`` sends all of them to the first device
        (apache/tvm#17884).
        """
        return [
            as_tensor(array, self._devices[d])
            for array, d in zip(inputs, self._plan.inputs, strict=True)
        ]

    def invoke(self, inputs: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """Run ``main``; safe from several threads, which take turns.

        Kernels of a GPU may still be running at return; reading a result waits for them.

        Raises
        ------
        DeviceUnavailableError
            The process forked since the model was loaded.
        """
        return self._call(self._main, inputs)

    def invoke_placed(self, inputs: Sequence[tvm.runtime.Tensor]) -> None:
        """Run ``main`` on inputs from :meth:`place`, to the end."""
        self._call(self._main, inputs)
        self.synchronize()

    def device_programs(self) -> bytes:
        """The kernels as the drivers of this machine built them; empty without OpenCL."""
        return b"".join(
            opencl.save_programs(self._module, device.index)
            for device in self._devices
            if _is_opencl(device)
        )

    def synchronize(self) -> None:
        """Wait until every device has done its work."""
        for device in self._devices:
            if not _is_cpu(device):
                device.sync()

    def instrumented(
        self, inputs: Sequence[np.ndarray], instrument: Instrument
    ) -> list[tvm.runtime.Tensor]:
        """Run once with `instrument` around every call of the virtual machine.

        Kernels of a GPU run one by one, each to its end before the next begins.
        """

        def around(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            self.synchronize()
            instrument(name, before)
            return 0

        # A machine of its own: an instrument cannot be taken off again.
        machine = self._machine()
        machine.set_instrument(around)
        with _interrupt_deferred():
            return self._call(machine["main"], inputs)

    def _call(
        self,
        function: Callable[..., Any],
        inputs: Sequence[np.ndarray] | Sequence[tvm.runtime.Tensor],
    ) -> list[tvm.runtime.Tensor]:
        if os.getpid() != self._process:
            # Another thread may have held the lock when the process forked: nobody would free it.
            raise DeviceUnavailableError(
                "this model was loaded before the process forked; load it in a new thread of the "
                "child, or use multiprocessing's 'spawn'"
            )
        with self._lock:
            configure_pool(self.num_threads)
            tensors = inputs
            if any(isinstance(value, np.ndarray) for value in inputs):
                tensors = self.place(inputs)
            result = function(*tensors, self._weights)
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends.

    Raised inside a Python callback it would unwind through TVM's C++, which turns it into an empty
    RuntimeError and damages the heap.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pending:
        handler(*pending[0])


def _is_cpu(device: tvm.runtime.Device) -> bool:
    return int(device.dlpack_device_type()) == tvm_ffi.DLDeviceType.kDLCPU


def _is_opencl(device: tvm.runtime.Device) -> bool:
    return int(device.dlpack_device_type()) == tvm_ffi.DLDeviceType.kDLOpenCL


def as_tensor(array: np.ndarray, device: tvm.runtime.Device | None = None) -> tvm.runtime.Tensor:
    """A tensor with the array's values on a device, the CPU unless said otherwise.

    On the CPU it shares the array's memory where that is aligned.
    """
    if device is not None and not _is_cpu(device):
        return tvm.runtime.tensor(array, device)
    if array.ctypes.data % _ALIGNMENT == 0 and array.flags.writeable and array.size:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.tensor(array, tvm.cpu())
