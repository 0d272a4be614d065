"""What is decided of a model before code is generated, as numbered phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import tvm

from tvm_edge.compiler import describe, phases
from tvm_edge.compiler.budgeted import within_budget
from tvm_edge.compiler.build import BuiltLibrary
from tvm_edge.compiler.clock import Clock
from tvm_edge.compiler.models_alone import Lowered, largest, models_alone, with_models
from tvm_edge.compiler.options import Options, check_precision, exceptions_of
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
from tvm_edge.frontend import ImportedModel, load_model
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.memory.budget import parse_budget
from tvm_edge.memory.footprint import call_bytes, kernel_scratch, uploaded, weights_of_devices
from tvm_edge.memory.plans import AS_IS, Plan
from tvm_edge.relay_passes.ir.expressions import kernel_calls
from tvm_edge.relay_passes.memory.concat_in_place import concat_in_place
from tvm_edge.relay_passes.memory.split_conv import split_convolutions
from tvm_edge.relay_passes.memory.split_fc import split_dense
from tvm_edge.relay_passes.memory.stream_layers import stream_layers
from tvm_edge.relay_passes.memory.unaligned_inputs import take_unaligned, with_unaligned
from tvm_edge.relay_passes.precision.lower_precision import lower_precision
from tvm_edge.relay_passes.quantize.quantize import is_quantized
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.report import CompileReport, KernelInfo, MemoryInfo, TensorSpec
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["Prepared", "prepare", "prepare_within"]


@dataclass(frozen=True)
class Prepared:
    """Everything there is to know before code is generated.

    Attributes
    ----------
    resolved : ResolvedTarget
        What runs the model: of a GPU that all operators left, the CPU beside it.
    imported : ImportedModel
    placed : Placed
    lowered : tvm.IRModule
        Instructions and kernels.
    weights : list of tvm.runtime.Tensor
    weight_devices : list of int
        Of each weight the device that reads it, or that it is streamed.
    report : CompileReport
        Without the seconds of the build.
    clock : Clock
    smaller : callable or None
        Builds the same with smaller work-groups; ``None`` where there is nothing to make smaller.
    unmerged : tvm.IRModule
        Scheduled kernels, as parallel fusion gets them.
    """

    resolved: ResolvedTarget
    imported: ImportedModel
    placed: Placed
    lowered: tvm.IRModule
    weights: list[tvm.runtime.Tensor]
    weight_devices: list[int]
    report: CompileReport
    clock: Clock
    smaller: Callable[[], BuiltLibrary] | None
    unmerged: tvm.IRModule


def prepare(
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
) -> Prepared:
    """Decide everything up to code; the parameters are those of ``compile_with``.

    Parameters
    ----------
    model
        As ``compile`` takes it, or an :class:`ImportedModel`: several plans of one model import it
        once.
    """
    clock = Clock()

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
        lifted, weights, weight_devices = lift_weights(phases.stream(resolved.kind)(scheduled))
        on_cpu = [i for i, d in enumerate(placed.inputs) if placed.kinds[d] == resolved.cpu.kind]
        lifted, anywhere = take_unaligned(lifted, on_cpu)
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
        lowered = with_unaligned(lowered, anywhere)

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
        recorded,
        imported,
        planned.plan,
        way.least_streamed,
    )
    fewer_items = remade if has_smaller(resolved) else None
    return Prepared(
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


def prepare_within(model: Any, target: Any, options: Options, **decided: Any) -> Prepared:
    """A model as it is, or by the plan that fits the budget.

    Parameters
    ----------
    model, target
        As ``compile`` takes them.
    options : Options
    **decided
        What :func:`prepare` takes beside; a plan that fits is given as another ``way``.

    Raises
    ------
    MemoryBudgetError
        No plan fits.
    """

    def make(model: Any, **plan: Any) -> Prepared:
        return prepare(
            model,
            target,
            options.input_shapes,
            options.fallback,
            options.host,
            precision=options.precision,
            precision_exceptions=options.precision_exceptions,
            tuning_logs=options.tuning_logs,
            parallel_fusion=options.parallel_fusion,
            **(decided | plan),
        )

    budget = parse_budget(options.memory_budget)
    if budget is None:
        return make(model)
    clock = Clock()
    with clock("import"):  # once for all plans
        imported = load_model(model, options.input_shapes)
    resolved = resolve_target(target, options.host)
    plan, report = within_budget(
        lambda way: make(imported, way=way), budget, imported.nodes, resolved, options.fallback
    )
    plan.clock.seconds.update(clock.seconds)
    return replace(plan, report=report)
