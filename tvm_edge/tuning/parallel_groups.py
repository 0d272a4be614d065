"""Groups of independent kernels, measured apart and as one, and kept as records (EMDL'21, §7).

The policy of :mod:`tvm_edge.schedules.parallel_policy` goes through a network as it does when it
predicts, most promising pair first; a group for which it asks records is measured at once. So those
groups are measured for which ``parallel_fusion="auto"`` asks records, and no others: a group of
three is tried where two of it were found to gain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from tvm import relax

from tvm_edge.compiler.driver import unmerged_kernels
from tvm_edge.compiler.parallel_fusion import group_records
from tvm_edge.errors import InputError
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.relay_passes.fuse.kernel_graph import KernelGraph
from tvm_edge.relay_passes.fuse.parallel_fusion import merged_kernels
from tvm_edge.relay_passes.ir.aliases import Lives
from tvm_edge.schedules.launch_work import Launch
from tvm_edge.schedules.parallel_policy import Group, choose_groups
from tvm_edge.schedules.parallel_records import group_config, group_template, group_workload
from tvm_edge.tuning.group_problem import group_problem
from tvm_edge.tuning.group_worker import GROUP_LIMITS, measure_variants, start_worker
from tvm_edge.tuning.recorder import Recorder
from tvm_edge.tuning.result import GroupResult
from tvm_edge.tuning.worker import Failed, Limits, Worker

__all__ = ["GROUPS", "GroupTuner", "check_groups"]

_LOG = logging.getLogger("tvm_edge.tuning")

GROUPS = {"fast": 16, "normal": 64, "exhaustive": None}
"""Groups that are measured at each level."""

_APART = "apart"


def check_groups(tracker: str | None) -> None:
    """Refuse devices that are not in this machine.

    Raises
    ------
    InputError
    """
    if tracker is not None:
        raise InputError(
            "parallel_fusion=True (--parallel-fusion) measures groups of kernels on a device of "
            "this machine, and a tracker is given; run tune on the board, or leave it out",
            name="parallel_fusion",
            got="True",
        )


@dataclass
class GroupTuner:
    """Measurement of one network's groups on a device of this machine.

    Parameters
    ----------
    model, target, host
        As for :func:`tvm_edge.compile`.
    inputs : mapping or None
        Options of :func:`~tvm_edge.frontend.load_model`: ``input_shapes`` and others.
    recorder : Recorder
    folder : Path
        Of records.
    kind : str
        Of the target.
    most : int or None
        Groups to measure.
    deadline : float or None
        When to stop, as :func:`time.monotonic` counts.
    device : callable
        Gives the block in which the device is ours alone.
    check : callable
        Called now and then; what it raises ends the run, and what was measured is kept.
    limits : Limits
    """

    model: Any
    target: Any
    host: Any
    inputs: Mapping[str, Any] | None
    recorder: Recorder
    folder: Path
    kind: str
    most: int | None = None
    deadline: float | None = None
    device: Callable[[], AbstractContextManager[None]] = nullcontext
    check: Callable[[], None] = lambda: None
    limits: Limits = GROUP_LIMITS
    results: list[GroupResult] = field(default_factory=list)

    def __call__(self) -> None:
        """Measure, and keep the verdicts as records; :attr:`results` lists them.

        Raises
        ------
        DeviceLost
            A process that measures does not start.
        MissingDependencyError
            No compiler for the device.
        RecordError
            The records cannot be written.
        """
        mod, resolved = unmerged_kernels(
            self.model,
            self.target,
            host=self.host,
            **(self.inputs or {}),
            tuning_logs=self.folder,
        )
        main = mod["main"]
        blocks = list(main.body.blocks)
        if any(isinstance(b.value, relax.If) for block in blocks for b in block.bindings):
            _LOG.warning("kernels of a model with branches (If) are not merged; no groups to tune")
            return
        if resolved.kind != self.kind:
            _LOG.warning(
                "all of the model is left to the CPU beside the %s device, by cost; no groups of "
                "kernels to tune there: tune them with target %r",
                self.kind,
                resolved.kind,
            )
            return
        with ExitStack() as stack:
            stack.callback(self.recorder.save)

            @cache
            def worker() -> Worker:  # when there is something to measure
                made = start_worker(self.target, self.host, resolved.spec.cores)
                stack.callback(made.stop)
                return made

            for block in blocks:
                if isinstance(block, relax.DataflowBlock):
                    graph = KernelGraph(mod, list(block.bindings), Lives(main))
                    _Block(self, graph, resolved, worker).measure()

    def is_over(self) -> bool:
        """Return true if no further group is to be measured."""
        self.check()
        too_many = self.most is not None and len(self.results) >= self.most
        return too_many or (self.deadline is not None and monotonic() > self.deadline)


class _Block:
    """Groups of one dataflow block of a network."""

    def __init__(
        self,
        tuner: GroupTuner,
        graph: KernelGraph,
        resolved: ResolvedTarget,
        worker: Callable[[], Worker],
    ) -> None:
        self._tuner, self._graph, self._resolved, self._worker = tuner, graph, resolved, worker
        self._verdicts: dict[tuple[tuple[Launch, ...], ...], bool] = {}
        self._taken: list[tuple[int, ...]] = []  # groups that gain

    def measure(self) -> list[Group]:
        """Choose groups as ``"auto"`` does, and measure those for which it asks records."""
        with group_records(self._resolved, self._tuner.folder) as measured:
            problem = self._graph.problem(self._resolved.spec, measured or (lambda _: None))
            known, self._refused = problem.measured, problem.refused

            def verdict(members: tuple[int, ...]) -> bool | None:
                found = known(members)
                if found is None:
                    found = self._verdict(members)
                if found and members not in self._taken:
                    self._taken.append(members)
                return found

            return choose_groups(replace(problem, measured=verdict))

    def _verdict(self, members: tuple[int, ...]) -> bool | None:
        launches = self._graph.launches(members)
        if launches is None:
            return None
        # As records tell groups apart: two of one workload would write over each other's verdict.
        key = tuple(sorted(launches) if len(launches) == 2 else launches)
        if key not in self._verdicts:
            if self._tuner.is_over() or self._refused(members):
                return None
            asked = Group(members, True, "", None, None)
            if not self._graph.checked(asked, self._resolved.target).taken:
                return None
            self._verdicts[key] = self._measured(members)
        return self._verdicts[key]

    def _measured(self, members: tuple[int, ...]) -> bool:
        """Measure kernels in one launch and otherwise; keep both as records."""
        names = tuple(str(self._graph.kernels[each].name.name_hint) for each in members)
        problem = group_problem(self._graph.mod, [self._graph.kernels[each] for each in members])
        places = {member: place for place, member in enumerate(members)}
        # Groups of them that were found to gain stay groups.
        parts = [[places[member] for member in part] for part in self._parts(members)]
        spec = self._resolved.spec
        variants = {_APART: merged_kernels(problem.module, spec, parts)}
        for order in self._graph.orders(members):
            own = [places[member] for member in order]
            variants[_name(order)] = merged_kernels(problem.module, spec, [own])
        tuner = self._tuner
        with tuner.device():
            answers = measure_variants(
                self._worker(), variants, problem.areas, tuner.limits, tuner.check
            )
        apart = answers[_APART]
        if isinstance(apart, Failed):  # says nothing of what they are as one
            _LOG.warning("%s cannot be measured: %s", " and ".join(names), apart.message)
            self._tuner.results.append(GroupResult(names, None, None, apart.error))
            return False
        costs: list[float] = []
        failed = ""
        for order in self._graph.orders(members):
            answer = answers[_name(order)]
            if isinstance(answer, Failed):
                failed = answer.error
                _LOG.info("%s: %s", " and ".join(names), answer.message)
                self._keep(order, True, (), answer.error)
            else:
                costs.append(median(answer))
                self._keep(order, True, answer)
            self._keep(order, False, apart)
        self._tuner.recorder.save()
        best = min(costs, default=None)
        self._tuner.results.append(GroupResult(names, median(apart), best, failed))
        return best is not None and best < median(apart)

    def _parts(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return groups among these kernels that gain, no two with one in common."""
        left, found = set(members), []
        for group in sorted(self._taken, key=len, reverse=True):
            if left.issuperset(group) and len(group) < len(members):
                left -= set(group)
                found.append(group)
        return found

    def _keep(
        self, members: tuple[int, ...], merged: bool, latencies: Sequence[float], error: str = ""
    ) -> None:
        launches = self._graph.launches(members)
        assert launches is not None, "they were asked for before"
        template = group_template(self._resolved.spec)
        self._tuner.recorder.note(
            group_workload(launches),
            template,
            group_config(merged),
            tuple(latencies),
            error,
        )


def _name(order: Sequence[int]) -> str:
    return "_".join(map(str, order))
