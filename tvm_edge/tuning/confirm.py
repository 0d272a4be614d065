"""Last round of a run: the fastest candidate of one timing among many is often only lucky."""

from __future__ import annotations

from math import isfinite
from statistics import median

from tvm_edge.tuning.conv_problem import ProblemFiles
from tvm_edge.tuning.measurer import Measurer
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.recorder import Recorder
from tvm_edge.tuning.search import Search
from tvm_edge.tuning.worker import Done

__all__ = ["FINALISTS", "confirm"]

FINALISTS = 3
"""Candidates of a convolution that are timed again."""

_FINAL_ROUNDS, _FINAL_SECONDS = 5, 0.02


def confirm(search: Search, pool: Measurer, problems: ProblemFiles, recorder: Recorder) -> None:
    """Time the fastest of each convolution again, beside the heuristic's choice.

    Ends when the fastest by all measurements is one of those: otherwise a configuration that was
    lucky once would be taken.
    """
    if not search.measured:
        return
    for index, own in enumerate(search.tasks):
        confirmed: dict[int, float] = {}
        while True:
            ranked = sorted(own.measured, key=lambda place: (own.measured[place], place))
            ranked = [place for place in ranked if isfinite(own.measured[place])]
            if not ranked or ranked[0] in confirmed:
                break
            best = [place for place in ranked if place not in confirmed][:FINALISTS]
            again = [min(confirmed, key=lambda place: confirmed[place])] if confirmed else []
            heuristic = [0] if isfinite(own.measured.get(0, 0.0)) else []
            places = list(dict.fromkeys([*best, *again, *heuristic]))
            trials = [
                Trial(own.task.workload, own.task.configs[place], problems.path(index))
                for place in places
            ]
            answers = pool.measure_in_turns(trials, _FINAL_ROUNDS, _FINAL_SECONDS)
            for place, answer in zip(places, answers, strict=True):
                if isinstance(answer, Done):
                    recorder.keep(own.task, place, answer.latencies)
                    own.measured[place] = median(answer.latencies)
                elif place in own.measured:
                    own.measured[place] = float("inf")
                confirmed[place] = own.measured.get(place, float("inf"))
        recorder.save()
