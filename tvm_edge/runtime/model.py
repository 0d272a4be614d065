"""A compiled model: run it, time it, look inside it, save it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import tvm

from tvm_edge import opencl
from tvm_edge.report import Launches
from tvm_edge.runtime.artifact import write_artifact
from tvm_edge.runtime.benchmark import BenchmarkResult, measure
from tvm_edge.runtime.described import DescribedModel
from tvm_edge.runtime.dlpack import host_array, numpy_dtype
from tvm_edge.runtime.info import ModelInfo, versions
from tvm_edge.runtime.inputs import Bound, bind_inputs, random_inputs, stored
from tvm_edge.runtime.library import Library, check_host
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.once import once
from tvm_edge.runtime.outputs import checked_outputs, named_outputs, wanted_outputs
from tvm_edge.runtime.placement import device_index, input_device, open_devices
from tvm_edge.runtime.profile import Profile, profile_runs
from tvm_edge.runtime.session import Instrument, Session
from tvm_edge.runtime.stages import StagedFrame
from tvm_edge.runtime.staging import FrameInputs, aligned_copy, unaligned_zeros
from tvm_edge.runtime.stream import FrameStream, Step
from tvm_edge.runtime.threads import resolve_num_threads

__all__ = ["CompiledModel"]

_LOG = logging.getLogger(__name__)


class CompiledModel(DescribedModel):
    """A model for one target; made by :func:`tvm_edge.compile` and :func:`tvm_edge.load`.

    Every method may be called from any number of threads at once, on one model or several, and
    gives what it gives alone, bit for bit. Runs of a CPU model happen at the same time as long as
    their threads fit the CPUs: ``num_threads=1`` on four cores, four runs, each with activations of
    its own. Otherwise, and on a GPU, they take turns. Python's lock is free while kernels run.
    """

    def __init__(
        self,
        info: ModelInfo,
        library: Library,
        weights: Sequence[tvm.runtime.Tensor],
        num_threads: int | None = None,
        device_index: int = 0,
        uploaded: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(info)
        self._every = Models(info)
        self._device_index = device_index
        plan = info.devices
        self._input_devices = [input_device(plan.kinds[i], device_index) for i in plan.inputs]
        self._uploaded = uploaded
        self._library = library
        self._weights = tuple(weights)
        self._num_threads = resolve_num_threads(num_threads)
        # Its thread starts with the first submission, and ends with the model.
        self._queue = ThreadPoolExecutor(1, thread_name_prefix="tvm-edge")

    def __repr__(self) -> str:
        inputs = ", ".join(str(spec) for spec in self.inputs)
        return f"<CompiledModel {self.report.model} on {self.report.target}: {inputs}>"

    @once
    def _session(self) -> Session:
        target = self._info.target
        check_host(f"the model {self.report.model!r}", target["architecture"], target["features"])
        plan = self._info.devices
        # Before the library, which may hold code that no loader here knows.
        devices = open_devices(plan.kinds, self._device_index)
        return Session(
            self._code[1],
            self._weights,
            self._num_threads,
            plan,
            devices,
            self._uploaded,
            max((s.part_bytes for s in self.report.splits if s.device != "llvm"), default=0),
        )

    @once
    def _code(self) -> tuple[Library, tvm.runtime.Module]:
        """The code in work-groups that the driver allows."""
        module = self._library.module()
        if not self._library.has_smaller:
            return self._library, module
        too_large = opencl.too_large_kernels(module, self._device_index)
        if not too_large:
            return self._library, module
        _LOG.info(
            "%s: the driver allows smaller work-groups than chosen for %s; all are smaller now",
            self.report.model,
            ", ".join(too_large),
        )
        smaller = self._library.smaller()
        return smaller, smaller.module()

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        models: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
    ) -> dict[str, Any]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping of str to array
            NumPy arrays or anything with ``__dlpack__`` (tensors of PyTorch, CuPy, JAX, TVM), of
            exactly the declared shapes and types. Contiguous data on the device that the model
            wants it on is used where it is, if it begins on 64 bytes, and on a CPU mostly wherever
            it begins; other data is copied, through the host only between devices of different
            kinds. CUDA tensors may have work pending on any stream of their library, TVM's own must
            be finished.
        models : sequence of str, optional
            Of an artifact with several, those to run; default all, by one function in which kernels
            of different models may be merged. Inputs of the others are not needed, and not read
            where they are given. Some of several run one after the other.
        outputs : sequence of str, optional
            Names of the outputs to return; default all of the models that run.
        device_outputs : bool
            Return ``tvm.runtime.Tensor`` where they are instead of NumPy arrays. Other libraries
            read them through DLPack (``torch.from_dlpack``), except OpenCL's, which are for TVM,
            :func:`tvm_edge.opencl.host_view` and other models. They are the caller's: they outlive
            the model, and nothing writes to them again. CUDA's are finished at return; OpenCL
            kernels may still be running, and whatever reads the tensor waits for them.

        Returns
        -------
        dict of str to np.ndarray or tvm.runtime.Tensor

        Raises
        ------
        InputError
            A wrong name, shape or type, or data that cannot be read.
        DeviceUnavailableError, ArtifactError
            The model is compiled for another machine.
        """
        chosen = self._chosen(models)
        wanted, bound = self._wanted(chosen, outputs), self._bind(inputs, chosen)
        return self._finish(self._session, chosen, bound, wanted, device_outputs)

    def run_async(
        self,
        inputs: Mapping[str, Any],
        *,
        models: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
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

        Returns
        -------
        concurrent.futures.Future
            Of what :meth:`run` returns; ``await asyncio.wrap_future(future)`` waits for it.

        Raises
        ------
        InputError, DeviceUnavailableError, ArtifactError
            At once, as :meth:`run` does. What goes wrong while the model runs comes from the
            future.
        """
        chosen = self._chosen(models)
        wanted, bound = self._wanted(chosen, outputs), self._bind(inputs, chosen)
        session = self._session
        session.check_process()  # a forked child has no thread that would take it
        kept = [aligned_copy(v) if isinstance(v, np.ndarray) else v for v in bound]
        return self._queue.submit(self._finish, session, chosen, kept, wanted, device_outputs)

    def _chosen(self, models: Sequence[str] | None) -> Models:
        return self._every if models is None else Models(self._info, models)

    def _wanted(self, chosen: Models, outputs: Sequence[str] | None) -> dict[int, str]:
        chosen.check_outputs(outputs)
        return wanted_outputs(chosen.outputs, outputs)

    def _bind(self, inputs: Mapping[str, Any], chosen: Models | None = None) -> list[Bound]:
        chosen = chosen or self._every
        devices = [self._input_devices[i] for entry in chosen.entries for i in entry.inputs]
        bound = bind_inputs(chosen.inputs, chosen.given(inputs), devices)
        return [stored(value, spec) for value, spec in zip(bound, chosen.inputs, strict=True)]

    def stream(
        self,
        frames: Iterable[Mapping[str, Any]],
        depth: int = 2,
        *,
        outputs: Sequence[str] | None = None,
    ) -> FrameStream:
        """Run the model on frame after frame, several at a time.

        A model on several devices works on one frame on each: while the CPU has one, the GPU has
        the next. On one device frames are taken while the one before is worked on.

        Parameters
        ----------
        frames : iterable of mapping
            Of each frame the inputs, as for :meth:`run`. Data in host memory is copied when a frame
            is taken, so a camera may write the next into the same array; leave a tensor on a GPU
            as it is until the frame's outputs are there.
        depth : int
            How many frames may be on their way: taken from `frames`, and their outputs not yet
            taken from the stream. Memory for activations grows with it, and streams have theirs
            beside that of runs. With 2 each of two devices has a frame; with 3 a device whose times
            vary finds its next frame waiting; 1 is :meth:`run` for one frame after the other.
        outputs : sequence of str, optional
            Names of the outputs to return; default all.

        Returns
        -------
        FrameStream
            An iterator over the frames' outputs, in order; close it, or use it in a ``with`` block,
            to end early.

        Raises
        ------
        InputError
            `frames` is no iterable, `depth` no positive number, or an output has another name. What
            is wrong with a frame is raised in its turn, and the stream goes on behind it.
        DeviceUnavailableError, ArtifactError
            The model is compiled for another machine.

        Examples
        --------
        >>> with model.stream(camera) as stream:    # doctest: +SKIP
        ...     for outputs in stream:
        ...         show(outputs["boxes"])
        """
        wanted = wanted_outputs(self.outputs, outputs)
        session = self._session
        steps = _frame_steps(session, partial(named_outputs, wanted=wanted, specs=self.outputs))
        return FrameStream(frames, depth, FrameInputs(self._bind), steps, session.check_process)

    @staticmethod
    def _finish(  # without the model, which may be dropped meanwhile
        session: Session,
        chosen: Models,
        bound: Sequence[Bound],
        wanted: Mapping[int, str],
        device_outputs: bool,
    ) -> dict[str, Any]:
        tensors: list[tvm.runtime.Tensor] = []
        for entry, own in chosen.split(bound):
            tensors += checked_outputs(session.invoke(own, entry), len(entry.outputs))
        return named_outputs(tensors, wanted, chosen.outputs, device_outputs)

    def on_device(self, device: str) -> CompiledModel:
        """The same model on another device of its kind.

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
            self._info, self._library, self._weights, self._num_threads, index, self._uploaded
        )

    def warmup(self, *, models: Sequence[str] | None = None) -> None:
        """Pay the costs of a first run now, so that the first frame takes no longer than others.

        Programs, threads, memory pools, page faults of the weights; of every virtual machine that
        runs may happen on at the same time, and of the stages of a stream. Where the plan for a
        ``memory_budget`` is to pipeline frames, of the stages alone: runs beside a stream have
        activations of their own, which the plan has no room for.

        Parameters
        ----------
        models : sequence of str, optional
            Of the run that is to come, as for :meth:`run`.
        """
        chosen, session = self._chosen(models), self._session
        zeros = [
            unaligned_zeros(spec.static_shape, numpy_dtype(spec.stored_as or spec.dtype))
            for spec in chosen.inputs
        ]
        every = wanted_outputs(chosen.outputs, None)
        memory = self.report.memory
        streams = memory is not None and any(p.taken and p.pipelined for p in memory.plans)
        if models is not None or not streams:
            results: list[tvm.runtime.Tensor] = []
            for entry, own in chosen.split(zeros):
                results += checked_outputs(session.warm_up(own, entry), len(entry.outputs))
            named_outputs(results, every, chosen.outputs)
        if models is None and session.stages:
            state: Any = zeros
            finish = partial(named_outputs, wanted=every, specs=chosen.outputs)
            for step in _frame_steps(session, finish):
                state = step.run(state)

    def benchmark(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        models: Sequence[str] | None = None,
        warmup: int = 3,
        repeat: int = 20,
    ) -> BenchmarkResult:
        """Measure latency.

        Parameters
        ----------
        inputs : mapping, optional
            Default: seeded random values.
        models : sequence of str, optional
            As for :meth:`run`.
        warmup, repeat : int
            Runs before, and runs measured.
        """
        chosen = self._chosen(models)
        values = random_inputs(chosen.inputs) if inputs is None else inputs
        session = self._session
        placed = [
            (entry, session.place(own, entry))
            for entry, own in chosen.split(self._bind(values, chosen))
        ]

        def on_device() -> None:
            for entry, own in placed:
                session.invoke_placed(own, wanted=entry)

        return measure(
            on_device,
            lambda: self.run(values, models=models),
            warmup=warmup,
            repeat=repeat,
            num_threads=self._num_threads,
        )

    def seconds_in_a_row(self, inputs: Mapping[str, Any], runs: int) -> float:
        """Mean time of runs that are enqueued one behind another and waited for once.

        The inputs are on the device before and the outputs stay there: it is the device's time, or
        the host's where a run takes longer to enqueue.

        Parameters
        ----------
        inputs : mapping
        runs : int
        """
        session = self._session
        placed = session.place(self._bind(inputs))
        session.synchronize()
        start = perf_counter()
        session.invoke_placed(placed, runs)
        return (perf_counter() - start) / runs

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        models: Sequence[str] | None = None,
        repeat: int = 10,
    ) -> Profile:
        """Measure every kernel.

        Parameters
        ----------
        inputs : mapping, optional
            Default: seeded random values.
        models : sequence of str, optional
            As for :meth:`run`.
        repeat : int
            Runs to take the median of.
        """
        chosen = self._chosen(models)
        values = random_inputs(chosen.inputs) if inputs is None else inputs
        runs = list(chosen.split(self._bind(values, chosen)))
        for entry, own in runs:
            self._session.invoke(own, entry)

        def instrumented(instrument: Instrument) -> None:
            for entry, own in runs:
                self._session.instrumented(own, instrument, entry)

        report = self.report
        launches = self._code[0].launches or Launches(
            report.kernels, tuple(model.kernels for model in report.models)
        )
        alone = [launches.alone[number] for number in chosen.numbers]
        kernels = tuple(chain(*alone)) if alone else launches.kernels
        return profile_runs(instrumented, kernels, repeat)

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
        # Without the compiler's wall-clock times: equal models give equal files.
        info = replace(self._info, report=replace(self.report, seconds={}))
        programs = self._session.device_programs() if embed_programs else b""
        weights = [host_array(weight) for weight in self._weights]
        library, link_smaller = self._library, None
        if library.has_smaller:
            smaller = library.smaller()
            link_smaller = smaller.link
            info = replace(info, smaller=smaller.launches)
        manifest = {"versions": versions(), **info.to_dict()}
        return write_artifact(path, manifest, library.link, weights, programs, link_smaller)


def _frame_steps(
    session: Session, finish: Callable[[list[tvm.runtime.Tensor]], dict[str, Any]]
) -> list[Step]:
    """The steps of a stream's frame, from a model's inputs to what `finish` makes of its results.

    Parameters
    ----------
    session : Session
        On one device a frame is one run of ``main``.
    finish : callable
    """
    if not session.stages:
        kind = session.kinds[0]
        return [Step(kind, lambda inputs: finish(session.invoke(inputs)), session.start_thread)]

    def run(number: int, state: Sequence[Bound] | StagedFrame) -> Any:
        frame = session.run_stage(number, state)
        if number + 1 < len(session.stages):
            return frame
        return finish(session.results_of(frame))

    return [
        Step(stage.kind, partial(run, number), session.start_thread)
        if stage.kind == "llvm"
        else Step(stage.kind, partial(run, number))
        for number, stage in enumerate(session.stages)
    ]
