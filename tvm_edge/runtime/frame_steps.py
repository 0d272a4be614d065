"""Steps of a stream's frame, from a model's inputs to its named outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm.runtime import Tensor

from tvm_edge.runtime.inputs import Bound
from tvm_edge.runtime.session import Session
from tvm_edge.runtime.stages import StagedFrame
from tvm_edge.runtime.stream import Step

__all__ = ["frame_steps"]


def frame_steps(session: Session, finish: Callable[[list[Tensor]], dict[str, Any]]) -> list[Step]:
    """Return a step for each stage; on one device a frame is one run of ``main``.

    Parameters
    ----------
    session : Session
    finish : callable
        Makes outputs of a frame's results, in the last step.
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
