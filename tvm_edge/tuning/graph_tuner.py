"""Graph tuner: layouts for the whole of a network (ICPP'19 §3.2.3).

1. The latency of each convolution in each layout is from tuning records, or estimated beside them.
2. Transforms are timed on the device; on boards they are estimated from the bandwidth.
3. The layouts of the least total time are found exactly
   (:mod:`tvm_edge.relay_passes.solvers.layout_problem`).
4. The network is compiled with them and without, and both are timed in turns: the total time of
   kernels that are measured one by one is not the latency of a run. Layouts that are not faster are
   not kept.

Convolutions in float32 have a choice of layouts; those in int8 have one, and the others are chosen
around them. No producer's epilogue writes another layout than its own kernel's: every transform is
a kernel, which element-wise operators may be part of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import tvm

from tvm_edge.compiler.driver import compile_with
from tvm_edge.compiler.layouts import describe_layout_plan, has_layouts
from tvm_edge.errors import InputError
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.records import (
    LayoutRecord,
    LayoutTransform,
    RecordDevice,
    timestamp,
    update_layouts,
)
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph, LayoutPlan
from tvm_edge.relay_passes.solvers.layout_problem import LayoutProblem, Layouts
from tvm_edge.runtime import CompiledModel
from tvm_edge.runtime.inputs import random_inputs
from tvm_edge.schedules.conv_records import (
    TEMPLATES,
    recorded_config,
    recorded_target,
    template_of,
)
from tvm_edge.schedules.int8 import BLOCK
from tvm_edge.schedules.layouts import usual_block
from tvm_edge.tuning.layout_costs import (
    Options,
    layout_problem,
    plan_of,
    transform_kinds,
    ways,
)
from tvm_edge.tuning.result import GraphResult
from tvm_edge.tuning.transform_times import TransformTimes, estimate_transforms, measure_transforms
from tvm_edge.tuning.tunable import check_alone, layout_graph_of

__all__ = ["GraphTuner", "check_graph", "timed_in_turns", "uniform"]

_LOG = logging.getLogger("tvm_edge.tuning")

_ROUNDS, _SECONDS = 9, 0.15  # of each candidate, in turns


def check_graph(resolved: ResolvedTarget) -> None:
    """Refuse devices whose kernels have one layout: CPUs without vectors.

    Raises
    ------
    InputError
    """
    if not has_layouts(resolved):
        raise InputError(
            f"graph=True (--graph) chooses between layouts, and kernels for {resolved.spec.name} "
            f"through {resolved.kind} have no others than NCHW; leave it out",
            name="graph",
            got=resolved.kind,
        )


def uniform(problem: LayoutProblem, graph: LayoutGraph, block: int) -> Layouts:
    """Return the best layouts with all convolutions in one, those that cannot have it in NCHW."""
    given = {
        number: block if block in graph.nodes[number].layouts else 0
        for number in graph.convolutions
    }
    return problem.with_given(given).solve()


class GraphTuner:
    """Choice of the layouts of one network on one device.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule or ``"zoo:NAME"``
    target : str or dict
    resolved : ResolvedTarget
    inputs : mapping, optional
        Options of :func:`~tvm_edge.frontend.load_model`: ``input_shapes`` and others.
    folder : Path
        Of records.
    on_board : bool
        Whether the device is in another machine, where nothing but kernels is measured.

    Attributes
    ----------
    check : callable
        Called now and then; what it raises ends it.
    """

    def __init__(
        self,
        model: Any,
        target: Any,
        resolved: ResolvedTarget,
        inputs: Mapping[str, Any] | None,
        folder: Path,
        *,
        on_board: bool = False,
    ) -> None:
        self._model, self._target, self._resolved = model, target, resolved
        self._inputs = dict(inputs or {})
        self._folder = folder
        self._on_board = on_board
        self.check: Callable[[], None] = lambda: None
        check_alone(model, resolved, inputs)
        self.graph, self._nodes = layout_graph_of(model, resolved, inputs)

    def __call__(self, name: str) -> GraphResult:
        """Choose, measure, and keep what is faster.

        Raises
        ------
        RecordError
            The layouts cannot be written.
        """
        graph, spec = self.graph, self._resolved.spec
        options, problem = self.problem()
        start = perf_counter()
        best = problem.solve()
        usual = uniform(problem, graph, usual_block(spec))
        solve_seconds = perf_counter() - start
        self.check()
        if best.seconds >= usual.seconds:  # ties go to what needs no explanation
            best = replace(usual, bound=best.bound)
        before, seconds, rest = self._timed(options, best, usual)
        if seconds[usual.layouts] < seconds[best.layouts]:
            best = replace(usual, bound=best.bound)
        measured = seconds[best.layouts]
        template = template_of(spec)
        record = LayoutRecord(
            RecordDevice.of(spec),
            recorded_target(self._resolved.kind, spec),
            graph.digest,
            name,
            best.layouts,
            template,
            TEMPLATES[template],
            {
                str(number): recorded_config(config)
                for number, config in plan_of(graph, best.layouts, options).configs.items()
            },
            tuple(
                LayoutTransform(t.node, t.before, t.after, t.seconds)
                for t in problem.needed(best.layouts)
            ),
            best.seconds + rest,
            best.bound + rest,
            measured,
            before,
            tvm.__version__,
            timestamp(),
        )
        taken = measured < before
        self._keep(record, taken)
        known = [way for ways_ in options.values() for way in ways_.values()]
        return GraphResult(
            describe_layout_plan(record, graph, self._nodes),
            taken,
            len(graph.nodes),
            len(graph.convolutions),
            sum(way.measured for way in known),
            solve_seconds,
        )

    def no_choice(self) -> str:
        """Return the note for a network whose convolutions have one layout each."""
        fixed = len(self.graph.fixed)
        where = f"blocks of {BLOCK} channels" if self._resolved.spec.has_cpu_cores else "NCHW"
        why = (
            f"its {fixed} convolutions of bytes have images in {where}"
            if fixed
            else "it has no convolution whose layout can be chosen"
        )
        return f"layouts: nothing to choose, {why}"

    def problem(self) -> tuple[Options, LayoutProblem]:
        """Return the ways to compute the convolutions, and the network with all latencies."""
        options, warnings = ways(self.graph.convolutions.values(), self._resolved, self._folder)
        for message in warnings:
            _LOG.warning("%s", message)
        return options, layout_problem(self.graph, options, self._times())

    def _times(self) -> TransformTimes:
        kinds = transform_kinds(self.graph)
        estimated = estimate_transforms(kinds, self._resolved.spec)
        if self._on_board:
            return estimated
        measured = measure_transforms(kinds, self._resolved, self.check)
        return replace(measured, known={**estimated.known, **measured.known})

    def _timed(
        self, options: Options, best: Layouts, usual: Layouts
    ) -> tuple[float, dict[tuple[int, ...], float], float]:
        """Return seconds of a run by estimates, with either layouts, and beyond their kernels.

        The last is the measured time of one layout for all, less the total of its kernels.
        """
        if self._on_board:  # no network runs there
            totals = {own.layouts: own.seconds for own in (best, usual)}
            return usual.seconds, totals, 0.0
        models = [self.compiled(False)]
        places: dict[tuple[int, ...], int] = {}
        if not usual_block(self._resolved.spec):
            places[usual.layouts] = 0  # NCHW is what there is without a plan
        for layouts in (usual.layouts, best.layouts):
            if layouts not in places:
                self.check()
                places[layouts] = len(models)
                models.append(self.compiled(plan_of(self.graph, layouts, options)))
        seconds = timed_in_turns(models, self.check)
        of_plan = {layouts: seconds[place] for layouts, place in places.items()}
        rest = max(of_plan[usual.layouts] - usual.seconds, -0.9 * best.bound)
        return seconds[0], of_plan, rest

    def compiled(self, plan: LayoutPlan | Literal[False]) -> CompiledModel:
        """Compile the network with a plan; ``False`` for layouts by estimates."""
        return compile_with(
            self._model,
            self._target,
            {},
            **self._inputs,
            tuning_logs=self._folder,
            fallback="none",  # as candidates are measured
            num_threads=self._resolved.cpu.spec.cores,
            layout_plan=plan,
        )

    def _keep(self, record: LayoutRecord, taken: bool) -> None:
        def changed(records: list[LayoutRecord]) -> list[LayoutRecord]:
            others = [other for other in records if other.identity != record.identity]
            return [*others, record] if taken else others

        for message in update_layouts(self._folder, record.device.key, changed):
            _LOG.warning("%s", message)


def timed_in_turns(models: Sequence[CompiledModel], check: Callable[[], None]) -> list[float]:
    """Return seconds of a run of each, the median of rounds in which all of them are timed."""
    inputs = [random_inputs(model.inputs) for model in models]
    found: list[list[float]] = [[] for _ in models]
    runs = [
        max(1, round(_SECONDS / model.seconds_in_a_row(given, 1)))
        for model, given in zip(models, inputs, strict=True)
    ]
    for _ in range(_ROUNDS):
        for number, model in enumerate(models):
            check()
            found[number].append(model.seconds_in_a_row(inputs[number], runs[number]))
    return [median(own) for own in found]
