"""A compiled model: run it, time it, look inside it, save it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import tvm

from tvm_edge.errors import DeviceUnavailableError, TvmEdgeError
from tvm_edge.interrupts import hold_interrupts
from tvm_edge.report import Launches
from tvm_edge.runtime.artifact import Artifact, artifact_bytes, write_artifact
from tvm_edge.runtime.benchmark import BenchmarkResult, check_count, measure
from tvm_edge.runtime.devices import device_index, device_of, open_device
from tvm_edge.runtime.dlpack import host_array, numpy_dtype
from tvm_edge.runtime.frame_steps import frame_steps
from tvm_edge.runtime.frame_stream import FrameStream
from tvm_edge.runtime.info import ModelInfo, versions
from tvm_edge.runtime.inputs import Bound, as_tensors, random_inputs, unaligned_zeros
from tvm_edge.runtime.library import Library, check_host
from tvm_edge.runtime.model_base import ModelBase
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.once import once
from tvm_edge.runtime.out_of_memory import raises_memory_error
from tvm_edge.runtime.pending import BoundedQueue
from tvm_edge.runtime.profile import Profile, profile_runs
from tvm_edge.runtime.session import Instrument, Session
from tvm_edge.runtime.threads import Threads, resolve_threads

__all__ = ["CompiledModel"]

_LOG = logging.getLogger(__name__)


class CompiledModel(ModelBase):
    """A model for one target; made by :func:`tvm_edge.compile` and :func:`tvm_edge.load`.

    Every method may be called from any number of threads at once, on one model or several, and
    gives what it gives alone, bit for bit. All models of a process share their worker threads. Runs
    of a CPU model happen at the same time as long as their threads fit the CPUs: ``num_threads=1``
    on four cores, four runs, each with activations of its own. Otherwise, and on a GPU, they take
    turns. Python's lock is free while kernels run. A model on CPUs alone may be used in a process
    that forked after it was loaded.
    """

    def __init__(
        self,
        info: ModelInfo,
        library: Library,
        weights: Sequence[tvm.runtime.Tensor],
        threads: Threads | None = None,
        device_index: int = 0,
        artifact: Artifact | None = None,
    ) -> None:
        super().__init__(info)
        self._device_index = device_index
        plan = info.devices
        self._input_devices = [device_of(plan.kinds[i], device_index).handle for i in plan.inputs]
        self._artifact = artifact
        self._library = library
        self._weights = tuple(weights)
        self._threads = threads or resolve_threads(None)
        self._queue = BoundedQueue()
        self._unmeasured = frozenset({"first run"} if self.report.seconds else ())

    @property
    def _place(self) -> str:
        return self.report.target

    @once
    @raises_memory_error
    @hold_interrupts()
    def _session(self) -> Session:
        target = self._info.target
        check_host(f"the model {self.report.model!r}", target["architecture"], target["features"])
        for kind in self._info.devices.kinds:
            # Before the library, which may hold code that no loader here knows.
            open_device(kind, self._device_index)
        return Session(
            self._code[1],
            self._weights,
            self._info,
            self._threads,
            self._device_index,
            self._artifact.native if self._artifact else None,
        )

    @once
    @raises_memory_error
    @hold_interrupts()
    def _code(self) -> tuple[Library, tvm.runtime.Module]:
        """Code in work-groups that the driver allows, and the library it is from."""
        module = self._library.module()
        if not self._library.has_smaller:
            return self._library, module
        device = device_of(str(self._info.target["kind"]), self._device_index)
        too_large = device.too_large_kernels(module)
        if not too_large:
            return self._library, module
        _LOG.info(
            "%s: the driver allows smaller work-groups than chosen for %s; all are smaller now",
            self.report.model,
            ", ".join(too_large),
        )
        smaller = self._library.smaller()
        return smaller, smaller.module()

    def build_programs(
        self, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> None:
        """Have the driver build the kernels now, and not in the first run.

        Does nothing for another device than the one that the model is compiled for. What fails here
        fails in the first run again, and says so there.

        Parameters
        ----------
        progress : callable
            Called with the number of kernels that are built, and of all; what it raises is raised.
        """
        device = device_of(str(self._info.target["kind"]), self._device_index)
        if not device.builds_for(str(self._info.target["device"]["name"])):
            return
        names = [kernel.name for kernel in self.report.kernels]
        raised: list[BaseException] = []

        def report(done: int, total: int) -> None:
            try:
                progress(done, total)
            except BaseException as err:
                raised.append(err)  # TVM's C++ makes another error of it
                raise

        try:
            session = self._session
            # One that streams its weights would read all of them.
            if device.generates_at_launch and not session.streams:
                self._launch_each(session, names, report)
        except (TvmEdgeError, RuntimeError) as err:
            if raised:
                raise raised[0] from None
            _LOG.info("%s: the driver cannot build its kernels now: %s", self.report.model, err)

    def _launch_each(
        self, session: Session, names: Sequence[str], progress: Callable[[int, int], None]
    ) -> None:
        """Run once, kernel by kernel."""
        launched = 0

        def count(name: str, before: bool) -> None:
            nonlocal launched
            if name in names and not before:
                launched += 1
                progress(min(launched, len(names)), len(names))

        session.run_instrumented(self._every, self._zeros(self._every), count)

    def _run(
        self,
        inputs: Mapping[str, Any],
        chosen: Models,
        wanted: Mapping[int, str],
        device_outputs: bool,
    ) -> dict[str, Any]:
        if "first run" in self._unmeasured:  # of a model that was compiled here
            return self._first_run(inputs, chosen, wanted, device_outputs)
        bound = chosen.bind(inputs, self._input_devices)
        results = self._session.run(chosen, bound, wanted, device_outputs)
        return chosen.named(results, wanted, device_outputs)

    def _first_run(self, *arguments: Any) -> dict[str, Any]:
        """Run, and report how long it took."""
        self._unmeasured = frozenset()
        start = perf_counter()
        results = self._run(*arguments)
        self.report.seconds.setdefault("first run", round(perf_counter() - start, 3))
        return results

    @raises_memory_error
    def run_async(
        self,
        inputs: Mapping[str, Any],
        *,
        models: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
        max_pending: int = 256,
    ) -> Future[dict[str, Any]]:
        """Run the model in the background.

        Submissions run one after the other, in order, on a thread of the model's own. What waits
        still runs when the model is dropped, and before the interpreter exits, unless its future is
        cancelled.

        Parameters
        ----------
        inputs : mapping of str to array
            As for :meth:`run`. Data in host memory is copied before the call returns; leave a
            tensor on a GPU as it is until the future is done.
        models, outputs, device_outputs
            As for :meth:`run`.
        max_pending : int
            Submissions that are not done, of which each keeps a copy of its inputs: with so many,
            the call waits until there are fewer.

        Returns
        -------
        concurrent.futures.Future
            Future of what :meth:`run` returns; ``await asyncio.wrap_future(future)`` waits for it.

        Raises
        ------
        InputError, DeviceUnavailableError, ArtifactError
            At once, as :meth:`run` does. What goes wrong while the model runs comes from the
            future.
        """
        check_count("max_pending", max_pending, 1)
        chosen = self._chosen(models)
        wanted, bound = chosen.wanted(outputs), chosen.bind(inputs, self._input_devices)
        session = self._session
        session.check_process()
        kept = session.copied(chosen, bound)
        return self._queue.submit(
            max_pending, self._finish, session, chosen, kept, wanted, device_outputs
        )

    @staticmethod
    def _finish(  # without the model, which may be dropped meanwhile
        session: Session,
        chosen: Models,
        bound: Sequence[Bound],
        wanted: Mapping[int, str],
        device_outputs: bool,
    ) -> dict[str, Any]:
        results = session.run(chosen, bound, wanted, device_outputs)
        return chosen.named(results, wanted, device_outputs)

    def _stream(
        self, frames: Iterable[Mapping[str, Any]], depth: int, wanted: Mapping[int, str]
    ) -> FrameStream:
        session = self._session
        copied, every, devices = session.frame_inputs(), self._every, self._input_devices
        process = os.getpid()

        def check() -> None:
            session.check_process()
            if os.getpid() != process:
                raise DeviceUnavailableError(
                    "this stream was begun before the process forked, and its threads stayed "
                    "behind; begin one in the child"
                )

        def prepare(frame: Mapping[str, Any], slot: int) -> Sequence[Bound]:
            return copied(slot, every.bind(frame, devices))

        return FrameStream(frames, depth, prepare, frame_steps(session, every, wanted), check)

    def on_device(self, device: str) -> CompiledModel:
        """Return this model on another device of its kind.

        Parameters
        ----------
        device : str
            ``"opencl:1"`` is the second OpenCL device.

        Raises
        ------
        InputError
            Not the name of a device.
        DeviceUnavailableError
            A device that the code is not made for.
        """
        index = device_index(device, str(self._info.target["kind"]))
        return CompiledModel(
            self._info, self._library, self._weights, self._threads, index, self._artifact
        )

    @staticmethod
    def _zeros(chosen: Models) -> list[Bound]:
        return [
            unaligned_zeros(spec.typical_shape, numpy_dtype(spec.dtype)) for spec in chosen.inputs
        ]

    def _warm_up(self, chosen: Models) -> None:
        session = self._session
        zeros = self._zeros(chosen)
        memory = self.report.memory
        streams = memory is not None and any(p.taken and p.pipelined for p in memory.plans)
        if chosen.asked is not None or not streams:
            session.warm_up(chosen, zeros)
        if chosen.asked is None and session.stages:
            state: Any = as_tensors(zeros)
            for step in frame_steps(session, chosen, chosen.every_output):
                state = step.run(state)

    def _benchmark(
        self, inputs: Mapping[str, Any] | None, chosen: Models, warmup: int, repeat: int
    ) -> BenchmarkResult:
        values = random_inputs(chosen.inputs) if inputs is None else inputs
        session = self._session
        placed = session.place(chosen, chosen.bind(values, self._input_devices))

        def on_device() -> None:
            session.run_placed(chosen, placed)

        return measure(
            on_device,
            lambda: self.run(values, models=chosen.asked),
            warmup=warmup,
            repeat=repeat,
            num_threads=self._threads.count,
        )

    def seconds_in_a_row(self, inputs: Mapping[str, Any], runs: int) -> float:
        """Return the mean time of runs that are enqueued one after another and waited for once.

        The inputs are on the device before and the outputs stay there: it is the device's time, or
        the host's where enqueuing a run is slower.

        Parameters
        ----------
        inputs : mapping
        runs : int
        """
        session = self._session
        placed = session.place(self._every, self._every.bind(inputs, self._input_devices))
        session.synchronize()
        start = perf_counter()
        session.run_placed(self._every, placed, runs)
        return (perf_counter() - start) / runs

    def _profile(self, inputs: Mapping[str, Any] | None, chosen: Models, repeat: int) -> Profile:
        values = random_inputs(chosen.inputs) if inputs is None else inputs
        session, bound = self._session, chosen.bind(values, self._input_devices)
        session.run(chosen, bound, {})

        def instrumented(instrument: Instrument) -> None:
            session.run_instrumented(chosen, bound, instrument)

        report = self.report
        launches = self._code[0].launches or Launches(
            report.kernels, tuple(model.kernels for model in report.models)
        )
        alone = [launches.alone[number] for number in chosen.numbers]
        kernels = tuple(chain(*alone)) if alone else launches.kernels
        return profile_runs(instrumented, kernels, repeat)

    @hold_interrupts()
    def export(self, path: str | os.PathLike[str], *, embed_programs: bool = False) -> Path:
        """Write the model as one file that :func:`tvm_edge.load` reads without a compiler.

        Parameters
        ----------
        path : path
        embed_programs : bool
            Add OpenCL kernels as this machine's driver builds them, so that loading on a machine
            with the same device and driver builds none; others build from source as ever.

        Raises
        ------
        ArtifactError
            The folder is missing or not writable, or the disk is full; nothing is left behind.
        MissingDependencyError
            No C++ compiler to link with.
        """
        return write_artifact(path, *self._members(embed_programs))

    @hold_interrupts()
    def to_bytes(self, *, embed_programs: bool = False) -> bytes:
        """Return what :meth:`export` writes, for :func:`tvm_edge.load`.

        Raises
        ------
        ArtifactError
            The temporary folder is full or not writable.
        MissingDependencyError
            No C++ compiler to link with.
        """
        return artifact_bytes(*self._members(embed_programs))

    def _members(self, embed_programs: bool) -> tuple[Any, ...]:
        """Return what an artifact is made of."""
        # Without the compiler's wall-clock times: equal models give equal files.
        info = replace(self._info, report=replace(self.report, seconds={}))
        programs = self._device_programs() if embed_programs else b""
        weights = [host_array(weight) for weight in self._weights]
        library, link_smaller = self._library, None
        if library.has_smaller:
            smaller = library.smaller()
            link_smaller = smaller.link
            info = replace(info, smaller=smaller.launches)
        manifest = {"versions": versions(), **info.to_dict()}
        check = self._artifact.check if self._artifact else lambda: None
        return manifest, library.link, weights, programs, link_smaller, check

    def _device_programs(self) -> bytes:
        """Return the kernels as the drivers of this machine built them, as far as they tell."""
        self._session.check_process()
        devices = [device_of(kind, self._device_index) for kind in self._info.devices.kinds]
        return b"".join(device.programs(self._code[1]) for device in devices)
