"""Session: a loaded library on its devices, with TVM's virtual machines and the weights."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvm_edge.errors import DeviceUnavailableError, TvmEdgeWarning
from tvm_edge.host import allowed_cpus
from tvm_edge.interrupts import hold_interrupts
from tvm_edge.native import kernels_on_pool
from tvm_edge.runtime.device_plan import STREAMED, DevicePlan
from tvm_edge.runtime.devices import RuntimeDevice
from tvm_edge.runtime.dlpack import share_array
from tvm_edge.runtime.entry import ALL, UNALIGNED, Entry, Main, by_shape, entry, kernel_by_kernel
from tvm_edge.runtime.forks import survive_forks
from tvm_edge.runtime.frame_stages import Stage, StagedFrame, find_stages
from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.once import once
from tvm_edge.runtime.seen_shapes import SeenShapes
from tvm_edge.runtime.shape_recordings import ShapeRecordings, making_way
from tvm_edge.runtime.staging import Staging, is_aligned
from tvm_edge.runtime.threads import Threads
from tvm_edge.runtime.weight_stream import WeightStream

__all__ = ["Instrument", "Session"]

Instrument = Callable[[str, bool], None]
"""Called with a kernel's name, before (True) and after (False) its launch."""


class _Machine:
    """TVM's virtual machines for one run at a time, and the memory it takes inputs in.

    Each entry has its own: a machine tells its recordings apart by numbers that the entries use
    alike.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mains: dict[str, Main] = {}  # made when they are first needed
        self.recordings: dict[str, ShapeRecordings | None] = {}
        self.staging = Staging()


class Session:
    """A library on its devices.

    Runs at the same time need virtual machines of their own, which share code and weights. There
    is one for each `threads.count` of the CPUs that the process may use: more would only wait for
    each other's threads. A GPU has one queue, so its models have one machine. Runs that find none
    free take turns.

    Parameters
    ----------
    module : tvm.runtime.Module
    weights : sequence of tvm.runtime.Tensor
        In host memory. A device that is the CPU reads them there; those of another are copied to
        it: once, or in every run those that the plan says are streamed.
    threads : Threads
    plan : DevicePlan
        Where inputs and weights belong.
    devices : sequence of RuntimeDevice
        Those of the plan, opened.
    uploaded : callable, optional
        Called with the position of each weight that a device has a copy of.
    largest_part : int
        Bytes of the largest of the streamed weights that are copied, 0 if there is none.
    kept_shapes : int
        Shapes whose memory is kept from run to run; 0 where runs do not differ in shapes.
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        weights: Sequence[tvm.runtime.Tensor],
        threads: Threads,
        plan: DevicePlan,
        devices: Sequence[RuntimeDevice],
        uploaded: Callable[[int], None] | None = None,
        largest_part: int = 0,
        kept_shapes: int = 0,
    ) -> None:
        self.threads = threads
        self.devices = tuple(devices)
        gpu = next((device for device in devices if not device.is_host), None)
        self._main_device = gpu or self.devices[0]
        self._inputs = [self.devices[d] for d in plan.inputs]
        self._module = module
        for device in devices:
            device.build(module)
        cpus = len(threads.cpus or allowed_cpus())
        machines = cpus // threads.count if gpu is None else 1
        self._machines = [_Machine() for _ in range(max(1, machines))]
        with kernels_on_pool():  # code in memory is made when its functions are looked up
            first = self._make_machine()
        self._anywhere = _inputs_anywhere(first)
        self._everything = Entry(ALL, tuple(range(len(plan.inputs))), ())
        self._implements: Callable[[str], bool] = first.module.implements_function
        self._replays = all(device.replays_launches for device in self.devices)
        # Entries and stages, of which no run calls Python any more.
        self._recorded_all: set[Hashable] = set()
        self._machines[0].mains[ALL] = entry(first, self._name_of(ALL))
        self._has_run = False
        self._turn = itertools.count()
        self._weights = tvm_ffi.Array(list(self._bind_weights(weights, plan, uploaded)))
        self._weight_memory = frozenset(weight.data_ptr() for weight in self._weights)
        streamed = plan.weights.count(STREAMED)
        self._shapes = SeenShapes(kept_shapes) if kept_shapes else None
        self._parts = WeightStream(weights, streamed, gpu, largest_part)
        self.streams = streamed > 0
        self._process = os.getpid()
        survive_forks(self)

    def _bind_weights(
        self,
        weights: Sequence[tvm.runtime.Tensor],
        plan: DevicePlan,
        uploaded: Callable[[int], None] | None,
    ) -> Iterator[tvm.runtime.Tensor]:
        """Yield each weight where its device reads it; those that are streamed, as they are."""
        for index, (weight, number) in enumerate(zip(weights, plan.weights, strict=True)):
            if number == STREAMED:
                yield weight
                continue
            device = self.devices[number]
            shared = device.share(weight)
            if shared is not None:
                yield shared
                continue
            with device.driver():
                copy = making_way(partial(device.upload, weight))
                if uploaded:
                    device.sync()  # the copy may still be reading
                    uploaded(index)
            yield copy

    def _make_machine(self) -> VirtualMachine:
        # The devices in the order of the code's virtual devices; TVM appends the CPU by itself.
        others = [device.handle for device in self.devices if not device.is_host]
        return VirtualMachine(self._module, others or tvm.cpu())

    def _name_of(self, function: str) -> str:
        """Return the form of an entry that the driver is better with.

        Where a driver does not replay launches, what leads to them costs the host 0.5 µs a kernel.
        """
        plain = kernel_by_kernel(function)
        return function if self._replays or not self._implements(plain) else plain

    def _main(self, machine: _Machine, function: str) -> Main:
        """Return an entry of a machine that is locked."""
        if function not in machine.mains:
            machine.mains[function] = entry(self._make_machine(), self._name_of(function))
        return machine.mains[function]

    def _call(
        self, machine: _Machine, function: str, inputs: Sequence[tvm.runtime.Tensor]
    ) -> list[tvm.runtime.Tensor]:
        """Run an entry of a machine that is locked."""
        main = self._main(machine, function)
        if function not in machine.recordings:
            machine.recordings[function] = self._recordings_of(function)
        recordings = machine.recordings[function]
        if recordings is None:
            return main(*inputs, self._weights)
        return recordings.run(inputs, self._weights, main)

    def _recordings_of(self, function: str) -> ShapeRecordings | None:
        """Return where an entry is recorded shape by shape; None if it is not."""
        if not self._replays or not self._implements(by_shape(function)):
            return None
        return ShapeRecordings.of(self._make_machine, function, self._main_device.handle)

    def place(
        self, inputs: Sequence[Bound], wanted: Entry | None = None
    ) -> list[tvm.runtime.Tensor]:
        """Return the inputs where an entry wants them, for any number of runs.

        TVM's own ``VirtualMachine.set_input`` sends all of them to the first device
        (apache/tvm#17884).
        """
        self.check_process()
        positions = (wanted or self._everything).inputs
        with self._main_device.driver():
            return [
                self._inputs[position].place(value)
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
            The process forked since the model was loaded, and part of it runs on a GPU.
        """
        self.check_process()
        outputs = self._invoke(self._choose(), inputs, wanted)
        if not self._has_run:
            self._has_run = True
            self._warn_of_recording()
        return outputs

    def warm_up(
        self, inputs: Sequence[Bound], wanted: Entry | None = None
    ) -> list[tvm.runtime.Tensor]:
        """Run an entry on every machine, so that no later run is a machine's first.

        Returns one machine's results.
        """
        self.check_process()
        for machine in self._machines:
            outputs = self._invoke(machine, inputs, wanted)
            if machine.recordings[(wanted or self._everything).function] is not None:
                outputs = self._invoke(machine, inputs, wanted)  # which records the shape
        return outputs

    def _invoke(
        self, machine: _Machine, inputs: Sequence[Bound], wanted: Entry | None
    ) -> list[tvm.runtime.Tensor]:
        wanted = wanted or self._everything
        with machine.lock, self._running(wanted.function), self.threads.running():
            return making_way(partial(self._staged_run, machine, inputs, wanted))

    def _staged_run(
        self, machine: _Machine, inputs: Sequence[Bound], wanted: Entry
    ) -> list[tvm.runtime.Tensor]:
        """Run an entry of a machine that is locked, by what has the driver."""
        tensors = [
            self._stage_input(machine, index, value)
            for index, value in zip(wanted.inputs, inputs, strict=True)
        ]
        if self._shapes is not None:
            self._shapes.note([tuple(tensor.shape) for tensor in tensors])
        taken = [tensor.data_ptr() for tensor in tensors]
        outputs = self._own(self._call(machine, wanted.function, tensors), taken)
        self._main_device.finish_run()
        return outputs

    def _stage_input(self, machine: _Machine, index: int, value: Bound) -> tvm.runtime.Tensor:
        """Return an input where the kernels of a locked machine take it, for one run."""
        device = self._inputs[index]
        if isinstance(value, np.ndarray) and device.is_host and value.size:
            if index in self._anywhere and value.flags.aligned:
                return share_array(value)
            if not is_aligned(value):
                return machine.staging.copied(index, value)[0]
        return device.place(value)

    def invoke_placed(
        self,
        inputs: Sequence[tvm.runtime.Tensor],
        runs: int = 1,
        wanted: Entry | None = None,
    ) -> None:
        """Run an entry on inputs from :meth:`place`, so many times in a row, to the end."""
        self.check_process()
        function = (wanted or self._everything).function
        with self._machines[0].lock, self._running(function), self.threads.running():
            for _ in range(runs):
                making_way(partial(self._call, self._machines[0], function, inputs))
            self.synchronize()

    @once
    def stages(self) -> tuple[Stage, ...]:
        """Parts of ``main`` that devices can run for different frames at the same time.

        One after the other they do what ``main`` does, with results on the CPU. None for a model
        on one device.
        """
        return find_stages(self._make_machine, self.devices)

    def start_thread(self) -> None:
        """Let kernels of the calling thread, which serves one stream, use the model's threads."""
        self.threads.use()

    def run_stage(self, number: int, given: Sequence[Bound] | StagedFrame) -> StagedFrame:
        """Run a stage on the model's inputs, or on what the stage before it made of them."""
        stage = self.stages[number]
        on_cpu = self.threads.running() if stage.device.is_host else nullcontext()
        with stage.lock, self._running(number, stage.device), on_cpu:
            if isinstance(given, StagedFrame):
                return StagedFrame(stage.function(*given.values, self._weights), given.taken)
            tensors = self.place(given)
            taken = [tensor.data_ptr() for tensor in tensors]
            return StagedFrame(stage.function(*tensors, self._weights), taken)

    def results_of(self, frame: StagedFrame) -> list[tvm.runtime.Tensor]:
        """Return the last stage's results, the caller's own like those of :meth:`invoke`."""
        with self._main_device.driver():
            return self._own(frame.values, frame.taken)

    def device_programs(self) -> bytes:
        """Return the kernels as the drivers of this machine built them, as far as they tell."""
        self.check_process()
        return b"".join(device.programs(self._module) for device in self.devices)

    def synchronize(self) -> None:
        """Wait until every device has done its work."""
        for device in self.devices:
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
        with (
            hold_interrupts(),
            self._machines[0].lock,
            self._running(ALL),
            self.threads.running(),
        ):
            # What a driver replays calls nothing that an instrument could see.
            name = (wanted or self._everything).function
            recorded = machine.module.implements_function(kernel_by_kernel(name))
            main = entry(machine, kernel_by_kernel(name) if recorded else name)
            main(*self.place(inputs, wanted), self._weights)

    def check_process(self) -> None:
        """Refuse to run on a GPU in a child that was forked off after the model was loaded.

        Raises
        ------
        DeviceUnavailableError
        """
        if os.getpid() != self._process and not self._survives_forks:
            # Drivers do not survive a fork, nor do the threads that read weights.
            raise DeviceUnavailableError(
                "this model was loaded before the process forked, and drivers of GPUs do not "
                "survive that; load it in the child, or use multiprocessing's 'spawn'"
            )

    @property
    def _survives_forks(self) -> bool:
        return all(device.is_host for device in self.devices) and not self.streams

    def run_locks(self) -> list[threading.Lock]:
        """Return the locks that runs hold, of which a fork waits for the end."""
        return [machine.lock for machine in self._machines] if self._survives_forks else []

    def replace_held(self, held: Collection[threading.Lock]) -> None:
        """In a forked child: take new machines in place of those in the middle of a run."""
        self._machines = [_Machine() if m.lock in held else m for m in self._machines]

    def _warn_of_recording(self) -> None:
        """Say, once a process, that a driver does not record what it says it can."""
        for device in self.devices:
            if reason := device.recording_failure():
                warnings.warn(
                    f"kernels are launched one by one because recording them failed ({reason}); "
                    "results are right; to not even try, set TVM_EDGE_OPENCL_COMMAND_BUFFER=0",
                    TvmEdgeWarning,
                    stacklevel=4,
                )

    def _choose(self) -> _Machine:
        """Return a machine that is free, as far as one can see, else the next in turn."""
        # The lock is taken by a `with` alone: between any other way of taking it and the
        # `try` that gives it back, Ctrl-C could come.
        for machine in self._machines:
            if not machine.lock.locked():
                return machine
        return self._machines[next(self._turn) % len(self._machines)]

    def _running(
        self, function: Hashable, device: RuntimeDevice | None = None
    ) -> AbstractContextManager[Any]:
        """Context for a run of an entry, or of a stage on a device."""
        if self._main_device.is_host and not self.streams:
            return self._parts.whole
        return self._arranged(function, device)

    @contextmanager
    def _arranged(self, function: Hashable, device: RuntimeDevice | None) -> Iterator[None]:
        """Context for a driver that records, weights that are streamed, or another device.

        A run that records, or reads weights part by part, calls Python, which may not raise
        KeyboardInterrupt there.
        """
        main = self._main_device
        may_record = main.may_capture and function not in self._recorded_all
        with (
            hold_interrupts() if self.streams or may_record else nullcontext(),
            main.default_stream(),
            self._parts.running(on_gpu=device is None or not device.is_host),
            # The last that a run waits for: whoever records waits for all that share the driver.
            main.driver() as turn,
        ):
            yield
        if turn is not None and turn.recorded_all:
            self._recorded_all.add(function)

    def _own(
        self, outputs: Sequence[tvm.runtime.Tensor], inputs: Iterable[int]
    ) -> list[tvm.runtime.Tensor]:
        """Return outputs; those that are an input, by its address, a weight or another, copied."""
        taken = set(inputs)
        owned = []
        for tensor in outputs:
            address = tensor.data_ptr()
            if address in taken or address in self._weight_memory:
                tensor = tensor.copyto(tensor.device)
            taken.add(address)
            owned.append(tensor)
        return owned


def _inputs_anywhere(machine: VirtualMachine) -> frozenset[int]:
    """The inputs that need not begin on 64 bytes; none in artifacts of earlier versions."""
    if not machine.module.implements_function(UNALIGNED):
        return frozenset()
    return frozenset(int(index) for index in machine[UNALIGNED]())
