"""Steps of a stream's frame, from a model's inputs to its named outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tvm_edge.runtime.devices import is_host
from tvm_edge.runtime.frame_stream import Step
from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.models import Models
from tvm_edge.runtime.session import Session

__all__ = ["frame_steps"]


def frame_steps(session: Session, every: Models, wanted: Mapping[int, str]) -> list[Step]:
    """Return a step for each stage; on one device a frame is one run of ``main``.

    Parameters
    ----------
    session : Session
    every : Models
        All of the artifact.
    wanted : mapping of int to str
        Outputs of a frame, by position.
    """

    def run_all(inputs: Sequence[Bound]) -> dict[str, Any]:
        return every.named(session.run(every, inputs, wanted), wanted)

    stages = session.stages
    if not stages:
        return [Step(session.kinds[0], run_all, session.start_thread)]

    def run(number: int, state: Any) -> Any:
        frame = session.run_stage(number, state)
        if number + 1 < len(stages):
            return frame
        return every.named(session.results_of(frame, wanted), wanted)

    return [
        Step(kind, partial(run, number), session.start_thread)
        if is_host(kind)
        else Step(kind, partial(run, number))
        for number, kind in enumerate(stages)
    ]
