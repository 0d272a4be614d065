"""A loaded library on its devices: TVM's virtual machine and the weights it runs with."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvm_edge import opencl
from tvm_edge.errors import ArtifactError, DeviceUnavailableError, TvmEdgeWarning
from tvm_edge.host import allowed_cpus, host_features, machine
from tvm_edge.runtime.dlpack import byte_offset, share_array
from tvm_edge.runtime.entry import KERNEL_BY_KERNEL, Main, entry
from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.placement import STREAMED, DevicePlan
from tvm_edge.runtime.streaming import WeightStream
from tvm_edge.runtime.threads import configure_pool

__all__ = [
    "Instrument",
    "Session",
    "aligned_copy",
    "as_tensor",
    "check_host",
    "load_library",
]

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


class _Machine:
    """One of TVM's virtual machines, for one run at a time, and the memory it takes inputs in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.main: Main | None = None  # made when it is first needed
        self._staged: dict[int, tuple[tvm.runtime.Tensor, np.ndarray]] = {}

    def stage(self, index: int, array: np.ndarray) -> tvm.runtime.Tensor:
        """The values of input `index` in aligned memory that each run uses again.

        Copying 224×224×3 floats takes 12 µs, and 28 with memory of its own.
        """
        if index not in self._staged:
            self._staged[index] = _aligned(array)
        tensor, view = self._staged[index]
        np.copyto(view, array)
        return tensor


class Session:
    """A library on its devices.

    Runs at the same time need virtual machines of their own, which share code and weights. There
    are as many as the CPUs that the process may use have room for, at `num_threads` each: more
    would only wait for each other's threads. A GPU has one queue, so its models have one machine.
    Runs that find none free take turns.

    On CUDA everything runs on the default stream and is done when a call returns; OpenCL kernels
    may still be running then, and whatever reads a result waits for them.

    Parameters
    ----------
    module : tvm.runtime.Module
    weights : sequence of tvm.runtime.Tensor
        In host memory; those of a GPU are copied to it: once, or in every run those that the plan
        says are streamed.
    num_threads : int
    plan : DevicePlan
        Where inputs and weights belong.
    devices : sequence of tvm.runtime.Device
        Those of the plan, from :func:`~tvm_edge.runtime.placement.open_devices`.
    uploaded : callable, optional
        Called with the position of each weight that a GPU has a copy of.
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        weights: Sequence[tvm.runtime.Tensor],
        num_threads: int,
        plan: DevicePlan,
        devices: Sequence[tvm.runtime.Device],
        uploaded: Callable[[int], None] | None = None,
    ) -> None:
        configure_pool(num_threads)
        self.num_threads = num_threads
        self._devices = list(devices)
        self._cuda = next((device for device in devices if _is_cuda(device)), None)
        self._inputs = [self._devices[d] for d in plan.inputs]
        self._module = module
        for device in devices:
            if _is_opencl(device):  # now, not while the first frame waits
                opencl.build(module, device.index)
        on_cpu = all(_is_cpu(device) for device in devices)
        room = max(1, len(allowed_cpus()) // num_threads) if on_cpu else 1
        self._machines = [_Machine() for _ in range(room)]
        first = self._make_machine()
        self._main = _main_of(first, self._devices)
        self._machines[0].main = entry(first, self._main)
        self._unheard = any(_is_opencl(device) for device in self._devices)
        self._turn = itertools.count()
        placed = []
        for index, (weight, number) in enumerate(zip(weights, plan.weights, strict=True)):
            device = tvm.cpu() if number == STREAMED else self._devices[number]
            if not _is_cpu(device):
                weight = weight.copyto(device)
                if uploaded:
                    device.sync()  # the copy may still be reading
                    uploaded(index)
            placed.append(weight)
        self._weights = tvm_ffi.Array(placed)
        self._weight_memory = frozenset(weight.data_ptr() for weight in self._weights)
        gpu = next((device for device in devices if not _is_cpu(device)), None)
        streamed = plan.weights.count(STREAMED)
        self._parts = WeightStream(weights, streamed, gpu)
        self._streams = streamed > 0
        self._process = os.getpid()

    def _make_machine(self) -> VirtualMachine:
        # The devices in the order of the code's virtual devices; TVM appends the CPU by itself.
        return VirtualMachine(
            self._module, [d for d in self._devices if not _is_cpu(d)] or tvm.cpu()
        )

    def place(self, inputs: Sequence[Bound]) -> list[tvm.runtime.Tensor]:
        """The inputs where ``main`` wants them, for any number of runs.

        TVM's own ``VirtualMachine.set_input`` sends all of them to the first device
        (apache/tvm#17884).
        """
        return [_place(value, device) for value, device in zip(inputs, self._inputs, strict=True)]

    def invoke(self, inputs: Sequence[Bound]) -> list[tvm.runtime.Tensor]:
        """Run ``main``.

        The results are the caller's: no later run, and no change to an input or to another
        result, changes them.

        Raises
        ------
        DeviceUnavailableError
            The process forked since the model was loaded.
        """
        self.check_process()
        machine = self._choose()
        with machine.lock, self._running():
            configure_pool(self.num_threads)
            if machine.main is None:
                machine.main = entry(self._make_machine(), self._main)
            tensors = [
                machine.stage(index, value)
                if isinstance(value, np.ndarray) and _is_cpu(device) and not _is_aligned(value)
                else _place(value, device)
                for index, (value, device) in enumerate(zip(inputs, self._inputs, strict=True))
            ]
            outputs = self._own(machine.main(*tensors, self._weights), tensors)
            if self._cuda:
                # A consumer's stream knows nothing of ours, nor does the allocator of a producer
                # that frees an input next.
                self.synchronize()
        if self._unheard:
            self._unheard = False
            self._warn_of_recording()
        return outputs

    def invoke_placed(self, inputs: Sequence[tvm.runtime.Tensor], runs: int = 1) -> None:
        """Run ``main`` on inputs from :meth:`place`, so many times in a row, to the end."""
        self.check_process()
        with self._machines[0].lock, self._running():
            configure_pool(self.num_threads)
            assert self._machines[0].main is not None
            for _ in range(runs):
                self._machines[0].main(*inputs, self._weights)
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

    def instrumented(self, inputs: Sequence[Bound], instrument: Instrument) -> None:
        """Run once with `instrument` around every call of the virtual machine.

        Kernels of a GPU run one by one, each to its end before the next begins.
        """
        self.check_process()

        def around(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            self.synchronize()
            instrument(name, before)
            return 0

        # A machine of its own: an instrument cannot be taken off again.
        machine = self._make_machine()
        machine.set_instrument(around)
        with _interrupt_deferred(), self._machines[0].lock, self._running():
            configure_pool(self.num_threads)
            # What a GPU's driver replays calls nothing that an instrument could see.
            recorded = machine.module.implements_function(KERNEL_BY_KERNEL)
            main = entry(machine, KERNEL_BY_KERNEL if recorded else "main")
            main(*self.place(inputs), self._weights)

    def check_process(self) -> None:
        """Refuse to run in a child that was forked off after the model was loaded.

        Raises
        ------
        DeviceUnavailableError
        """
        if os.getpid() != self._process:
            # Another thread may have held a lock when the process forked: nobody would free it.
            raise DeviceUnavailableError(
                "this model was loaded before the process forked; load it in a new thread of the "
                "child, or use multiprocessing's 'spawn'"
            )

    def _warn_of_recording(self) -> None:
        """Say, once a process, that a driver does not record what it says it can."""
        for device in self._devices:
            reason = opencl.recording_failure(device.index) if _is_opencl(device) else ""
            if reason:
                warnings.warn(
                    f"kernels are launched one by one because recording them failed ({reason}); "
                    "results are right; to not even try, set TVM_EDGE_OPENCL_COMMAND_BUFFER=0",
                    TvmEdgeWarning,
                    stacklevel=4,
                )

    def _choose(self) -> _Machine:
        """A machine that is free, as far as one can see, else the next in turn."""
        # The lock is taken by a `with` alone: between any other way of taking it and the
        # `try` that gives it back, Ctrl-C could come.
        machines = self._machines
        free = next((machine for machine in machines if not machine.lock.locked()), None)
        return free or machines[next(self._turn) % len(machines)]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """What has to be so while ``main`` runs."""
        # What is asked for weights is Python, and may not raise KeyboardInterrupt.
        with (
            _interrupt_deferred() if self._streams else nullcontext(),
            self._stream(),
            self._parts.running(),
        ):
            yield

    def _stream(self) -> AbstractContextManager[Any]:
        """Let CUDA work go to the default stream, whatever stream the caller has set.

        TVM's own copies always do, and producers of inputs are asked to be ready for it.
        """
        return tvm_ffi.use_raw_stream(self._cuda, 0) if self._cuda else nullcontext()

    def _own(
        self, outputs: list[tvm.runtime.Tensor], inputs: Sequence[tvm.runtime.Tensor]
    ) -> list[tvm.runtime.Tensor]:
        """Outputs that are an input, a weight or another output, copied."""
        taken = {tensor.data_ptr() for tensor in inputs}
        owned = []
        for tensor in outputs:
            address = tensor.data_ptr()
            if address in taken or address in self._weight_memory:
                tensor = tensor.copyto(tensor.device)
            taken.add(address)
            owned.append(tensor)
        return owned


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


def _main_of(machine: VirtualMachine, devices: Sequence[tvm.runtime.Device]) -> str:
    """The function to run: on OpenCL the one with recordings only where the driver records.

    Without, what leads to them costs the host 0.5 µs a kernel.
    """
    records = not any(
        _is_opencl(device) and opencl.command_buffers(device.index)["missing"] for device in devices
    )
    if records or not machine.module.implements_function(KERNEL_BY_KERNEL):
        return "main"
    return KERNEL_BY_KERNEL


def _is_cpu(device: tvm.runtime.Device) -> bool:
    return int(device.dlpack_device_type()) == tvm_ffi.DLDeviceType.kDLCPU


def _is_opencl(device: tvm.runtime.Device) -> bool:
    return int(device.dlpack_device_type()) == tvm_ffi.DLDeviceType.kDLOpenCL


def _is_cuda(device: tvm.runtime.Device) -> bool:
    return int(device.dlpack_device_type()) == tvm_ffi.DLDeviceType.kDLCUDA


def _is_aligned(array: np.ndarray) -> bool:
    # A kernel reading from a pointer off these bytes ends in SIGSEGV: LLVM's loads assume them.
    address: int = array.__array_interface__["data"][0]  # five times as fast as array.ctypes
    return address % _ALIGNMENT == 0


def _aligned(array: np.ndarray) -> tuple[tvm.runtime.Tensor, np.ndarray]:
    """A new CPU tensor like `array`, and an array over it."""
    raw = tvm.runtime.empty((array.nbytes,), "uint8")
    view = np.from_dlpack(raw).view(array.dtype).reshape(array.shape)
    return raw._create_view(array.shape, str(array.dtype)), view


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy that kernels read where it is."""
    _, view = _aligned(array)
    np.copyto(view, array)
    return view


def as_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """A CPU tensor with the array's values, over the array's memory where that is aligned."""
    return share_array(array if _is_aligned(array) else aligned_copy(array))


def _place(value: Bound, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """An input as kernels take it: on the device, on 64 bytes, and where its handle points."""
    if isinstance(value, np.ndarray):
        if _is_cpu(device):
            return as_tensor(value)
        placed = share_array(value).copyto(device)
        device.sync()  # the array is the caller's again
        return placed
    if value.device != device:
        placed = value.copyto(device)
        value.device.sync()  # its stream is not the one that kernels run on
        return placed
    if value.data_ptr() % _ALIGNMENT or byte_offset(value):
        return value.copyto(device)
    return value
