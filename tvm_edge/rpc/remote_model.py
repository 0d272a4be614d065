"""A model on a board: what :class:`~tvm_edge.runtime.CompiledModel` is here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tvm

from tvm_edge.errors import InputError
from tvm_edge.rpc.agent import Call
from tvm_edge.rpc.message import Message
from tvm_edge.runtime.benchmark import BenchmarkResult, check_count
from tvm_edge.runtime.frame_stream import FrameStream, Step
from tvm_edge.runtime.info import ModelInfo
from tvm_edge.runtime.inputs import bind_inputs
from tvm_edge.runtime.model_base import ModelBase
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.outputs import wanted_outputs
from tvm_edge.runtime.profile import Profile

if TYPE_CHECKING:
    from tvm_edge.rpc.remote import Remote

__all__ = ["RemoteModel"]


class RemoteModel(ModelBase):
    """A model on a board; made by ``tvm_edge.load(path, remote=board)``.

    It has the methods of :class:`tvm_edge.CompiledModel` that a network leaves a meaning. Inputs
    are checked here, before they travel. Times are taken on the board: the network is not in them.
    """

    def __init__(self, remote: Remote, info: ModelInfo, token: int) -> None:
        super().__init__(info)
        self._remote = remote
        self._token = token

    def __repr__(self) -> str:
        inputs = ", ".join(str(spec) for spec in self.inputs)
        return f"<RemoteModel {self.report.model} on board {self._remote.name}: {inputs}>"

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        models: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
    ) -> dict[str, np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping of str to array
            NumPy arrays or anything with ``__dlpack__``, of exactly the declared shapes and types.
        models : sequence of str, optional
            Of an artifact with several, those to run; default all.
        outputs : sequence of str, optional
            Names of the outputs to return; default all.
        device_outputs : bool
            Must be False: tensors of a board are there, not here.

        Returns
        -------
        dict of str to np.ndarray

        Raises
        ------
        InputError
            A wrong name, shape or type.
        DeviceLost, MeasureTimeout
            The board does not answer any more.
        """
        if device_outputs:
            self._refuse("device_outputs=True", "leave it out: outputs come as NumPy arrays")
        chosen = Models(self._info, models)
        chosen.check_outputs(outputs)
        wanted = list(wanted_outputs(chosen.outputs, outputs).values())
        arrays = self._bound(inputs, chosen)
        return self._run(arrays, wanted, models)

    def stream(
        self,
        frames: Iterable[Mapping[str, Any]],
        depth: int = 2,
        *,
        outputs: Sequence[str] | None = None,
    ) -> FrameStream:
        """Run the model on frame after frame, as :meth:`tvm_edge.CompiledModel.stream` does.

        The board runs one frame at a time; the next is taken from `frames` meanwhile.

        Parameters
        ----------
        frames : iterable of mapping
            Of each frame the inputs, as for :meth:`run`.
        depth : int
            How many frames may be on their way.
        outputs : sequence of str, optional
            Names of the outputs to return; default all.

        Returns
        -------
        FrameStream
            An iterator over the frames' outputs, in order.

        Raises
        ------
        InputError
            `frames` is no iterable, `depth` no positive number, or an output has another name. What
            is wrong with a frame, or with the board, is raised in its turn.
        """
        wanted = list(wanted_outputs(self.outputs, outputs).values())

        every = Models(self._info, None)

        def copied(frame: Mapping[str, Any], _slot: int) -> dict[str, np.ndarray]:
            return {name: array.copy() for name, array in self._bound(frame, every).items()}

        step = Step(str(self._info.target["kind"]), lambda arrays: self._run(arrays, wanted))
        return FrameStream(frames, depth, copied, [step])

    def warmup(self, *, models: Sequence[str] | None = None) -> None:
        """Pay the costs of a first run now: threads, memory pools, page faults of the weights.

        Parameters
        ----------
        models : sequence of str, optional
            As for :meth:`run`.
        """
        Models(self._info, models)  # refuses names before they travel
        self._request("warmup", **_asked(models))

    def benchmark(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        models: Sequence[str] | None = None,
        warmup: int = 3,
        repeat: int = 20,
    ) -> BenchmarkResult:
        """Measure latency on the board.

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
        found = self._measured("benchmark", inputs, models, warmup=warmup, repeat=repeat)
        return BenchmarkResult.from_dict(found)

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        models: Sequence[str] | None = None,
        repeat: int = 10,
    ) -> Profile:
        """Measure every kernel on the board.

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
        return Profile.from_dict(self._measured("profile", inputs, models, repeat=repeat))

    def close(self) -> None:
        """Free the model on the board; closing the board frees all of them."""
        self._request("drop")

    def run_async(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Not over RPC: raises :class:`~tvm_edge.InputError`."""
        self._refuse("run_async", "call run in a thread of yours")

    def export(self, path: str | os.PathLike[str], **_options: Any) -> NoReturn:
        """Not over RPC: raises :class:`~tvm_edge.InputError`."""
        self._refuse("export", f"copy the artifact that was loaded to {str(path)!r}")

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise InputError(
            f"{what} is not for a model on a board ({self._remote.name}); {advice}", name=what
        )

    def _run(
        self,
        inputs: dict[str, np.ndarray],
        wanted: list[str],
        models: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:
        found = self._request("run", inputs, outputs=wanted, **_asked(models)).arrays
        return {name: np.array(found[name]) for name in wanted}

    def _measured(
        self,
        function: str,
        inputs: Mapping[str, Any] | None,
        models: Sequence[str] | None,
        **values: Any,
    ) -> dict[str, Any]:
        chosen = Models(self._info, models)
        arrays = {} if inputs is None else self._bound(inputs, chosen)
        given = {"inputs": inputs is not None, **_asked(models), **values}
        return self._request(function, arrays, **given).values

    def _bound(self, inputs: Mapping[str, Any], chosen: Models) -> dict[str, np.ndarray]:
        devices = [tvm.cpu()] * len(chosen.inputs)
        bound = bind_inputs(chosen.inputs, chosen.given(inputs), devices)
        return {
            spec.name: value if isinstance(value, np.ndarray) else value.numpy()
            for spec, value in zip(chosen.inputs, bound, strict=True)
        }

    def _request(
        self, function: str, arrays: dict[str, np.ndarray] | None = None, **values: Any
    ) -> Message:
        call = Call(function, {"model": self._token, **values}, arrays or {})
        answer: Message = self._remote.request(call)
        return answer


def _asked(models: Sequence[str] | None) -> dict[str, Any]:
    """What says which models run; boards of earlier versions run all and know no other."""
    return {} if models is None else {"models": list(models)}
