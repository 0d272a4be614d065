"""Base of models: what is known of one without running it, and how one is called.

A model here (:class:`~tvm_edge.CompiledModel`) and a model on a board
(:class:`~tvm_edge.rpc.RemoteModel`) have the same methods. Their arguments are checked in this
module; what runs the model is in the classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm_edge.errors import InputError
from tvm_edge.report import CompileReport, TensorSpec
from tvm_edge.runtime.benchmark import BenchmarkResult, check_count
from tvm_edge.runtime.frame_stream import FrameStream
from tvm_edge.runtime.info import ModelInfo
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.once import once
from tvm_edge.runtime.profile import Profile
from tvm_edge.runtime.signature import Signature

__all__ = ["ModelBase"]


class ModelBase(ABC):
    """Model with a manifest, which says all that can be known without running it.

    Parameters
    ----------
    info : ModelInfo
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    @once
    def _every(self) -> Models:
        """All models, together."""
        return Models(self._info, Signature(self._info))

    def __repr__(self) -> str:
        inputs = ", ".join(str(spec) for spec in self.inputs)
        return f"<{type(self).__name__} {self.report.model} on {self._place}: {inputs}>"

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Refuse to be pickled or copied: code, devices and mapped files belong to a process.

        Raises
        ------
        InputError
        """
        raise InputError(
            f"the model {self.report.model!r} cannot be pickled or copied; write it with "
            "model.export(path), and read it with tvm_edge.load(path) where it is wanted (any "
            "number of threads may share one model)",
            name="model",
        )

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and types of the inputs."""
        return self._info.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and types of the outputs."""
        return self._info.outputs

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, of an artifact that was compiled from a dict of them."""
        return tuple(part.name for part in self._info.models)

    @property
    def report(self) -> CompileReport:
        """Decisions of the compiler."""
        return self._info.report

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
            Models of an artifact with several that run; default all, by one function in which
            kernels of different models may be merged. Inputs of the others are not needed, and not
            read where they are given. Some of several run one after the other.
        outputs : sequence of str, optional
            Names of the outputs to return; default all of the models that run.
        device_outputs : bool
            Return ``tvm.runtime.Tensor`` where they are instead of NumPy arrays. Other libraries
            read them through DLPack (``torch.from_dlpack``), except OpenCL's, which are for TVM,
            :func:`tvm_edge.opencl.host_view` and other models. They are the caller's: they outlive
            the model, and nothing writes to them again. CUDA's are finished at return; OpenCL
            kernels may still be running, and whatever reads the tensor waits for them. Not for a
            model on a board.

        Returns
        -------
        dict of str to np.ndarray or tvm.runtime.Tensor

        Raises
        ------
        InputError
            A wrong name, shape or type, or data that cannot be read.
        DeviceUnavailableError, ArtifactError
            The model is compiled for another machine.
        DeviceLost, MeasureTimeout
            The board does not answer any more.
        """
        chosen = self._chosen(models)
        return self._run(inputs, chosen, chosen.wanted(outputs), device_outputs)

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
            Inputs of each frame, as for :meth:`run`. Data in host memory is copied when a frame
            is taken, so a camera may write the next into the same array; leave a tensor on a GPU
            as it is until the frame's outputs are there.
        depth : int
            Number of frames that may be on their way: taken from `frames`, and their outputs not
            yet taken from the stream. Memory for activations grows with it, and streams have theirs
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
            is wrong with a frame, or with a board, is raised in its turn, and the stream goes on
            after it.
        DeviceUnavailableError, ArtifactError
            The model is compiled for another machine.

        Examples
        --------
        >>> with model.stream(camera) as stream:    # doctest: +SKIP
        ...     for outputs in stream:
        ...         show(outputs["boxes"])
        """
        return self._stream(frames, depth, self._every.wanted(outputs))

    def warmup(self, *, models: Sequence[str] | None = None) -> None:
        """Pay the costs of a first run now, so that the first frame is as fast as others.

        Programs, threads, memory pools, page faults of the weights; of every virtual machine that
        runs may happen on at the same time, and of the stages of a stream. Where the plan for a
        ``memory_budget`` is to pipeline frames, of the stages alone: runs beside a stream have
        activations of their own, which the plan does not count.

        Parameters
        ----------
        models : sequence of str, optional
            Models of the run that is to come, as for :meth:`run`.
        """
        self._warm_up(self._chosen(models))

    def benchmark(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        models: Sequence[str] | None = None,
        warmup: int = 3,
        repeat: int = 20,
    ) -> BenchmarkResult:
        """Measure latency where the model runs: no network is in it.

        Parameters
        ----------
        inputs : mapping, optional
            Default: seeded random values.
        models : sequence of str, optional
            As for :meth:`run`.
        warmup, repeat : int
            Runs before, and runs measured.
        """
        check_count("warmup", warmup, 0)
        check_count("repeat", repeat, 1)
        return self._benchmark(inputs, self._chosen(models), warmup, repeat)

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        models: Sequence[str] | None = None,
        repeat: int = 10,
    ) -> Profile:
        """Measure every kernel where the model runs.

        Parameters
        ----------
        inputs : mapping, optional
            Default: seeded random values.
        models : sequence of str, optional
            As for :meth:`run`.
        repeat : int
            Runs to take the median of.
        """
        check_count("repeat", repeat, 1)
        return self._profile(inputs, self._chosen(models), repeat)

    def _chosen(self, models: Sequence[str] | None) -> Models:
        if models is None:
            return self._every
        return Models(self._info, self._every.signature, models)

    # ------------------------------------------------------------------ what runs the model

    @property
    @abstractmethod
    def _place(self) -> str:
        """Place where the model runs, in words."""

    @abstractmethod
    def _run(
        self,
        inputs: Mapping[str, Any],
        chosen: Models,
        wanted: Mapping[int, str],
        device_outputs: bool,
    ) -> dict[str, Any]: ...

    @abstractmethod
    def _stream(
        self, frames: Iterable[Mapping[str, Any]], depth: int, wanted: Mapping[int, str]
    ) -> FrameStream: ...

    @abstractmethod
    def _warm_up(self, chosen: Models) -> None: ...

    @abstractmethod
    def _benchmark(
        self, inputs: Mapping[str, Any] | None, chosen: Models, warmup: int, repeat: int
    ) -> BenchmarkResult: ...

    @abstractmethod
    def _profile(
        self, inputs: Mapping[str, Any] | None, chosen: Models, repeat: int
    ) -> Profile: ...
