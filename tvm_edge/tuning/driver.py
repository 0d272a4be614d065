"""Entry of tuning: ``tune`` measures configurations of convolutions and keeps the results."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import tvm

from tvm_edge.compiler.convolutions import TuningLogs
from tvm_edge.frontend import GivenLength, Picture
from tvm_edge.hardware import resolve_target
from tvm_edge.interrupts import hold_interrupts
from tvm_edge.records import user_folder
from tvm_edge.tuning.graph_tuner import GraphTuner, check_graph
from tvm_edge.tuning.interrupt import Interrupt
from tvm_edge.tuning.measurer import Boards
from tvm_edge.tuning.options import LEVELS, check_device, check_options, check_tuned_precision
from tvm_edge.tuning.parallel_groups import GROUPS, GroupTuner, check_groups
from tvm_edge.tuning.recorder import Recorder
from tvm_edge.tuning.result import Progress, TuneResult
from tvm_edge.tuning.run import Run
from tvm_edge.tuning.tasks import Task, extract_layout_tasks, extract_tasks

__all__ = ["tune"]

_OTHERS = 3  # of trials and time, one in so many is for other layouts


def tune(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target = "llvm",
    *,
    trials: int | None = None,
    time_budget: float | None = None,
    level: str = "normal",
    host: Any = None,
    input_shapes: Mapping[str, Sequence[GivenLength]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    preprocess: Mapping[str, Picture] | None = None,
    precision: str = "float32",
    tracker: str | None = None,
    key: str | None = None,
    tuning_logs: TuningLogs = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Callable[[Progress], None]] = (),
    graph: bool = False,
    parallel_fusion: bool = False,
) -> TuneResult:
    """Find the fastest kernels of a model's convolutions on a device of this machine or of boards.

    Measurements go into the user's tuning records, which ``compile`` takes from then on.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule, ``"zoo:NAME"``, or dict
        A dict of names to any of the others as for :func:`tvm_edge.compile`.
    target : str, dict or tvm.target.Target
        A device of this machine, or of boards; a CPU is measured with all its cores.
    trials : int, optional
        Configurations to measure in all, in place of those of the level.
    time_budget : float, optional
        Seconds; the last round, which times the fastest again, is counted by estimate.
    level : {"fast", "normal", "exhaustive"}
        10 or 64 trials for each distinct convolution on average, or all there are.
    host, input_shapes, input_values, preprocess
        As for :func:`tvm_edge.compile`. Beside a GPU of this machine candidates are measured with
        its CPU, whatever the host.
    precision : {"float32", "tf32", "float16", "mixed"}
        Precision that the model will be compiled with: on tensor cores its convolutions are tuned
        in float16 or tf32. Those that ``"mixed"`` leaves in float32 are tuned, too.
    tracker : str, optional
        ``host:port`` of TVM's RPC tracker: the device is on the boards that serve `key` there, on
        all of them at once; without `key`, of one board's own ``tvm-edge rpc-server``.
    key : str, optional
    tuning_logs : path, optional
        Folder of the records; default ``TVM_EDGE_TUNING_LOGS``, else the platform's data folder.
    resume : bool
        Go on with the run of the same model, device and seed that was interrupted.
    seed : int
    callbacks : sequence of callable
        Called with a :class:`Progress` after each round.
    graph : bool
        Choose the layouts of the whole network as well: convolutions are measured in other layouts
        too, with a third of the trials, and ``compile`` takes what was chosen if it was faster. On
        a GPU of models that it runs alone (``compile(…, fallback="none")``).
    parallel_fusion : bool
        Measure groups of independent kernels as well, apart and in one launch, with a third of the
        time: ``compile(…, parallel_fusion="auto")`` takes those that were faster, of several models
        too. Up to 16 groups or 64 by `level`, or as many as there are. On this machine.

    Returns
    -------
    TuneResult
        Result of an interrupted run as well: Ctrl-C ends it, and what was measured is kept.

    Raises
    ------
    InputError
        An argument means nothing, or what this version cannot do.
    DeviceUnavailableError
        The device is not in this machine, or no board is there that has it.
    DeviceLost
        No board is left; ``resume=True`` goes on.
    MissingDependencyError
        XGBoost, or a compiler for the device.
    RecordError
        The folder cannot be written: the disk is full, say.
    TuningError
        Every candidate failed.
    """
    check_options(
        trials=trials,
        time_budget=time_budget,
        level=level,
        precision=precision,
        tracker=tracker,
        key=key,
        tuning_logs=tuning_logs,
        seed=seed,
        graph=graph,
        parallel_fusion=parallel_fusion,
    )
    if parallel_fusion:
        check_groups(tracker)
    resolved = resolve_target(target, host)
    if graph:
        check_graph(resolved)
    check_tuned_precision(precision, resolved)
    if tracker is None:
        check_device(resolved)
    folder = user_folder(tuning_logs if not isinstance(tuning_logs, bool) else None)
    inputs = {
        "input_shapes": input_shapes,
        "input_values": input_values,
        "preprocess": preprocess,
    }
    with hold_interrupts():
        tasks = extract_tasks(model, resolved, inputs, precision)
    name = model if isinstance(model, str | os.PathLike) else type(model).__name__
    if isinstance(model, Mapping):
        name = " + ".join(model)
    recorder = Recorder(resolved, folder)
    given = target if isinstance(target, str | dict) else json.loads(str(target))
    boards = None if tracker is None else Boards(tracker, key, host)
    run = Run(str(name), resolved, given, boards, tasks, folder, recorder, seed, tuple(callbacks))
    tuner = None
    if graph:
        with hold_interrupts():
            tuner = GraphTuner(model, given, resolved, inputs, folder, on_board=tracker is not None)
    start = monotonic()
    budget = time_budget
    if time_budget is not None and parallel_fusion:
        budget = time_budget * (1 - 1 / _OTHERS)
    result = _tuned(run, tuner, trials, level, budget, resume)
    if not parallel_fusion or result.interrupted:
        return result
    groups = GroupTuner(
        model,
        given,
        host,
        inputs,
        recorder,
        folder,
        resolved.kind,
        most=GROUPS[level],
        deadline=None if time_budget is None else start + time_budget,
        device=run.device,
    )
    return _with_groups(result, groups)


def _with_groups(result: TuneResult, groups: GroupTuner) -> TuneResult:
    """Measure groups of kernels as well; those before an interrupt are kept."""
    interrupt = Interrupt()
    groups.check = interrupt.check
    with interrupt:
        try:
            groups()
        except KeyboardInterrupt:
            result = replace(result, interrupted=True)
    return replace(result, groups=tuple(groups.results))


def _tuned(
    run: Run,
    tuner: GraphTuner | None,
    trials: int | None,
    level: str,
    time_budget: float | None,
    resume: bool,
) -> TuneResult:
    """Tune convolutions one by one, and with a graph tuner the layouts of all."""
    if tuner is None or not tuner.graph.convolutions:
        result = run(_trials(run.tasks, trials, LEVELS[level]), time_budget, resume)
        return result if tuner is None else replace(result, graph_note=tuner.no_choice())
    start = monotonic()
    if trials is not None:
        trials, others = trials - trials // _OTHERS, trials // _OTHERS
    budget = None if time_budget is None else time_budget * (1 - 1 / _OTHERS)
    result = run(_trials(run.tasks, trials, LEVELS[level]), budget, resume)
    if result.interrupted:
        return result
    counts = Counter(tuner.graph.convolutions.values())
    more = replace(
        run,
        tasks=extract_layout_tasks(counts, run.resolved),
        errors=Counter(),
        taken=0,
        interrupt=Interrupt(),
        # All layouts before more of one: what was not measured is not chosen for its speed.
        turn=1,
    )
    tuner.check = more.interrupt.check
    each = LEVELS[level]
    each = None if each is None else -(-each // _OTHERS)
    left = None if time_budget is None else max(time_budget - (monotonic() - start), 1e-3)
    second = more(_trials(more.tasks, None if trials is None else others, each), left, resume)
    result = result.with_more(second)
    if result.interrupted:
        return result
    with more.interrupt, more.device():
        try:
            return replace(result, graph=tuner(run.model))
        except KeyboardInterrupt:
            return replace(result, interrupted=True)


def _trials(tasks: Sequence[Task], trials: int | None, each: int | None) -> int:
    every = sum(len(task.configs) for task in tasks)
    wanted = trials if trials is not None else every if each is None else each * len(tasks)
    return min(wanted, every)
