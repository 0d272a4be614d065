"""Steps of a stream's frame, from a model's inputs to its named outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm.runtime import Tensor

from tvm_edge.runtime.frame_stages import StagedFrame
from tvm_edge.runtime.frame_stream import Step
from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.session import Session

__all__ = ["frame_steps"]


def frame_steps(session: Session, finish: Callable[[list[Tensor]], dict[str, Any]]) -> list[Step]:
    """Return a step for each stage; on one device a frame is one run of ``main``.

    Parameters
    ----------
    session : Session
    finish : callable
        Makes outputs of a frame's results, in the last step.
    """

    def run_all(inputs: Sequence[Bound]) -> dict[str, Any]:
        return finish(session.invoke(inputs))

    if not session.stages:
        return [Step(session.devices[0].kind, run_all, session.start_thread)]

    def run(number: int, state: Sequence[Bound] | StagedFrame) -> Any:
        frame = session.run_stage(number, state)
        if number + 1 < len(session.stages):
            return frame
        return finish(session.results_of(frame))

    return [
        Step(stage.device.kind, partial(run, number), session.start_thread)
        if stage.device.is_host
        else Step(stage.device.kind, partial(run, number))
        for number, stage in enumerate(session.stages)
    ]
