"""Model on a board, called as a model here is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import tvm

from tvm_edge.errors import InputError
from tvm_edge.rpc.agent import Call
from tvm_edge.rpc.agent_process import Request
from tvm_edge.rpc.message import Message
from tvm_edge.runtime.benchmark import BenchmarkResult
from tvm_edge.runtime.dlpack import host_array
from tvm_edge.runtime.frame_stream import FrameStream, Step
from tvm_edge.runtime.info import ModelInfo
from tvm_edge.runtime.inputs import as_tensors
from tvm_edge.runtime.model_base import ModelBase
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.profile import Profile

__all__ = ["RemoteModel"]


class RemoteModel(ModelBase):
    """Model on a board; made by ``tvm_edge.load(path, remote=board)``.

    It has the methods of :class:`tvm_edge.CompiledModel` that a network leaves a meaning. Inputs
    are checked here, before they travel. Times are taken on the board: the network is not in them.
    A stream has one frame on the board at a time; the next is taken from its source meanwhile.

    Parameters
    ----------
    info : ModelInfo
    board : str
        Name of the board in messages.
    request : callable
        Sends a request to the board and returns the answer, :meth:`tvm_edge.Remote.request`.
    token : int
        The model's number on the board.
    """

    def __init__(
        self, info: ModelInfo, board: str, request: Callable[[Request], Any], token: int
    ) -> None:
        super().__init__(info)
        self._board, self._send, self._token = board, request, token

    @property
    def _place(self) -> str:
        return f"board {self._board}"

    def close(self) -> None:
        """Free the model on the board; closing the board frees all of them."""
        self._request("drop", self._every)

    def run_async(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Raise :class:`~tvm_edge.InputError`: a board runs one thing at a time."""
        self._refuse("run_async", "call run in a thread of yours")

    def export(self, path: str | os.PathLike[str], **_options: Any) -> NoReturn:
        """Raise :class:`~tvm_edge.InputError`: the artifact is here already."""
        self._refuse("export", f"copy the artifact that was loaded to {str(path)!r}")

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise InputError(
            f"{what} is not for a model on a board ({self._board}); {advice}", name=what
        )

    def _run(
        self,
        inputs: Mapping[str, Any],
        chosen: Models,
        wanted: Mapping[int, str],
        device_outputs: bool,
    ) -> dict[str, np.ndarray]:
        if device_outputs:
            self._refuse("device_outputs=True", "leave it out: outputs come as NumPy arrays")
        return self._outputs(self._bound(inputs, chosen), chosen, wanted)

    def _stream(
        self, frames: Iterable[Mapping[str, Any]], depth: int, wanted: Mapping[int, str]
    ) -> FrameStream:
        def copied(frame: Mapping[str, Any], _slot: int) -> dict[str, np.ndarray]:
            return {name: array.copy() for name, array in self._bound(frame, self._every).items()}

        def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return self._outputs(arrays, self._every, wanted)

        return FrameStream(frames, depth, copied, [Step(str(self._info.target["kind"]), run)])

    def _warm_up(self, chosen: Models) -> None:
        self._request("warmup", chosen)

    def _benchmark(
        self, inputs: Mapping[str, Any] | None, chosen: Models, warmup: int, repeat: int
    ) -> BenchmarkResult:
        found = self._measured("benchmark", inputs, chosen, warmup=warmup, repeat=repeat)
        return BenchmarkResult.from_dict(found)

    def _profile(self, inputs: Mapping[str, Any] | None, chosen: Models, repeat: int) -> Profile:
        return Profile.from_dict(self._measured("profile", inputs, chosen, repeat=repeat))

    def _outputs(
        self, arrays: dict[str, np.ndarray], chosen: Models, wanted: Mapping[int, str]
    ) -> dict[str, np.ndarray]:
        names = list(wanted.values())
        found = self._request("run", chosen, arrays, outputs=names).arrays
        return chosen.checked({name: np.array(found[name]) for name in names})

    def _measured(
        self, function: str, inputs: Mapping[str, Any] | None, chosen: Models, **values: int
    ) -> dict[str, Any]:
        arrays = {} if inputs is None else self._bound(inputs, chosen)
        return self._request(function, chosen, arrays, inputs=inputs is not None, **values).values

    def _bound(self, inputs: Mapping[str, Any], chosen: Models) -> dict[str, np.ndarray]:
        devices = [tvm.cpu()] * len(self.inputs)
        bound = chosen.bind(inputs, devices)
        chosen.signature.bind(chosen.asked, as_tensors(bound))
        return {
            spec.name: value if isinstance(value, np.ndarray) else host_array(value)
            for spec, value in zip(chosen.inputs, bound, strict=True)
        }

    def _request(
        self,
        function: str,
        chosen: Models,
        arrays: dict[str, np.ndarray] | None = None,
        **values: Any,
    ) -> Message:
        # Boards of earlier versions run all models and know no other.
        asked = {} if chosen.asked is None else {"models": list(chosen.asked)}
        call = Call(function, {"model": self._token, **asked, **values}, arrays or {})
        answer: Message = self._send(call)
        return answer
