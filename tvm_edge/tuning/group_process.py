"""A process in which variants of a group of kernels run, and what becomes of those that end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

import tvm

from tvm_edge.child import Child, ChildEnded
from tvm_edge.errors import DeviceLost, MeasureTimeout, MissingDependencyError
from tvm_edge.tuning.group_worker import Forget, TimeAll, Timed, Try
from tvm_edge.tuning.serving import Done, Failed

__all__ = ["GroupProcess", "Limits"]

_LOG = logging.getLogger("tvm_edge.tuning")

_CHECK_SECONDS = 0.2

Areas = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds, and how a group is timed.

    Attributes
    ----------
    start, attempt, measure : float
        After which a process, a variant, or timings are given up.
    rounds : int
        In each of which every variant is timed once.
    seconds : float
        Of one timing.
    """

    start: float = 120.0
    attempt: float = 120.0
    measure: float = 60.0
    rounds: int = 5
    seconds: float = 0.01


class GroupProcess(Child):
    """A process, or the one that took its place.

    Parameters
    ----------
    given : tuple
        Target, host and number of threads.
    limits : Limits
    check : callable
        Called every fifth of a second; what it raises ends the wait.
    """

    def __init__(
        self, given: tuple[Any, Any, int], limits: Limits, check: Callable[[], None]
    ) -> None:
        self._given, self._limits, self._check = given, limits, check
        super().__init__("tvm_edge.tuning.group_worker")

    def start(self) -> None:
        super().start()
        self.ask(self._given, self._limits.start)
        self._ready = False

    def measured(
        self, variants: Mapping[str, tvm.IRModule], areas: Areas
    ) -> dict[str, tuple[float, ...] | Failed]:
        """Seconds of each variant, or how it failed.

        Parameters
        ----------
        variants : mapping of str to IRModule
            What the first computes is what the others have to compute.
        areas : tuple
            See :class:`~tvm_edge.tuning.group_problem.GroupProblem`.

        Raises
        ------
        DeviceLost
            The process does not start.
        MissingDependencyError
            No compiler for the device.
        """
        first = next(iter(variants))
        failed: dict[str, Failed] = {}
        while not self._tried(variants, areas, failed):
            if first in failed:
                break
        if first in failed:
            return {name: failed.get(name, failed[first]) for name in variants}
        answer = self._asked(TimeAll(self._limits.rounds, self._limits.seconds))
        if isinstance(answer, Failed):
            return {name: failed.get(name, answer) for name in variants}
        assert isinstance(answer, Timed)
        self.ask(Forget(), self._limits.attempt)
        return {
            name: failed[name] if name in failed else answer.latencies[name] for name in variants
        }

    def _tried(
        self, variants: Mapping[str, tvm.IRModule], areas: Areas, failed: dict[str, Failed]
    ) -> bool:
        """Build and check what has not failed; whether the process holds all that is left."""
        for name, module in variants.items():
            if name in failed:
                continue
            process = self.process
            answer = self._asked(Try(name, tvm.ir.save_json(module), areas))
            if isinstance(answer, Failed):
                failed[name] = answer
                # Its kernels may have written anywhere.
                if answer.ran and self.process is process:
                    self.stop()
                    self.start()
                if self.process is not process:
                    return False
        return True

    def _asked(self, ask: Try | TimeAll) -> Done | Failed | Timed:
        if not self._ready:
            answer = self._answer()
            if not isinstance(answer, Done):
                raise DeviceLost(
                    f"a process that measures on {self._given[0]} does not start "
                    f"({answer.message if isinstance(answer, Failed) else 'it says nothing'}); "
                    "what it wrote on standard error says why"
                )
            self._ready = True
        limits = self._limits
        self.ask(ask, limits.attempt if isinstance(ask, Try) else limits.measure)
        answer = self._answer()
        if isinstance(answer, Failed) and answer.error == MissingDependencyError.__name__:
            raise MissingDependencyError(answer.message)
        return answer

    def _answer(self) -> Done | Failed | Timed:
        """Wait for an answer, for the end of the process, or until its time is over."""
        while True:
            self._check()
            left = self.deadline - monotonic()
            if wait([self.connection], min(max(left, 0.0), _CHECK_SECONDS)):
                try:
                    answer: Done | Failed | Timed = self.receive()
                    return answer
                except ChildEnded as err:
                    return self._replaced(DeviceLost.__name__, str(err))
            if left <= 0:
                return self._replaced(MeasureTimeout.__name__, "it ran past its time")

    def _replaced(self, error: str, message: str) -> Failed:
        """How it failed; with another process in its place, if this one ever was ready."""
        was_ready = self._ready
        self.stop()
        if was_ready:
            _LOG.info("a measuring process is replaced: %s", message)
            self.start()
        return Failed(error, message, ran=True)
