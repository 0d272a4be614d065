"""A model's kernels again, in work-groups that a driver takes whose limits turn out to be lower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm

from tvm_edge.compiler import describe, phases
from tvm_edge.compiler.build import BuiltLibrary, build
from tvm_edge.compiler.models_alone import models_alone, with_models
from tvm_edge.compiler.provenance import NodeTrace
from tvm_edge.compiler.schedule import schedule_kernels
from tvm_edge.compiler.steps import fuse, lift_weights, lower
from tvm_edge.compiler.tuned import Tuned
from tvm_edge.errors import CompilationError
from tvm_edge.frontend import ImportedModel
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.memory.footprint import call_bytes, kernel_scratch
from tvm_edge.relay_passes.ir.expressions import kernel_calls
from tvm_edge.relay_passes.memory.stream_layers import stream_layers
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.report import Launches
from tvm_edge.schedules.conv_config import ConvConfig

__all__ = ["has_smaller", "smaller"]

# Work-items of a group that a driver runs whatever registers they take: Midgard's fewest.
_SMALLER_GROUPS = 64

# Algorithms whose tiles hold in work-groups of any size.
_KEPT = ("subgroup", "items")


def has_smaller(resolved: ResolvedTarget) -> bool:
    """Whether a driver may allow a kernel fewer work-items than its device.

    That is known when the driver has built the kernel, maybe on another machine: OpenCL.
    """
    spec = resolved.spec
    return (
        resolved.facts.limits_kernels
        and not spec.has_cpu_cores
        and spec.max_work_group_size > _SMALLER_GROUPS
    )


def smaller(
    stored: tvm.IRModule,
    resolved: ResolvedTarget,
    kinds: Sequence[str],
    weights: Sequence[tvm.runtime.Tensor],
    precision: str,
    recorded: Tuned,
    imported: ImportedModel,
    plan: LayoutPlan | None = None,
    least_streamed: int | None = None,
) -> BuiltLibrary:
    """A placed model again in smaller work-groups, with the same weights in the same order."""
    # Measured tiles may be of larger groups; the algorithm stays, as weights are packed for it.
    configs = {workload: _without_tile(c) for workload, c in recorded.configs.items()}
    if plan is not None:
        own = {number: _without_tile(config) for number, config in plan.configs.items()}
        plan = replace(plan, configs=own)
    small = replace(resolved, spec=replace(resolved.spec, max_work_group_size=_SMALLER_GROUPS))
    with resolved.target:
        laid_out = phases.layout(small.spec, configs, plan)(stored)
        legal = phases.legalize(small, precision, configs, resolved.spec)(laid_out)
        grouped = phases.GROUP(legal)
        calls = NodeTrace(legal).calls(grouped)
        fused, left = fuse(grouped, small)
        calls = [calls[i] for i in left]
        streamed = stream_layers(fused, least_streamed)
        scheduled, schedules = schedule_kernels(streamed.module, small, precision)
        roomy = phases.WORKSPACE(phases.IN_PLACE(scheduled))
        names = kernel_calls(roomy)
        sizes = call_bytes(roomy, kernel_scratch(roomy, small), small.cpu.spec.cores)
        infos = describe.describe_kernels(
            fused, calls, names, schedules, imported, recorded.origins, sizes
        )
        lifted, lifted_weights, _ = lift_weights(phases.stream(small.kind)(roomy))
        lowered, _ = lower(lifted, kinds, small.shared)
        models = models_alone(lifted, imported.parts)
        alone = [lower(one.module, kinds, small.shared)[0] for one in models]
        lowered = with_models(lowered, alone)
        launches = Launches(infos, tuple(tuple(infos[i] for i in one.calls) for one in models))
    mine, others = ([(w.shape, w.dtype) for w in each] for each in (lifted_weights, weights))
    if mine != others:
        raise CompilationError(
            "the kernels with smaller work-groups want other weights than the model's; this is a "
            "bug in tvm-edge: report it with the model"
        )
    return build(lowered, resolved, launches=launches)


def _without_tile(config: ConvConfig) -> ConvConfig:
    return config if config.algorithm in _KEPT else replace(config, knobs="")
