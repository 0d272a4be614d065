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

from tvm_edge.errors import ArtifactError, DeviceUnavailableError
from tvm_edge.host import host_features, machine
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
            return tvm.runtime.load_module(str(path))  # stays mapped after the file is gone
        except RuntimeError as err:
            reason = str(err).splitlines()[0][:200]
            raise ArtifactError(
                f"the dynamic linker refuses the library of {what}: {reason}; "
                "set TMPDIR to a folder mounted without noexec, or export the model again"
            ) from err


class Session:
    """The virtual machine, one call at a time.

    Parameters
    ----------
    module : tvm.runtime.Module
    weights : sequence of tvm.runtime.Tensor
    num_threads : int
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        weights: Sequence[tvm.runtime.Tensor],
        num_threads: int,
    ) -> None:
        configure_pool(num_threads)
        self.num_threads = num_threads
        self.device = tvm.cpu()
        self._module = module
        self._main = VirtualMachine(module, self.device)["main"]
        self._weights = tvm_ffi.Array(list(weights))
        self._lock = threading.Lock()
        self._process = os.getpid()

    def invoke(self, inputs: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """Run ``main``; safe from several threads, which take turns.

        Raises
        ------
        DeviceUnavailableError
            The process forked since the model was loaded.
        """
        return self._call(self._main, inputs)

    def instrumented(
        self, inputs: Sequence[np.ndarray], instrument: Instrument
    ) -> list[tvm.runtime.Tensor]:
        """Run once with `instrument` around every call of the virtual machine."""

        def around(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            instrument(name, before)
            return 0

        # A machine of its own: an instrument cannot be taken off again.
        machine = VirtualMachine(self._module, self.device)
        machine.set_instrument(around)
        with _interrupt_deferred():
            return self._call(machine["main"], inputs)

    def _call(
        self, function: Callable[..., Any], inputs: Sequence[np.ndarray]
    ) -> list[tvm.runtime.Tensor]:
        if os.getpid() != self._process:
            # Another thread may have held the lock when the process forked: nobody would free it.
            raise DeviceUnavailableError(
                "this model was loaded before the process forked; load it in a new thread of the "
                "child, or use multiprocessing's 'spawn'"
            )
        with self._lock:
            configure_pool(self.num_threads)
            result = function(*(as_tensor(array) for array in inputs), self._weights)
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


def as_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """A host tensor over the array's memory where that is aligned, else a copy of it."""
    if array.ctypes.data % _ALIGNMENT == 0 and array.flags.writeable and array.size:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.tensor(array, tvm.cpu())
