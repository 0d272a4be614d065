"""A loaded library on its devices: TVM's virtual machine and the weights it runs with."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvm_edge import opencl
from tvm_edge.errors import DeviceUnavailableError, TvmEdgeWarning
from tvm_edge.host import allowed_cpus
from tvm_edge.runtime.captures import CAPTURES, Turn
from tvm_edge.runtime.dlpack import share_array
from tvm_edge.runtime.entry import ALL, UNALIGNED, Entry, Main, entry, kernel_by_kernel
from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.once import once
from tvm_edge.runtime.placement import STREAMED, DevicePlan
from tvm_edge.runtime.stages import Stage, StagedFrame, find_stages
from tvm_edge.runtime.staging import Staging, is_aligned, is_kind, placed
from tvm_edge.runtime.streaming import WeightStream
from tvm_edge.runtime.threads import configure_pool

__all__ = ["Instrument", "Session"]

Instrument = Callable[[str, bool], None]
"""Called with a kernel's name, before (True) and after (False) its launch."""


class _Machine:
    """TVM's virtual machines for one run at a time, and the memory it takes inputs in.

    There is one for each entry: what a machine has recorded it tells apart by numbers that the
    entries use alike.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mains: dict[str, Main] = {}  # made when they are first needed
        self.staging = Staging()


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
        In host memory. A device that is the CPU reads them there; those of another GPU are copied
        to it: once, or in every run those that the plan says are streamed.
    num_threads : int
    plan : DevicePlan
        Where inputs and weights belong.
    devices : sequence of tvm.runtime.Device
        Those of the plan, from :func:`~tvm_edge.runtime.placement.open_devices`.
    uploaded : callable, optional
        Called with the position of each weight that a GPU has a copy of.
    largest_part : int
        Bytes of the largest of the streamed weights that go to a GPU, 0 if there is none.
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        weights: Sequence[tvm.runtime.Tensor],
        num_threads: int,
        plan: DevicePlan,
        devices: Sequence[tvm.runtime.Device],
        uploaded: Callable[[int], None] | None = None,
        largest_part: int = 0,
    ) -> None:
        configure_pool(num_threads)
        self.num_threads = num_threads
        self.kinds = plan.kinds
        self._devices = list(devices)
        self._cuda = next((device for device in devices if is_kind(device, "cuda")), None)
        self._inputs = [self._devices[d] for d in plan.inputs]
        self._module = module
        for device in devices:
            if is_kind(device, "opencl"):  # now, not while the first frame waits
                opencl.build(module, device.index)
        on_cpu = all(is_kind(device, "llvm") for device in devices)
        room = max(1, len(allowed_cpus()) // num_threads) if on_cpu else 1
        self._machines = [_Machine() for _ in range(room)]
        first = self._make_machine()
        self._anywhere = _inputs_anywhere(first)
        self._everything = Entry(ALL, tuple(range(len(plan.inputs))), ())
        self._launches_recorded = _launches_recorded(first, self._devices)
        # Entries and stages, of which no run calls Python any more.
        self._recorded_all: set[Hashable] = set()
        self._machines[0].mains[ALL] = entry(first, self._name_of(ALL))
        self._unheard = any(is_kind(device, "opencl") for device in self._devices)
        self._turn = itertools.count()
        lying = []
        for index, (weight, number) in enumerate(zip(weights, plan.weights, strict=True)):
            device = tvm.cpu() if number == STREAMED else self._devices[number]
            shared = opencl.borrow(weight, device.index) if is_kind(device, "opencl") else None
            if shared is not None:
                weight = shared
            elif not is_kind(device, "llvm"):
                with self._sharing():
                    weight = weight.copyto(device)
                    if uploaded:
                        device.sync()  # the copy may still be reading
                        uploaded(index)
            lying.append(weight)
        self._weights = tvm_ffi.Array(lying)
        self._weight_memory = frozenset(weight.data_ptr() for weight in self._weights)
        gpu = next((device for device in devices if not is_kind(device, "llvm")), None)
        streamed = plan.weights.count(STREAMED)
        self._parts = WeightStream(weights, streamed, gpu, largest_part)
        self._streams = streamed > 0
        self._gpu = gpu
        self._process = os.getpid()

    def _make_machine(self) -> VirtualMachine:
        # The devices in the order of the code's virtual devices; TVM appends the CPU by itself.
        return VirtualMachine(
            self._module, [d for d in self._devices if not is_kind(d, "llvm")] or tvm.cpu()
        )

    def _name_of(self, function: str) -> str:
        """The form of an entry that the driver is better with."""
        return function if self._launches_recorded else kernel_by_kernel(function)

    def _main(self, machine: _Machine, function: str) -> Main:
        """An entry of a machine that is locked."""
        if function not in machine.mains:
            machine.mains[function] = entry(self._make_machine(), self._name_of(function))
        return machine.mains[function]

    def place(
        self, inputs: Sequence[Bound], wanted: Entry | None = None
    ) -> list[tvm.runtime.Tensor]:
        """The inputs where an entry wants them, for any number of runs.

        TVM's own ``VirtualMachine.set_input`` sends all of them to the first device
        (apache/tvm#17884).
        """
        positions = (wanted or self._everything).inputs
        with self._sharing():
            return [
                placed(value, self._inputs[position])
                for value, position in zip(inputs, positions, strict=True)
            ]

    def invoke(
        self, inputs: Sequence[Bound], wanted: Entry | None = None
    ) -> list[tvm.runtime.Tensor]:
        """Run ``main``, or another entry.

        The results are the caller's: no later run, and no change to an input or to another
        result, changes them.

        Raises
        ------
        DeviceUnavailableError
            The process forked since the model was loaded.
        """
        self.check_process()
        outputs = self._invoke(self._choose(), inputs, wanted)
        if self._unheard:
            self._unheard = False
            self._warn_of_recording()
        return outputs

    def warm_up(
        self, inputs: Sequence[Bound], wanted: Entry | None = None
    ) -> list[tvm.runtime.Tensor]:
        """Run an entry on every machine, so that no later run is a machine's first; the results."""
        self.check_process()
        return [self._invoke(machine, inputs, wanted) for machine in self._machines][-1]

    def _invoke(
        self, machine: _Machine, inputs: Sequence[Bound], wanted: Entry | None
    ) -> list[tvm.runtime.Tensor]:
        wanted = wanted or self._everything
        with machine.lock, self._running(wanted.function):
            configure_pool(self.num_threads)
            main = self._main(machine, wanted.function)
            tensors = [
                self._taken(machine, index, value)
                for index, value in zip(wanted.inputs, inputs, strict=True)
            ]
            taken = [tensor.data_ptr() for tensor in tensors]
            outputs = self._own(main(*tensors, self._weights), taken)
            if self._cuda:
                # A consumer's stream knows nothing of ours, nor does the allocator of a producer
                # that frees an input next.
                self.synchronize()
        return outputs

    def _taken(self, machine: _Machine, index: int, value: Bound) -> tvm.runtime.Tensor:
        """An input where the kernels of a locked machine take it, for one run."""
        if isinstance(value, np.ndarray) and is_kind(self._inputs[index], "llvm"):
            if index in self._anywhere and value.flags.aligned:
                return share_array(value)
            if not is_aligned(value):
                return machine.staging.copied(index, value)[0]
        return placed(value, self._inputs[index])

    def invoke_placed(
        self,
        inputs: Sequence[tvm.runtime.Tensor],
        runs: int = 1,
        wanted: Entry | None = None,
    ) -> None:
        """Run an entry on inputs from :meth:`place`, so many times in a row, to the end."""
        self.check_process()
        function = (wanted or self._everything).function
        with self._machines[0].lock, self._running(function):
            configure_pool(self.num_threads)
            main = self._main(self._machines[0], function)
            for _ in range(runs):
                main(*inputs, self._weights)
            self.synchronize()

    @once
    def stages(self) -> tuple[Stage, ...]:
        """Parts of ``main`` that devices can run for different frames at the same time.

        One behind the other they do what ``main`` does, with results on the CPU. None for a model
        on one device.
        """
        return find_stages(self._make_machine, self.kinds)

    def start_thread(self) -> None:
        """Let the calling thread, which serves one stream, have the workers of kernels."""
        configure_pool(self.num_threads, grows=False)

    def run_stage(self, number: int, given: Sequence[Bound] | StagedFrame) -> StagedFrame:
        """Run a stage on the model's inputs, or on what the stage before it made of them."""
        stage = self.stages[number]
        with stage.lock, self._running(number, stage.kind):
            if isinstance(given, StagedFrame):
                return StagedFrame(stage.function(*given.values, self._weights), given.taken)
            tensors = self.place(given)
            taken = [tensor.data_ptr() for tensor in tensors]
            return StagedFrame(stage.function(*tensors, self._weights), taken)

    def results_of(self, frame: StagedFrame) -> list[tvm.runtime.Tensor]:
        """What the last stage returned, as the caller's own like the results of :meth:`invoke`."""
        with self._sharing():
            return self._own(frame.values, frame.taken)

    def device_programs(self) -> bytes:
        """The kernels as the drivers of this machine built them; empty without OpenCL."""
        return b"".join(
            opencl.save_programs(self._module, device.index)
            for device in self._devices
            if is_kind(device, "opencl")
        )

    def synchronize(self) -> None:
        """Wait until every device has done its work."""
        for device in self._devices:
            if not is_kind(device, "llvm"):
                device.sync()

    def instrumented(
        self, inputs: Sequence[Bound], instrument: Instrument, wanted: Entry | None = None
    ) -> None:
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
        with _interrupt_deferred(), self._machines[0].lock, self._running(ALL):
            configure_pool(self.num_threads)
            # What a GPU's driver replays calls nothing that an instrument could see.
            name = (wanted or self._everything).function
            recorded = machine.module.implements_function(kernel_by_kernel(name))
            main = entry(machine, kernel_by_kernel(name) if recorded else name)
            main(*self.place(inputs, wanted), self._weights)

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
            reason = opencl.recording_failure(device.index) if is_kind(device, "opencl") else ""
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
        for machine in self._machines:
            if not machine.lock.locked():
                return machine
        return self._machines[next(self._turn) % len(self._machines)]

    def _running(self, function: Hashable, kind: str = "") -> AbstractContextManager[Any]:
        """What has to be so while an entry runs, or a stage, on a `kind` of device."""
        if self._gpu is None and self._cuda is None and not self._streams:
            return self._parts.whole
        return self._arranged(function, kind)

    @contextmanager
    def _arranged(self, function: Hashable, kind: str) -> Iterator[None]:
        """With a driver that records, weights that are streamed or another device.

        A run that records, or reads weights part by part, calls Python, which may not raise
        KeyboardInterrupt there.
        """
        may_record = self._cuda is not None and function not in self._recorded_all
        with (
            _interrupt_deferred() if self._streams or may_record else nullcontext(),
            self._stream(),
            self._parts.running(on_gpu=kind != "llvm"),
            # The last that a run waits for: whoever records waits for all that share the driver.
            self._sharing() as turn,
        ):
            yield
        if turn is not None and turn.recorded_all:
            self._recorded_all.add(function)

    def _sharing(self) -> AbstractContextManager[Turn | None]:
        """Work with CUDA, which no other thread's recording may meet."""
        return CAPTURES.shared() if self._cuda else nullcontext()

    def _stream(self) -> AbstractContextManager[Any]:
        """Let CUDA work go to the default stream, whatever stream the caller has set.

        TVM's own copies always do, and producers of inputs are asked to be ready for it.
        """
        return tvm_ffi.use_raw_stream(self._cuda, 0) if self._cuda else nullcontext()

    def _own(
        self, outputs: Sequence[tvm.runtime.Tensor], inputs: Iterable[int]
    ) -> list[tvm.runtime.Tensor]:
        """Outputs that are an input, given by its address, a weight or another output, copied."""
        taken = set(inputs)
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


def _inputs_anywhere(machine: VirtualMachine) -> frozenset[int]:
    """The inputs that need not begin on 64 bytes; none in artifacts of earlier versions."""
    if not machine.module.implements_function(UNALIGNED):
        return frozenset()
    return frozenset(int(index) for index in machine[UNALIGNED]())


def _launches_recorded(machine: VirtualMachine, devices: Sequence[tvm.runtime.Device]) -> bool:
    """Whether to run entries with recordings, where there are any: on OpenCL where the driver can.

    Without, what leads to them costs the host 0.5 µs a kernel.
    """
    records = not any(
        is_kind(device, "opencl") and opencl.command_buffers(device.index)["missing"]
        for device in devices
    )
    return records or not machine.module.implements_function(kernel_by_kernel(ALL))
