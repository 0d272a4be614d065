"""``memory_budget=``: every plan is made as far as its memory and its time can be told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from tvm_edge.compiler.compilation import Compilation
from tvm_edge.errors import InputError, TvmEdgeWarning
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.memory.budget import machine_bytes, written
from tvm_edge.memory.frame_time import frame_time
from tvm_edge.memory.plans import Plan, Prediction, chosen, possible
from tvm_edge.report import CompileReport, TensorSpec

__all__ = ["bytes_of_frame", "within_budget"]

_DEPTH = 2  # frames in flight, as `stream` has them by default

_Options = tuple[tuple[int, ...], bool, int | None, int | None]


def within_budget(
    begun: Compilation, make: Callable[[Plan], Compilation], budget: int
) -> Compilation:
    """Carry out the fastest plan that fits; its report lists all others.

    Parameters
    ----------
    begun : Compilation
        Before its first pass.
    make : callable
        Carries out a plan, up to code.
    budget : int
        Bytes.

    Raises
    ------
    MemoryBudgetError
        No plan fits.
    InputError
        An open dimension has no largest length.
    """
    _check_bounds(begun)
    _check_machine(budget)
    target, fallback = begun.resolved, begun.options.fallback
    reports: dict[_Options, tuple[CompileReport, ResolvedTarget]] = {}
    considered: list[tuple[Plan, Prediction | str]] = []
    # Of all that is made only the best stays, as each has the model's weights.
    best: tuple[float, _Options, Compilation] | None = None
    enough: set[str] = set()  # plans that fit, and those that are slower than one of these
    for plan, missing in possible(
        begun.imported.nodes,
        beside_cpu=target.host is not None,
        unified=target.spec.unified_memory,
        offload=fallback not in ("none", "error"),
    ):
        if missing:
            considered.append((plan, f"not to be had: {missing}"))
            continue
        if plan.instead_of in enough:
            considered.append((plan, "not needed: a plan that reads less in a run fits"))
            enough.add(plan.name)
            continue
        options = _options(plan)
        one = None
        if options not in reports:
            try:
                one = make(plan)
            except InputError as err:
                if err.name not in ("weight_window", "conv_window"):
                    raise
                reason = "not to be had: a layer cannot be cut into parts so small"
                considered.append((plan, reason))
                continue
            reports[options] = one.report, one.resolved
        prediction = _predicted(plan, *reports[options])
        considered.append((plan, prediction))
        if prediction.peak <= budget:
            enough.add(plan.name)
        faster = best is None or prediction.seconds < best[0]
        if one is not None and prediction.peak <= budget and faster:
            best = prediction.seconds, options, one
        del one
    name = next(iter(reports.values()))[0].model
    plan, infos = chosen(budget, name, considered, _advice(target))
    made = best[2] if best is not None and best[1] == _options(plan) else make(plan)
    memory = made.report.memory
    assert memory is not None, "a model that compiles has a memory plan"
    report = replace(made.report, memory=replace(memory, budget=budget, plans=infos))
    return replace(made, report=report)


def _options(plan: Plan) -> _Options:
    """Return the part of a plan that the compiler sees; the order of frames is the run's."""
    return tuple(sorted(plan.offload)), plan.winograd, plan.weight_window, plan.conv_window


def _predicted(plan: Plan, report: CompileReport, resolved: ResolvedTarget) -> Prediction:
    memory = report.memory
    assert memory is not None, "a model that compiles has a memory plan"
    time = frame_time(report, resolved)
    if not plan.pipelined:
        return Prediction(plan, memory.peak, time.seconds, time.bound, memory.floor)
    peak = memory.peak + (_DEPTH - 1) * bytes_of_frame(report)
    return Prediction(plan, peak, time.pipelined, time.pipelined_bound, memory.floor)


def bytes_of_frame(report: CompileReport) -> int:
    """Bytes of one more frame of a stream: inputs, copies between devices, outputs."""
    assert report.memory is not None, "a model that compiles has a memory plan"
    return report.memory.inputs_outputs + sum(copy["bytes"] for copy in report.copies)


def _advice(target: ResolvedTarget) -> str:
    if target.host is None:
        return "or a smaller network"
    return "a smaller network, or target='llvm', which leaves all weights in the artifact"


def _check_bounds(begun: Compilation) -> None:
    """Refuse open dimensions whose tensors may be of any size.

    Raises
    ------
    InputError
    """
    found = [spec for spec in begun.imported.inputs if any(dim.max is None for dim in spec.dims)]
    if not found:
        return
    names = sorted({repr(dim.name) for spec in found for dim in spec.dims if dim.max is None})
    shapes = ", ".join(f"{spec.name!r}: ({', '.join(_bounded(spec))},)" for spec in found)
    raise InputError(
        f"memory_budget= plans for the largest shapes, and the open dimension"
        f"{'s' * (len(names) > 1)} {', '.join(names)} of the input {found[0].name!r} may have any "
        f"length; say the largest: input_shapes={{{shapes}}}",
        name=found[0].name,
    )


def _bounded(spec: TensorSpec) -> list[str]:
    """Write the shape of an input as a user gives it with bounds."""
    largest = {dim.name: dim.max for dim in spec.dims}
    return [
        f"Dim({d!r}, max={largest[d] or '...'})" if isinstance(d, str) else str(d)
        for d in spec.shape
    ]


def _check_machine(budget: int) -> None:
    """Warn of a budget that bounds nothing here: a slip of the unit, or another machine's."""
    here = machine_bytes()
    if here is not None and budget > here:
        warnings.warn(
            f"memory_budget={budget} ({written(budget)}) is more than the {written(here)} of this "
            "machine; if the model is to run here, give it less",
            TvmEdgeWarning,
            stacklevel=4,
        )
