"""``compile`` and ``analyze``, as numbered phases."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal

import tvm

from tvm_edge.compiler import describe, phases
from tvm_edge.compiler.budgeted import within_budget
from tvm_edge.compiler.build import BuiltLibrary, build
from tvm_edge.compiler.models_alone import Lowered, largest, models_alone, with_models
from tvm_edge.compiler.options import (
    check_options,
    check_precision,
    check_window,
    exceptions_of,
)
from tvm_edge.compiler.parallel import describe_groups, merge_kernels, merged_infos
from tvm_edge.compiler.pipeline import dump
from tvm_edge.compiler.placement import Placed, copies_of, place
from tvm_edge.compiler.planned import Planned, planned_layouts
from tvm_edge.compiler.provenance import NodeTrace
from tvm_edge.compiler.schedule import schedule_kernels
from tvm_edge.compiler.smaller import has_smaller, smaller
from tvm_edge.compiler.steps import fuse, lift_weights, lower
from tvm_edge.compiler.tuned import TuningLogs, choose
from tvm_edge.compiler.without_winograd import without_winograd
from tvm_edge.errors import (
    CompilationError,
    TvmEdgeError,
    TvmEdgeWarning,
    UnsupportedOperatorError,
    one_line,
)
from tvm_edge.frontend import ImportedModel, load_model, survey_model
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.memory.budget import parse_budget
from tvm_edge.memory.footprint import (
    call_bytes,
    kernel_scratch,
    uploaded,
    weights_of_devices,
)
from tvm_edge.memory.plans import AS_IS, Plan
from tvm_edge.relay_passes.concat_in_place import concat_in_place
from tvm_edge.relay_passes.expressions import kernel_calls
from tvm_edge.relay_passes.layout_graph import LayoutPlan
from tvm_edge.relay_passes.lower_precision import lower_precision
from tvm_edge.relay_passes.quantize import is_quantized
from tvm_edge.relay_passes.split_conv import split_convolutions
from tvm_edge.relay_passes.split_fc import split_dense
from tvm_edge.relay_passes.stream_layers import stream_layers
from tvm_edge.report import CompileReport, KernelInfo, MemoryInfo, TensorSpec
from tvm_edge.runtime import CompiledModel, DevicePlan, ModelInfo
from tvm_edge.runtime.threads import resolve_num_threads
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.conv_config import ConvConfig

__all__ = ["analyze", "compile", "compile_with", "unmerged_kernels"]

_LOG = logging.getLogger("tvm_edge.compiler")


def compile(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str = "float32",
    precision_exceptions: Sequence[str] = (),
    fallback: str | Sequence[str] = "auto",
    parallel_fusion: str | bool = False,
    memory_budget: int | str | None = None,
    tuning_logs: TuningLogs = None,
    num_threads: int | None = None,
) -> CompiledModel:
    """Compile a model for a target. Deterministic: nothing is measured.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule, ``"zoo:NAME"``, or dict
        A dict of names to any of the others makes one artifact. Its inputs, outputs and operators
        are called ``"name/…"``; ``run(inputs, models=[…])`` runs some of the models. With
        `parallel_fusion` kernels of different models share launches where all run together.
    target : str, dict or tvm.target.Target
        ``"llvm"`` is this machine's CPU with its real instruction set and all its cores;
        ``"opencl"`` and ``"cuda"`` are its GPU, or a generic one where there is none; a preset
        (``"mali-t860"``), a TVM tag (``"arm/rk3399"``) or a dict names another.
    host : str, dict or tvm.target.Target, optional
        The CPU beside a GPU. Default: what the target says, else this machine's.
    input_shapes : mapping of str to sequence of int, optional
        Shapes of inputs with dynamic dimensions.
    precision : {"float32", "tf32", "float16", "mixed"}
        ``"tf32"`` lets convolutions and matrix products round their operands to 10 bits of
        mantissa, for the tensor cores of NVIDIA's GPUs (``target="cuda"``, Ampere or newer).
        ``"mixed"`` stores weights and activations as float16 and calculates in float32;
        ``"float16"`` also multiplies in float16, and adds up so for a few terms at most (a step
        of a tile, or a window), where that is faster: on OpenCL. Both are of GPUs with float16.
        Inputs and outputs keep their types, and operators that float16 does not suit stay
        float32, which ``report.precision`` lists. ``benchmarks/precision.py`` measures how large
        the error is.
    precision_exceptions : sequence of str
        Operators or ONNX nodes that stay float32.
    fallback : {"auto", "list", "none", "error"} or sequence of str
        Which operators leave a GPU for the CPU beside it. ``"auto"``: those that a GPU cannot run,
        and those with which a run takes less time by the devices' data sheets, copies counted
        (:mod:`tvm_edge.relay_passes.place_by_cost`); ``"list"``: those that a GPU cannot run,
        and those outside the list of what performs on its kind of device (ICPP'19 §3.1.2);
        ``"none"``: none, and a model with one that a GPU cannot run is refused; ``"error"``: so is
        one of which ``"list"`` would move an operator; names of operators or ONNX nodes: those, and
        what a GPU cannot run.
    parallel_fusion : {"auto", True, False}
        Whether kernels that do not depend on each other, as those of branches, share a launch
        (EMDL'21). ``"auto"``: where the policy predicts that it gains
        (:mod:`tvm_edge.schedules.parallel_policy`); ``True``: wherever it can be.
        ``report.fusion_groups`` says which, and why others do not. By default ``False``: the
        policy was fitted to groups on one H200, and no network was measured with it.
        ``tune(…, parallel_fusion=True)`` measures groups on a device; ``"auto"`` takes
        what that found, on CPUs too, and predicts of GPUs what nobody measured.
    memory_budget : int or str, optional
        What a process that loads the exported model and runs it may take: bytes, or a size as
        ``"512MiB"``. Counted is anonymous and shared memory, that of the Python process included,
        and memory that a GPU has of its own; weights that are mapped from the artifact are not, as
        the operating system may drop them. The fastest plan by prediction is taken that fits:
        fully connected layers on the CPU, no Winograd algorithm, …; ``report.memory.plans`` lists
        all of them.
    tuning_logs : path or False, optional
        Tuning records: a folder of them or one file, in place of the user's own, which are in
        ``TVM_EDGE_TUNING_LOGS`` or the platform's data folder; ``False`` for none, those that ship
        with the package included. Of each convolution that one is taken of this device, else of its
        architecture, else of its vendor, that is legal and fastest; ``report.records`` says of how
        many, and which were ignored and why. Those of ``precision="float32"`` alone.
    num_threads : int, optional
        Threads of the returned model; default ``TVM_NUM_THREADS``, else all physical cores.

    Returns
    -------
    CompiledModel

    Raises
    ------
    InvalidModelError, UnsupportedOperatorError, InputError, PlacementError, CompilationError
        See :mod:`tvm_edge.errors`.
    MemoryBudgetError
        No plan fits the budget; its ``smallest_feasible`` has what would.
    """
    check_options(
        precision=precision,
        fallback=fallback,
        parallel_fusion=parallel_fusion,
        memory_budget=memory_budget,
        tuning_logs=tuning_logs,
        precision_exceptions=precision_exceptions,
    )
    return compile_with(
        model,
        target,
        {},
        host=host,
        input_shapes=input_shapes,
        precision=precision,
        precision_exceptions=precision_exceptions,
        fallback=fallback,
        parallel_fusion=parallel_fusion,
        memory_budget=memory_budget,
        tuning_logs=tuning_logs,
        num_threads=num_threads,
    )


def compile_with(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    configs: Mapping[ConvWorkload, ConvConfig],
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str = "float32",
    precision_exceptions: Sequence[str] = (),
    fallback: str | Sequence[str] = "auto",
    parallel_fusion: str | bool = False,
    memory_budget: int | str | None = None,
    tuning_logs: TuningLogs = False,
    num_threads: int | None = None,
    layout_plan: LayoutPlan | Literal[False] | None = None,
    weight_window: int | None = None,
    conv_window: int | None = None,
    way: Plan = AS_IS,
) -> CompiledModel:
    """:func:`compile`, with the algorithm and knobs of some convolutions given.

    Parameters
    ----------
    configs : mapping of ConvWorkload to ConvConfig
        What a measurement chose; records, and then the heuristic, choose for all others.
    layout_plan : LayoutPlan or False, optional
        The layouts of the whole network, in place of those in records; ``False`` for estimates.
    weight_window : int, optional
        Bytes. The weights of dense layers with more stay in the artifact, and are read in every
        run, part by part: two of them take no more memory than this
        (:mod:`tvm_edge.relay_passes.split_fc`). Those of a model that runs in the process that
        compiled it lie in memory all the same; a GPU has two parts at a time.
    conv_window : int, optional
        Bytes. The weights of layers that are in one piece are read in every run as well, from a MiB
        on; two of them take no more memory than this: convolutions of more than half of it are cut
        (:mod:`tvm_edge.relay_passes.stream_layers`).
    way : Plan
        What to do where there is no `memory_budget`, which chooses by itself.

    Raises
    ------
    InputError
        A window too small for a layer; the message says which would do.
    """
    check_window("weight_window", weight_window)
    check_window("conv_window", conv_window)
    num_threads = resolve_num_threads(num_threads)
    if weight_window is not None:
        way = replace(way, weight_window=weight_window)
    if conv_window is not None:
        way = replace(way, conv_window=conv_window)

    def make(model: Any, way: Plan = way) -> _Plan:
        return _plan(
            model,
            target,
            input_shapes,
            fallback,
            host,
            configs,
            precision,
            precision_exceptions,
            tuning_logs,
            parallel_fusion,
            layout_plan,
            way,
        )

    plan = _fitting(make, model, input_shapes, memory_budget, target, host, fallback)
    with plan.clock("build"):
        library = build(plan.lowered, plan.resolved, plan.smaller)
    report = replace(plan.report, seconds=plan.clock.seconds)
    for message in report.warnings:
        warnings.warn(message, TvmEdgeWarning, stacklevel=2)
    _LOG.info("%s: %s", report.model, report.placement_line())
    resolved = plan.resolved
    code = {
        "kind": resolved.kind,
        "config": str(resolved.target),
        "triple": resolved.triple,
        "architecture": resolved.architecture,
        "features": sorted(resolved.features),
        "device": resolved.spec.to_dict(),
    }
    devices = DevicePlan(plan.placed.kinds, plan.placed.inputs, tuple(plan.weight_devices))
    imported = plan.imported
    info = ModelInfo(imported.inputs, imported.outputs, code, devices, report, imported.parts)
    return CompiledModel(info, library, plan.weights, num_threads)


def analyze(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    fallback: str | Sequence[str] = "auto",
    parallel_fusion: str | bool = False,
    memory_budget: int | str | None = None,
    tuning_logs: TuningLogs = None,
) -> CompileReport:
    """Say what :func:`compile` would do, without generating code and without a device.

    A model with operators that have no implementation is no error here: the report lists them as
    ``unsupported`` and says of the others what they take; kernels and memory stay open.

    Parameters
    ----------
    model, target, host, input_shapes, fallback, parallel_fusion, memory_budget, tuning_logs
        As for :func:`compile`.

    Returns
    -------
    CompileReport

    Raises
    ------
    InvalidModelError, InputError, PlacementError, MemoryBudgetError
    """
    check_options(
        precision="float32",
        fallback=fallback,
        parallel_fusion=parallel_fusion,
        memory_budget=memory_budget,
        tuning_logs=tuning_logs,
    )

    def make(model: Any, way: Plan = AS_IS) -> _Plan:
        return _plan(
            model,
            target,
            input_shapes,
            fallback,
            host,
            tuning_logs=tuning_logs,
            parallel_fusion=parallel_fusion,
            way=way,
        )

    try:
        return _fitting(make, model, input_shapes, memory_budget, target, host, fallback).report
    except UnsupportedOperatorError as err:
        survey = survey_model(model, input_shapes, err)
    resolved = resolve_target(target, host)
    placements = describe.describe_unplaced(survey)
    return CompileReport(
        model=survey.name,
        target=f"{resolved.kind} ({resolved.spec.name})",
        placements=placements,
        kernels=(),
        memory=None,
        warnings=survey.warnings,
        operators=describe.describe_operators(survey.nodes, survey.folded, placements),
        unsupported=survey.unsupported,
    )


def unmerged_kernels(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    tuning_logs: TuningLogs = False,
) -> tuple[tvm.IRModule, ResolvedTarget]:
    """What :func:`compile` hands to parallel fusion: a module of scheduled kernels, and its device.

    Parameters
    ----------
    model, target, host, input_shapes, tuning_logs
        As for :func:`compile`.
    """
    plan = _plan(model, target, input_shapes, "auto", host, tuning_logs=tuning_logs)
    return plan.unmerged, plan.resolved


@dataclass(frozen=True)
class _Plan:
    """Everything there is to know before code is generated."""

    resolved: ResolvedTarget
    imported: ImportedModel
    placed: Placed
    lowered: tvm.IRModule
    weights: list[tvm.runtime.Tensor]
    weight_devices: list[int]
    report: CompileReport
    clock: _Clock
    smaller: Callable[[], BuiltLibrary] | None
    unmerged: tvm.IRModule


def _plan(
    model: Any,
    target: Any,
    input_shapes: Mapping[str, Sequence[int]] | None,
    fallback: str | Sequence[str],
    host: Any = None,
    configs: Mapping[ConvWorkload, ConvConfig] | None = None,
    precision: str = "float32",
    precision_exceptions: Sequence[str] = (),
    tuning_logs: TuningLogs = False,
    parallel_fusion: str | bool = False,
    layout_plan: LayoutPlan | Literal[False] | None = None,
    way: Plan = AS_IS,
) -> _Plan:
    clock = _Clock()

    # 1. The target and what is known of its device.
    resolved = resolve_target(target, host)
    check_precision(precision, resolved)

    # 2. The model, in normal form.
    with clock("import"):
        imported = model
        if not isinstance(model, ImportedModel):
            imported = load_model(model, input_shapes)

    # 3. Graph: simplify, place, turn operators into kernels, group and fuse them.
    with clock("graph"):
        dump(imported.module, "imported")
        with resolved.cpu.target:  # constants are evaluated here
            simple = phases.SIMPLIFY(phases.quantize(resolved.spec)(imported.module))
        # Who asks for float16 wants the GPU: the CPU has no kernels of it.
        by_cost = precision in ("float32", "tf32")
        placed = place(simple, imported, resolved, fallback, by_cost=by_cost, offload=way.offload)
        if len(placed.kinds) > 1:
            dump(placed.module, "placed")
        asked = resolved
        if placed.kinds == (resolved.cpu.kind,) and resolved.host is not None:
            resolved, precision = resolved.host, "float32"  # as for a CPU alone, layouts and all
            if is_quantized(imported.module):  # its bytes are of the type that its kernels take
                with resolved.target:
                    simple = phases.SIMPLIFY(phases.quantize(resolved.spec)(imported.module))
                placed = replace(placed, module=simple)
        stored = placed.module
        lowered_types = None
        if precision in ("float16", "mixed"):
            exceptions = exceptions_of(imported, precision_exceptions)
            lowered_types = lower_precision(stored, resolved.kind, exceptions)
            stored = lowered_types.module
            dump(stored, "lower_precision")
        node_names = {i: node.name for i, node in enumerate(imported.nodes)}
        stored = split_convolutions(stored, way.conv_window, node_names)
        # Records are of float32: what is fastest with half of the bytes is another matter.
        tuning_logs = tuning_logs if precision == "float32" else False
        recorded = choose(stored, resolved, tuning_logs, configs or {})
        if not way.winograd:
            recorded = without_winograd(recorded, stored, resolved, precision)
        configs = recorded.configs
        planned = Planned(layout_plan or None)
        if layout_plan is None and len(placed.kinds) == 1 and way.winograd:
            planned = planned_layouts(stored, resolved, tuning_logs, imported.nodes)
        split = split_dense(stored, way.weight_window, node_names)
        stored = split.module
        with resolved.target:
            laid_out = phases.layout(resolved.spec, configs, planned.plan)(stored)
            legal = phases.legalize(resolved, precision, configs)(laid_out)
            grouped = phases.GROUP(legal)
            calls = NodeTrace(legal).calls(grouped)
            fused, left = fuse(grouped, resolved)
            calls = [calls[i] for i in left]
            streamed = stream_layers(fused, way.least_streamed)
            asking = [calls[position] for position in streamed.nbytes]

    # 4. A schedule for every kernel.
    with clock("schedule"), resolved.target:
        scheduled, schedules = schedule_kernels(streamed.module, resolved, precision)
        if resolved.spec.has_cpu_cores:
            scheduled, left = concat_in_place(scheduled)
            calls = [calls[i] for i in left]
        scheduled = phases.WORKSPACE(phases.IN_PLACE(scheduled))
        names = kernel_calls(scheduled)
        scratch = kernel_scratch(scheduled, resolved)
        sizes = call_bytes(scheduled, scratch, resolved.cpu.spec.cores)
        dump(scheduled, "scheduled")

    # 5. Weights leave the code; independent kernels are merged; storage is planned; the graph
    # becomes instructions.
    with clock("lower"), resolved.target:
        lifted, weights, weight_devices = lift_weights(
            phases.stream(resolved.kind)(scheduled), imported.parts
        )
        merge = partial(
            merge_kernels,
            resolved=resolved,
            parallel_fusion=parallel_fusion,
            tuning_logs=tuning_logs if precision == "float32" else False,
        )
        parallel = merge(lifted)
        dump(parallel.module, "parallel_fusion")
        lowered, plain = lower(parallel.module, placed.kinds, resolved.shared)
        alone = [
            Lowered(one, merge(one.module), placed.kinds, resolved.shared)
            for one in models_alone(lifted, imported.parts)
        ]
        lowered = with_models(lowered, [one.instructions for one in alone])

    # 6. What was decided.
    with clock("report"):
        apart = describe.describe_kernels(
            fused, calls, names, schedules, imported, recorded.origins, sizes
        )
        kernels = merged_infos(apart, parallel)
        placements = describe.describe_placements(imported, calls, schedules, placed.reasons)
        splits = (
            *describe.describe_splits(split.layers, placements),
            *describe.describe_streamed(streamed.nbytes.values(), asking, schedules, imported),
        )

        def memory_of(
            instructions: tvm.IRModule,
            items: Sequence[int],
            inputs: Sequence[TensorSpec],
            outputs: Sequence[TensorSpec],
            launches: Sequence[KernelInfo],
        ) -> MemoryInfo:
            own = (
                [weights[item] for item in items],
                [weight_devices[item] for item in items],
                placed.kinds,
            )
            held, on_gpu = weights_of_devices(*own), uploaded(*own)
            return describe.describe_memory(
                instructions, scratch, held, on_gpu, inputs, outputs, launches, splits, resolved
            )

        memory = memory_of(plain, range(len(weights)), imported.inputs, imported.outputs, kernels)
        models = tuple(one.described(imported, apart, memory_of) for one in alone)
        report = CompileReport(
            model=imported.name,
            target=f"{asked.kind} ({asked.spec.name})",
            placements=placements,
            operators=describe.describe_operators(imported.nodes, imported.folded, placements),
            kernels=kernels,
            copies=copies_of(legal, imported, resolved.shared),
            layouts=describe.describe_layouts(fused, calls, schedules, imported),
            fusion_groups=describe_groups(apart, parallel, parallel_fusion),
            memory=largest(memory, models),
            models=models,
            partitions=describe.partitions(kernels),
            precision=describe.describe_precision(
                precision, lowered_types, placed.module, imported
            ),
            records=recorded.with_ignored(planned.ignored),
            layout_choice=planned.info,
            splits=splits,
            warnings=(
                *imported.warnings,
                *describe.unfit_constants(lowered_types, imported),
                *recorded.warnings,
                *planned.warnings,
            ),
            seconds=clock.seconds,
        )
    remade = partial(
        smaller,
        stored,
        resolved,
        placed.kinds,
        weights,
        precision,
        configs,
        imported.parts,
        planned.plan,
        way.least_streamed,
    )
    fewer_items = remade if has_smaller(resolved) else None
    return _Plan(
        resolved,
        imported,
        placed,
        lowered,
        weights,
        weight_devices,
        report,
        clock,
        fewer_items,
        lifted,
    )


def _fitting(
    make: Callable[..., _Plan],
    model: Any,
    input_shapes: Mapping[str, Sequence[int]] | None,
    memory_budget: int | str | None,
    target: Any,
    host: Any,
    fallback: str | Sequence[str],
) -> _Plan:
    """What the compiler is to build: as it is, or by the plan that fits the budget."""
    budget = parse_budget(memory_budget)
    if budget is None:
        return make(model)
    clock = _Clock()
    with clock("import"):  # once for all plans
        imported = load_model(model, input_shapes)
    resolved = resolve_target(target, host)
    plan, report = within_budget(
        partial(make, imported), budget, imported.nodes, resolved, fallback
    )
    plan.clock.seconds.update(clock.seconds)
    return replace(plan, report=report)


class _Clock:
    """Wall-clock seconds of named phases, and whatever they raise as an error of ours."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        except TvmEdgeError:
            raise
        # A model is anybody's file, and TVM meets what it did not foresee with any exception.
        except Exception as err:
            _LOG.info("phase %r failed", name, exc_info=True)
            raise CompilationError(
                f"the compiler fails on this model in its phase {name!r} "
                f"({type(err).__name__}: {one_line(err)}); simplify the model, and report it "
                "with the model if ONNX Runtime runs it"
            ) from err
        self.seconds[name] = round(perf_counter() - start, 3)
