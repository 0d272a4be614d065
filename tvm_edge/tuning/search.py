"""Search: which configuration to try next, of which convolution.

A space has hundreds of configurations to a few thousand, which the cost model ranks in milliseconds
all of them: there is no need to approach its best by evolution or annealing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

import numpy as np

from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.tuning.cost_model import CostModel
from tvm_edge.tuning.features import features
from tvm_edge.tuning.tasks import Task

__all__ = ["Search", "TaskSearch"]

# Share of trials that is chosen at random, lest the model believe what it never sees.
_EXPLORED = 0.2

# Shares of a task's time that more trials are expected to save, before and between its trials.
_FIRST_GAIN, _LEAST_GAIN = 0.3, 0.01

# Operations a second of a task that has not run yet: it must not take all the trials.
_ASSUMED_FLOPS = 1e10


@dataclass
class TaskSearch:
    """Search of one task.

    Attributes
    ----------
    task : Task
    first : list of int
        Places of configurations to try before a model knows anything.
    measured : dict of int to float
        Seconds by place, infinite for failures.
    gain : float
        The share of its time that further trials are expected to save.
    known : bool
        Whether runs before this one have measured it.
    """

    task: Task
    first: list[int]
    measured: dict[int, float] = field(default_factory=dict)
    gain: float = _FIRST_GAIN
    known: bool = False

    @classmethod
    def of(cls, task: Task, known: Sequence[ConvConfig] = ()) -> TaskSearch:
        """Begin with the heuristic's choice, `known` good ones, and the first of each algorithm."""
        places = {config: place for place, config in enumerate(task.configs)}
        by_kind: dict[tuple[str, int], list[int]] = {}
        for place, config in enumerate(task.configs):
            by_kind.setdefault((config.algorithm, config.m), []).append(place)
        in_turns = chain.from_iterable(zip_longest(*by_kind.values()))
        order = [0, *(places[config] for config in known if config in places), *in_turns]
        first = [p for p in dict.fromkeys(order) if p is not None]
        return cls(task, first, known=any(config in places for config in known))

    @property
    def best(self) -> float:
        """Seconds of the fastest so far; infinite if none ran."""
        return min(self.measured.values(), default=float("inf"))

    @property
    def best_place(self) -> int:
        """Place of the fastest so far, or of the heuristic's choice."""
        return min(self.measured, key=lambda place: (self.measured[place], place), default=0)

    @property
    def left(self) -> int:
        """Number of configurations that were not tried."""
        return len(self.task.configs) - len(self.measured)

    @property
    def urgency(self) -> float:
        """Seconds of the network's time that the next trials are expected to save."""
        if not self.left:
            return 0.0
        best = self.best if np.isfinite(self.best) else self.task.flops / _ASSUMED_FLOPS
        return self.task.count * best * self.gain

    def propose(
        self, count: int, scores: np.ndarray | None, random: np.random.Generator
    ) -> list[int]:
        """Return up to `count` places that were not tried."""
        if scores is None:
            return [place for place in self.first if place not in self.measured][:count]
        untried = np.array([p for p in range(len(self.task.configs)) if p not in self.measured])
        if len(untried) <= count:
            return [int(place) for place in untried]
        ranked = untried[np.argsort(-scores[untried], kind="stable")]
        at_random = int(random.binomial(count, _EXPLORED))
        chosen = ranked[: count - at_random]
        others = random.choice(ranked[count - at_random :], at_random, replace=False)
        return [int(place) for place in (*chosen, *others)]

    def tell(self, found: dict[int, float]) -> None:
        """Take measurements, and expect half as much of the next as these have brought."""
        before = self.best
        self.measured |= found
        if np.isfinite(before):
            saved = 1 - self.best / before
        else:
            saved = _FIRST_GAIN if np.isfinite(self.best) else 0.0
        self.gain = max(0.5 * self.gain + 0.5 * saved, _LEAST_GAIN)


class Search:
    """Search of all tasks of a network.

    Parameters
    ----------
    tasks : sequence of TaskSearch
    seed : int
        Proposals depend on it, on the round's number and on the measurements, and on nothing else:
        a run that is resumed goes on as it would have.
    """

    def __init__(self, tasks: Sequence[TaskSearch], seed: int = 0) -> None:
        self.tasks = tasks
        self._seed = seed
        self._round = 0
        self._model = CostModel([features(search.task) for search in tasks], seed)

    @property
    def measured(self) -> int:
        """Trials of all tasks so far."""
        return sum(len(search.measured) for search in self.tasks)

    def propose(self, slots: int, each: int) -> list[tuple[int, list[int]]]:
        """Return the trials of the next round.

        Tasks get `each` trials at a time, those first that have had none, of which those of no
        record first, then by what they are expected to save in the network's time.

        Parameters
        ----------
        slots : int
            Trials in all.
        each : int
            Trials that a task gets at a time.

        Returns
        -------
        list of (int, list of int)
            Tasks, the most urgent first, and places of their configurations; empty when all were
            tried.
        """
        random = np.random.default_rng([self._seed, self._round])
        self._model.fit([search.measured for search in self.tasks])
        shares: dict[int, int] = {}
        while slots > 0:
            left = {i: s.left - shares.get(i, 0) for i, s in enumerate(self.tasks)}
            open_tasks = [i for i, count in left.items() if count > 0]
            if not open_tasks:
                break
            chosen = max(open_tasks, key=lambda i: self._priority(i, shares.get(i, 0) // each))
            step = min(each, slots, left[chosen])
            shares[chosen] = shares.get(chosen, 0) + step
            slots -= step
        proposals = []
        for i, share in shares.items():
            search = self.tasks[i]
            scores = self._model.scores(i) if search.measured else None
            proposals.append((i, search.propose(share, scores, random)))
        return proposals

    def _priority(self, index: int, turns: int) -> tuple[bool, bool, float]:
        """Rank a task, higher first; each turn that it has in a round halves its expected gain."""
        search = self.tasks[index]
        fresh = not search.measured and not turns
        weight = search.task.count * search.task.flops if not search.measured else search.urgency
        return fresh, fresh and not search.known, weight * 0.5**turns

    def tell(self, found: dict[int, dict[int, float]]) -> None:
        """Take the measurements of a round: by task and place."""
        for index, measured in found.items():
            self.tasks[index].tell(measured)
        self._round += 1
