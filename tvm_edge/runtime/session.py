"""Session: a library on its devices, in C++ (``native/csrc/session.cc``)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm

from tvm_edge.errors import InputError, TvmEdgeWarning
from tvm_edge.interrupts import hold_interrupts
from tvm_edge.native import native_errors, native_function, with_details
from tvm_edge.runtime.info import ModelInfo
from tvm_edge.runtime.inputs import Bound, as_tensors
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.signature import signature_json
from tvm_edge.runtime.threads import Threads

__all__ = ["Instrument", "Session"]

Instrument = Callable[[str, bool], None]
"""Called with a kernel's name, before (True) and after (False) its launch."""

Tensors = Sequence[tvm.runtime.Tensor]


class Session:
    """Code and weights on devices: inputs are checked, placed and run by C++.

    Parameters
    ----------
    code : tvm.runtime.Module
    weights : sequence of tvm.runtime.Tensor
        In host memory.
    info : ModelInfo
    threads : Threads
    device_index : int
        Number of the device among those of its kind.
    artifact : tvm.runtime.Module, optional
        From :func:`tvm_edge.runtime.artifact.read_artifact`, where the weights are from.
    """

    def __init__(
        self,
        code: tvm.runtime.Module,
        weights: Sequence[tvm.runtime.Tensor],
        info: ModelInfo,
        threads: Threads,
        device_index: int = 0,
        artifact: tvm.runtime.Module | None = None,
    ) -> None:
        self.kinds = info.devices.kinds
        with native_errors():
            self._functions = native_function("runtime.session")(
                code,
                list(weights),
                signature_json(info),
                [threads.count, threads.capacity, threads.spin_ns],
                list(threads.cpus),
                device_index,
                artifact,
            )
        self._runners: dict[Any, Any] = {}
        self._has_run = False
        self.streams = bool(self._functions["streams"]())

    def run(
        self,
        chosen: Models,
        inputs: Sequence[Bound],
        wanted: Mapping[int, str],
        device_outputs: bool = False,
    ) -> Tensors:
        """Run models on inputs in order, and return the results that are wanted, in order.

        They are the caller's: no later run, and no change to an input or to another result,
        changes them.

        Raises
        ------
        InputError
            A shape, type or value that does not fit.
        DeviceUnavailableError
            The process forked since the model was loaded, and part of it runs on a GPU.
        """
        key = (chosen.numbers, tuple(wanted), device_outputs)
        runner = self._runners.get(key)
        if runner is None:
            runner = self._functions["runner"](_names(chosen), list(wanted), device_outputs)
            self._runners[key] = runner
        try:
            results = runner(*inputs)
        except InputError as err:
            raise with_details(err) from None
        except RuntimeError as err:
            if "std::bad_alloc" not in str(err):
                raise
            raise MemoryError("TVM found no memory for a tensor or for code") from err
        if not self._has_run:
            self._has_run = True
            self._warn_of_recording()
        return (results,) if len(wanted) == 1 else results

    def warm_up(self, chosen: Models, inputs: Sequence[Bound]) -> None:
        """Run on every machine, so that no later run is a machine's first."""
        self._call("warm_up", _names(chosen), as_tensors(inputs))

    def place(self, chosen: Models, inputs: Sequence[Bound]) -> Tensors:
        """Return the inputs where their entries want them, for any number of runs."""
        placed: Tensors = self._call("place", _names(chosen), as_tensors(inputs))
        return placed

    def run_placed(self, chosen: Models, placed: Tensors, runs: int = 1) -> None:
        """Run on inputs from :meth:`place`, so many times in a row, to the end."""
        self._call("run_placed", _names(chosen), placed, runs)

    def run_instrumented(
        self, chosen: Models, inputs: Sequence[Bound], instrument: Instrument
    ) -> None:
        """Run once with `instrument` around every call of the virtual machine.

        Kernels of a GPU run one by one, each to its end before the next begins.
        """
        with hold_interrupts():  # which may not be raised where C++ calls Python
            self._call(
                "run_instrumented",
                _names(chosen),
                as_tensors(inputs),
                lambda name, before: instrument(str(name), bool(before)),
            )

    def copied(self, chosen: Models, inputs: Sequence[Bound]) -> Tensors:
        """Check inputs, and return them with those in host memory copied."""
        copies: Tensors = self._call("copied", _names(chosen), as_tensors(inputs))
        return copies

    def frame_inputs(self) -> Callable[[int, Sequence[Bound]], Tensors]:
        """Return what copies a frame's inputs to memory of its slot."""
        copy = self._functions["frame_inputs"]()

        def copied(slot: int, inputs: Sequence[Bound]) -> Tensors:
            with native_errors():
                copies: Tensors = copy(slot, *as_tensors(inputs))
                return copies

        return copied

    @property
    def stages(self) -> tuple[str, ...]:
        """Kinds of device of the parts of ``main`` that can work on different frames.

        None for a model on one device.
        """
        return tuple(self.kinds[device] for device in self._call("stages"))

    def run_stage(self, number: int, given: Any) -> Any:
        """Run a stage on a frame's inputs, or on what the stage before it made of them."""
        if number == 0:
            return self._call("run_first_stage", as_tensors(given))
        return self._call("run_stage", number, given)

    def results_of(self, frame: Any, wanted: Mapping[int, str]) -> Tensors:
        """Return the last stage's results, the caller's own like those of :meth:`run`."""
        results: Tensors = self._call("results_of", frame, list(wanted), False)
        return results

    def start_thread(self) -> None:
        """Let kernels of the calling thread, which serves one stream, use the model's threads."""
        self._call("start_thread")

    def synchronize(self) -> None:
        """Wait until every device has done its work."""
        self._call("synchronize")

    def check_process(self) -> None:
        """Refuse to run on a GPU in a child that was forked off after the model was loaded.

        Raises
        ------
        DeviceUnavailableError
        """
        self._call("check_process")

    def recorded(self, function: str) -> list[tuple[tuple[int, ...], ...]]:
        """Return the shapes of which runs of an entry replay a recording, on the first machine."""
        return [tuple(map(tuple, shapes)) for shapes in self._call("recorded", function)]

    @property
    def machines(self) -> tuple[int, int]:
        """Count runs that may happen at the same time, and virtual machines made until now."""
        count, made = self._call("machines")
        return int(count), int(made)

    @property
    def inputs_staged(self) -> int:
        """Inputs that runs copied to memory of ours until now."""
        return int(self._call("inputs_staged"))

    @property
    def inputs_anywhere(self) -> frozenset[int]:
        """Positions of inputs that kernels of the CPU read wherever they begin."""
        return frozenset(self._call("inputs_anywhere"))

    def window_bytes(self) -> tuple[int, ...]:
        """Sizes of the windows that parts of weights are copied to."""
        return tuple(self._call("window_bytes"))

    def _call(self, name: str, *arguments: Any) -> Any:
        with native_errors():
            return self._functions[name](*arguments)

    def _warn_of_recording(self) -> None:
        """Say, once a process, that a driver does not record what it says it can."""
        if reason := str(self._call("recording_failure")):
            warnings.warn(
                f"kernels are launched one by one because recording them failed ({reason}); "
                "results are right; to not even try, set TVM_EDGE_OPENCL_COMMAND_BUFFER=0",
                TvmEdgeWarning,
                stacklevel=5,
            )


def _names(chosen: Models) -> list[str] | None:
    return None if chosen.asked is None else [str(name) for name in chosen.asked]
