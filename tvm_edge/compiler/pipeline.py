"""The compiler: one list of passes from operators to instructions.

::

    python -m tvm_edge.compiler.pipeline                           # the list
    python -m tvm_edge.compiler.pipeline zoo:mobilenet_v2 opencl   # what each pass does to a model

Variants are arguments of the list: a memory budget's plan, smaller work-groups, one of several
models, recorded launches. Each runs the passes that it concerns once more on its own
:class:`~tvm_edge.compiler.compilation.Compilation`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import tvm
from tvm.relax import transform
from tvm.relax.backend import DispatchSampling, DispatchSortScan

from tvm_edge.compiler import describe
from tvm_edge.compiler.compilation import Compilation, Kernel, ModelInstructions
from tvm_edge.compiler.convolutions import avoid_winograd, choose_convolutions
from tvm_edge.compiler.layouts import LayoutChoice, choose_layouts
from tvm_edge.compiler.options import Options, exceptions_of
from tvm_edge.compiler.parallel_fusion import merge_kernels
from tvm_edge.compiler.passes import CompilerPass, Pipeline, on_module
from tvm_edge.compiler.placement import Placed, copies_of, place
from tvm_edge.frontend import ImportedModel
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.memory.footprint import call_bytes, kernel_scratch
from tvm_edge.relay_passes.instructions.add_recordings import with_recordings
from tvm_edge.relay_passes.instructions.add_stages import with_stages
from tvm_edge.relay_passes.instructions.announce_recordings import AnnounceRecordings
from tvm_edge.relay_passes.instructions.hoist_weights import HoistWeights
from tvm_edge.relay_passes.instructions.keep_region_results import KeepRegionResults
from tvm_edge.relay_passes.instructions.lower_copies import LowerCopies
from tvm_edge.relay_passes.instructions.mark_made_arguments import MarkMade
from tvm_edge.relay_passes.instructions.record_on_opencl import RecordOnOpenCL
from tvm_edge.relay_passes.instructions.separate_models import models_alone, with_models
from tvm_edge.relay_passes.instructions.write_on_host import WriteOnHost
from tvm_edge.relay_passes.ir.locations import calls_by_kernel
from tvm_edge.relay_passes.ir.node_trace import NodeTrace
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.relay_passes.layout.pack_matrices import PackMatrices
from tvm_edge.relay_passes.lower.fuse_tir import FuseTIR
from tvm_edge.relay_passes.lower.launch_grids import LaunchGrids
from tvm_edge.relay_passes.lower.legalize import legalize_ops
from tvm_edge.relay_passes.lower.lower_operators import LowerOperators
from tvm_edge.relay_passes.lower.number_kernels import number_kernels
from tvm_edge.relay_passes.lower.schedule_kernels import schedule_kernels
from tvm_edge.relay_passes.lower.spread_vdevices import SpreadVDevices
from tvm_edge.relay_passes.memory.add_workspace import AddWorkspace
from tvm_edge.relay_passes.memory.concat_in_place import concat_in_place
from tvm_edge.relay_passes.memory.lift_weights import LiftWeights
from tvm_edge.relay_passes.memory.plan_memory import PlanMemory
from tvm_edge.relay_passes.memory.reuse_in_place import ReuseInPlace
from tvm_edge.relay_passes.memory.share_constants import ShareConstants
from tvm_edge.relay_passes.memory.split_conv import split_convolutions
from tvm_edge.relay_passes.memory.split_fc import split_dense
from tvm_edge.relay_passes.memory.stream_layers import stream_layers
from tvm_edge.relay_passes.memory.stream_weights import StreamWeights
from tvm_edge.relay_passes.memory.unaligned_inputs import take_unaligned, with_unaligned
from tvm_edge.relay_passes.place.verify_placement import VerifyPlacement
from tvm_edge.relay_passes.precision.calculate_in_float32 import CalculateInFloat32
from tvm_edge.relay_passes.precision.lower_precision import lower_precision
from tvm_edge.relay_passes.quantize.quantize import Quantize, is_quantized
from tvm_edge.relay_passes.simplify.fold_affine import FoldAffine
from tvm_edge.relay_passes.simplify.fold_constant_views import FoldConstantViews
from tvm_edge.relay_passes.simplify.fold_dequantized import FoldDequantized
from tvm_edge.schedules.conv_config import ConvConfig

__all__ = ["PIPELINE", "in_smaller_groups", "instructions_of", "main"]

RECORDINGS = {
    "cuda": frozenset(("AnnounceRecordings",)),
    "opencl": frozenset(("HoistWeights", "RecordOnOpenCL")),
}
"""Kinds of devices whose drivers record launches, with the passes that only one of them needs."""

_SMALLER_GROUPS = 64
"""Work-items of a group that a driver runs whatever registers they take: Midgard's fewest."""

_ANY_GROUP = ("subgroup", "items")
"""Algorithms whose tiles hold in work-groups of any size."""


# --------------------------------------------------------------------- place, precision, choices


def _place(c: Compilation) -> Compilation:
    # Who asks for float16 wants the GPU: the CPU has no kernels of it.
    by_cost = c.precision in ("float32", "tf32")
    fallback, offload = c.options.fallback, c.plan.offload
    placed = place(c.module, c.imported, c.resolved, fallback, by_cost=by_cost, offload=offload)
    return replace(c, module=placed.module, placed=placed, asked=c.resolved)


def _left_the_gpu(c: Compilation) -> bool:
    return c.resolved.host is not None and c.placed.kinds == (c.resolved.cpu.kind,)


def _compile_for_host(c: Compilation) -> Compilation:
    host = c.resolved.host
    assert host is not None, "there is one where operators can leave for it"
    c = replace(c, resolved=host, precision="float32")
    if is_quantized(c.imported.module):  # its int8 is of the type that the host's kernels take
        again = replace(c, module=c.imported.module)
        module = PIPELINE.part(until="PlaceOperators").nested(again).module
        c = replace(c, module=module, placed=replace(c.placed, module=module))
    return c


def _lower_precision(c: Compilation) -> Compilation:
    exceptions = exceptions_of(c.imported, c.options.precision_exceptions)
    lowered = lower_precision(c.module, c.resolved.kind, exceptions)
    return replace(c, module=lowered.module, lowered_types=lowered)


def _tuning_logs(c: Compilation) -> Any:
    """Where tuning records are looked up: they are of float32."""
    return c.options.tuning_logs if c.precision == "float32" else False


def _choose_convolutions(c: Compilation) -> Compilation:
    choices = choose_convolutions(c.module, c.resolved, _tuning_logs(c), c.configs)
    return replace(c, choices=choices)


def _avoid_winograd(c: Compilation) -> Compilation:
    return replace(c, choices=avoid_winograd(c.choices, c.module, c.resolved, c.precision))


def _choose_layouts(c: Compilation) -> Compilation:
    if c.layout_plan is not None or len(c.placed.kinds) > 1 or not c.plan.winograd:
        return replace(c, layouts=LayoutChoice(c.layout_plan or None))
    layouts = choose_layouts(c.module, c.resolved, _tuning_logs(c), c.imported.nodes)
    return replace(c, layouts=layouts)


def _node_names(c: Compilation) -> dict[int, str]:
    return {index: node.name for index, node in enumerate(c.imported.nodes)}


def _split_dense(c: Compilation) -> Compilation:
    split = split_dense(c.module, c.plan.weight_window, _node_names(c))
    return replace(c, module=split.module, split_layers=split.layers)


def _has_smaller_groups(c: Compilation) -> bool:
    """Whether a driver may allow a kernel fewer work-items than its device.

    That is known when the driver has built the kernel, maybe on another machine: OpenCL.
    """
    spec = c.resolved.spec
    large = spec.max_work_group_size > _SMALLER_GROUPS
    return c.resolved.facts.limits_kernels and not spec.has_cpu_cores and large


def in_smaller_groups(c: Compilation) -> Compilation | None:
    """Start of the same compilation in work-groups that every driver takes.

    The weights are those of `c`: measured tiles, which may be of larger groups, are dropped, but
    the algorithms stay, as weights are packed for them. ``None`` where nothing would be smaller.
    """
    start = c.before_layout
    if start is None:
        return None
    configs = {workload: _without_tile(each) for workload, each in start.choices.configs.items()}
    plan = start.layouts.plan
    if plan is not None:
        own = {number: _without_tile(config) for number, config in plan.configs.items()}
        plan = replace(plan, configs=own)
    spec = replace(start.resolved.spec, max_work_group_size=_SMALLER_GROUPS)
    return replace(
        start,
        choices=replace(start.choices, configs=configs),
        layouts=replace(start.layouts, plan=plan),
        asked=start.resolved,
        resolved=replace(start.resolved, spec=spec),
        work_group=_SMALLER_GROUPS,
    )


def _without_tile(config: ConvConfig) -> ConvConfig:
    return config if config.algorithm in _ANY_GROUP else replace(config, knobs="")


# --------------------------------------------------------------------------------------- kernels


def _lower_operators(c: Compilation) -> tvm.transform.Pass:
    chooser = None if c.work_group is None else c.asked.spec
    return LowerOperators(c.resolved, c.precision, c.choices.configs, chooser)


def _list_copies(c: Compilation) -> Compilation:
    return replace(c, copies=copies_of(c.module, c.imported, c.resolved.shared))


def _number_kernels(c: Compilation) -> Compilation:
    assert c.trace is not None, "nodes are traced before kernels are grouped"
    nodes = c.trace.nodes_of_kernels(c.module)
    kernels = {number: Kernel(nodes=each) for number, each in enumerate(nodes.values())}
    return replace(c, module=number_kernels(c.module, nodes), kernels=kernels, trace=None)


def _stream_layers(c: Compilation) -> Compilation:
    streamed = stream_layers(c.module, c.plan.least_streamed)
    kernels = {
        number: replace(kernel, streamed_layer=streamed.nbytes.get(number))
        for number, kernel in c.kernels.items()
    }
    return replace(c, module=streamed.module, kernels=kernels)


def _measure_loops(c: Compilation) -> Compilation:
    kernels = dict(c.kernels)
    for number, binding in calls_by_kernel(c.module).items():
        gvar = binding.value.args[0]
        func = c.module[gvar]
        flops, nbytes = describe.loop_flops(gvar, func), describe.argument_bytes(func)
        kernels[number] = replace(kernels[number], loop_flops=flops, nbytes=nbytes)
    return replace(c, kernels=kernels)


def _schedule_kernels(c: Compilation) -> Compilation:
    scheduled, schedules = schedule_kernels(c.module, c.resolved, c.precision)
    kernels = dict(c.kernels)
    for number, binding in calls_by_kernel(c.module).items():
        gvar = binding.value.args[0]
        schedule = schedules[str(gvar.name_hint)]
        block = describe.channel_block(c.module[gvar], schedule.rule)
        kernels[number] = replace(kernels[number], schedule=schedule, block=block)
    return replace(c, module=scheduled, kernels=kernels)


def _concat_in_place(c: Compilation) -> Compilation:
    """On the cores of a CPU a scheduled kernel is told the offset when it is called."""
    return replace(c, module=concat_in_place(c.module))


def _concat_at_offsets(c: Compilation) -> Compilation:
    """On a GPU there is a kernel for each offset, before it is scheduled."""
    return replace(c, module=concat_in_place(c.module, specialise=True))


def _measure_kernels(c: Compilation) -> Compilation:
    scratch = kernel_scratch(c.module, c.resolved)
    sizes = call_bytes(c.module, scratch, c.resolved.cpu.spec.cores)
    calls = calls_by_kernel(c.module)
    kernels = dict(c.kernels)
    for number, binding in calls.items():
        weights, results, workspace, streamed = sizes[number]
        kernels[number] = replace(
            kernels[number],
            name=str(binding.value.args[0].name_hint),
            weights=weights,
            results=results,
            workspace=workspace,
            streamed=streamed,
        )
    launches = tuple(calls)
    return replace(c, kernels=kernels, scratch=scratch, launches=launches, apart=launches)


def _lift_weights(c: Compilation) -> Compilation:
    # A pass, by a decorator that type checkers cannot see through.
    lift: Any = LiftWeights()
    module = lift(c.module)
    return replace(
        c, module=module, weights=tuple(lift.weights), weight_devices=tuple(lift.devices)
    )


def _read_unaligned(c: Compilation) -> Compilation:
    devices = enumerate(c.placed.inputs)
    on_cpu = [number for number, device in devices if c.placed.kinds[device] == c.resolved.cpu.kind]
    module, taken = take_unaligned(c.module, on_cpu)
    return replace(c, module=module, unaligned=taken)


def _keep_lifted(c: Compilation) -> Compilation:
    return replace(c, lifted=c.module, merged=c.module)


def _fuse_parallel(c: Compilation) -> Compilation:
    fusion = c.options.parallel_fusion
    parallel = merge_kernels(c.module, c.resolved, fusion, _tuning_logs(c))
    calls = calls_by_kernel(parallel.module)
    kernels = dict(c.kernels)
    for number, members in parallel.merged.items():
        name = str(calls[number].value.args[0].name_hint)
        kernels[number] = Kernel(name=name, members=members)
    return replace(
        c,
        module=parallel.module,
        merged=parallel.module,
        kernels=kernels,
        launches=tuple(calls),
        groups=tuple(parallel.groups),
    )


# ---------------------------------------------------------------------------------- instructions


def _several(c: Compilation) -> bool:
    return len(c.placed.kinds) > 1


def _plan_first(c: Compilation) -> tvm.transform.Pass:
    # TVM's planner gives storage of one device to tensors of another.
    return PlanMemory([0]) if _several(c) else transform.StaticPlanBlockMemory()


def _plan_others(c: Compilation) -> tvm.transform.Pass:
    return PlanMemory(range(1, len(c.placed.kinds)))


def _instructions(c: Compilation, module: tvm.IRModule, **variant: Any) -> tvm.IRModule:
    """Lower another module, whose ``main`` is a variant of this one's, by the same passes."""
    part = PIPELINE.part("MarkMade", until="AddRecordings")
    return part.nested(replace(c, module=module, **variant)).module


def _add_recordings(c: Compilation) -> Compilation:
    recorded = with_recordings(
        c.module, c.merged, lambda mod: _instructions(c, mod, recording=c.placed.kinds[0])
    )
    return replace(c, module=recorded)


def _add_stages(c: Compilation) -> Compilation:
    staged = with_stages(c.module, c.merged, lambda mod: _instructions(c, mod), c.resolved.shared)
    return replace(c, module=staged)


def _add_models(c: Compilation) -> Compilation:
    models = tuple(_model_alone(c, alone) for alone in models_alone(c.lifted, c.imported.parts))
    module = with_models(c.module, [model.instructions for model in models])
    return replace(c, module=module, models=models)


def _model_alone(c: Compilation, alone: Any) -> ModelInstructions:
    apart = {number: kernel for number, kernel in c.kernels.items() if not kernel.members}
    launches = tuple(calls_by_kernel(alone.module))
    own = replace(
        c, module=alone.module, merged=alone.module, kernels=apart, launches=launches, groups=()
    )
    own = PIPELINE.part("FuseParallel", until="AddModels").nested(own)
    return ModelInstructions(
        alone.part, own.module, own.plain, own.kernels, own.launches, alone.weights
    )


def _add_unaligned(c: Compilation) -> Compilation:
    return replace(c, module=with_unaligned(c.module, c.unaligned))


def _describe(c: Compilation) -> Compilation:
    return replace(c, report=describe.report_of(c))


def _recorded(name: str) -> Any:
    """Whether the device whose launches are recorded needs the pass called `name`."""
    return lambda c: c.recording is not None and name in RECORDINGS[c.recording]


def _step(phase: str, name: str, apply: Any) -> CompilerPass:
    return CompilerPass(phase, name, apply)


def _list() -> Pipeline:
    cpu_cores = (lambda c: c.resolved.spec.has_cpu_cores, "cores of a CPU")
    no_cpu_cores = (lambda c: not c.resolved.spec.has_cpu_cores, "other devices")
    several = (_several, "several devices")
    recording = (lambda c: c.recording is not None, "recorded launches")
    windowed = (lambda c: c.plan.conv_window is not None, "weights streamed")
    whole_groups = (lambda c: c.work_group is None, "but in smaller work-groups")
    return Pipeline(
        (
            # Operators stay operators; constants are folded, batch normalisation is gone.
            on_module("quantize", lambda c: Quantize(c.resolved.spec), "Quantize"),
            on_module("simplify", FoldDequantized()),
            on_module("simplify", FoldConstantViews()),
            on_module("simplify", transform.CanonicalizeBindings()),
            on_module("simplify", FoldAffine()),
            # Dead batch normalisations would be decomposed, and then folded kernel by kernel.
            on_module("simplify", transform.DeadCodeElimination()),
            on_module("simplify", transform.DecomposeOpsForInference()),
            on_module("simplify", transform.CanonicalizeBindings()),
            on_module("simplify", transform.EliminateCommonSubexpr()),
            on_module("simplify", transform.FoldConstant()),
            on_module("simplify", transform.DeadCodeElimination()),
            # A device for each operator, a type, an algorithm and a layout.
            _step("place", "PlaceOperators", _place),
            _step("place", "CompileForHost", _compile_for_host).when(
                _left_the_gpu, "all operators left the GPU"
            ),
            _step("precision", "LowerPrecision", _lower_precision).when(
                lambda c: c.precision in ("float16", "mixed"), "float16 or mixed"
            ),
            _step(
                "memory",
                "SplitConvolutions",
                lambda c: replace(
                    c, module=split_convolutions(c.module, c.plan.conv_window, _node_names(c))
                ),
            ).when(*windowed),
            _step("layout", "ChooseConvolutions", _choose_convolutions),
            _step("layout", "AvoidWinograd", _avoid_winograd).when(
                lambda c: not c.plan.winograd, "without Winograd's algorithm"
            ),
            _step("layout", "ChooseLayouts", _choose_layouts),
            _step("memory", "SplitDense", _split_dense).when(
                lambda c: c.plan.weight_window is not None, "weights streamed"
            ),
            _step("layout", "KeepForSmallerGroups", lambda c: replace(c, before_layout=c)).when(
                _has_smaller_groups, "OpenCL"
            ),
            on_module(
                "layout",
                lambda c: BlockLayout(c.resolved.spec, c.choices.configs, c.layouts.plan),
                "BlockLayout",
            ).when(
                lambda c: c.resolved.spec.has_cpu_cores or c.layouts.plan is not None,
                "cores of a CPU, or layouts of records",
            ),
            on_module("layout", lambda c: PackMatrices(c.resolved.spec), "PackMatrices").when(
                *cpu_cores
            ),
            # Operators become calls of kernels, some of them written for the device.
            on_module("lower", _lower_operators, "LowerOperators"),
            on_module("lower", DispatchSampling()),
            on_module("lower", DispatchSortScan()),
            on_module("lower", legalize_ops()),
            on_module("lower", SpreadVDevices()),
            on_module("lower", transform.AnnotateTIROpPattern()),
            on_module("lower", transform.FoldConstant()),
            # Before fusion: a reshape is a view and costs nothing, inside a kernel it would copy.
            on_module("lower", transform.RewriteDataflowReshape()),
            on_module("lower", transform.DeadCodeElimination()),
            _step("lower", "ListCopies", _list_copies).when(*several),
            _step("lower", "TraceNodes", lambda c: replace(c, trace=NodeTrace(c.module))),
            # Element-wise operators are grouped with the kernel before them.
            on_module("lower", transform.FuseOps()),
            # Results that only a tuple reads, of which nobody reads that field.
            on_module("lower", transform.CanonicalizeBindings()),
            on_module("lower", transform.DeadCodeElimination()),
            _step("lower", "NumberKernels", _number_kernels),
            on_module("lower", FuseTIR()),
            on_module("lower", transform.DeadCodeElimination()),
            on_module("place", VerifyPlacement()),
            on_module(
                "precision", lambda c: CalculateInFloat32(c.resolved.kind), "CalculateInFloat32"
            ),
            _step("lower", "MeasureLoops", _measure_loops),
            _step("memory", "ConcatAtOffsets", _concat_at_offsets).when(*no_cpu_cores),
            _step("memory", "StreamLayers", _stream_layers).when(*windowed),
            _step("lower", "ScheduleKernels", _schedule_kernels),
            # Storage: results in place, workspaces, weights outside of the code.
            _step("memory", "ConcatInPlace", _concat_in_place).when(*cpu_cores),
            on_module("memory", ReuseInPlace()),
            # Kernels whose every call is in place now would else be built with those that run.
            on_module("memory", transform.DeadCodeElimination()),
            on_module("memory", LaunchGrids()),
            on_module("memory", AddWorkspace()),
            _step("memory", "MeasureKernels", _measure_kernels),
            on_module("memory", lambda c: StreamWeights(c.resolved.kind), "StreamWeights"),
            on_module("memory", ShareConstants()),
            _step("memory", "LiftWeights", _lift_weights),
            _step("memory", "ReadUnaligned", _read_unaligned).when(*whole_groups),
            _step("memory", "KeepLifted", _keep_lifted),
            # Independent kernels share a launch.
            _step("fuse", "FuseParallel", _fuse_parallel).when(*whole_groups),
            # Dataflow becomes instructions of the virtual machine over planned storage.
            on_module("instructions", MarkMade()),
            on_module("instructions", lambda c: LowerCopies(c.resolved.shared), "LowerCopies").when(
                *several
            ),
            on_module("instructions", transform.ToNonDataflow()),
            on_module("instructions", transform.RemovePurityChecking()),
            on_module("instructions", transform.CallTIRRewrite()),
            on_module("instructions", WriteOnHost()).when(
                lambda c: _several(c) and "write" in c.resolved.shared, "memory is shared"
            ),
            on_module("instructions", _plan_first, "PlanMemory"),
            on_module("instructions", HoistWeights()).when(
                _recorded("HoistWeights"), "recorded launches of OpenCL"
            ),
            on_module("instructions", transform.RewriteCUDAGraph()).when(*recording),
            on_module("instructions", KeepRegionResults()).when(*recording),
            on_module("instructions", AnnounceRecordings()).when(
                _recorded("AnnounceRecordings"), "recorded launches of CUDA"
            ),
            on_module("instructions", RecordOnOpenCL()).when(
                _recorded("RecordOnOpenCL"), "recorded launches of OpenCL"
            ),
            # After what takes all planned storage for the first device's: what reads or writes
            # another's tensors is then in no recorded region.
            on_module("instructions", _plan_others, "PlanMemoryOfOthers").when(*several),
            on_module("instructions", transform.LowerAllocTensor()),
            on_module("instructions", transform.KillAfterLastUse()),
            on_module("instructions", transform.LowerRuntimeBuiltin()),
            on_module("instructions", transform.ComputePrimValue()),
            on_module("instructions", transform.VMShapeLower()),
            on_module("instructions", transform.AttachGlobalSymbol()),
            # Functions beside ``main``.
            _step("instructions", "KeepPlain", lambda c: replace(c, plain=c.module)).when(
                lambda c: c.recording is None, "main"
            ),
            _step("instructions", "AddRecordings", _add_recordings).when(
                lambda c: c.placed.kinds[0] in RECORDINGS, "CUDA and OpenCL"
            ),
            _step("instructions", "AddStages", _add_stages).when(*several),
            _step("instructions", "AddModels", _add_models).when(
                lambda c: len(c.imported.parts) > 1, "several models"
            ),
            _step("instructions", "AddUnaligned", _add_unaligned).when(*whole_groups),
            _step("report", "Describe", _describe).when(*whole_groups),
        )
    )


PIPELINE = _list()
"""Every pass of a compilation, in order."""


def instructions_of(mod: tvm.IRModule, resolved: ResolvedTarget) -> tvm.IRModule:
    """Make instructions of scheduled kernels of one device.

    Parameters
    ----------
    mod : IRModule
        ``main`` calls the kernels, and takes the weights as its last parameter.
    resolved : ResolvedTarget
    """
    placed = Placed(mod, (resolved.kind,), (0,) * (len(mod["main"].params) - 1), {})
    imported = ImportedModel("kernels", mod, (), ())
    begun = Compilation(imported, resolved, Options(), module=mod, merged=mod, placed=placed)
    return PIPELINE.part("MarkMade", until="AddModels").run(begun).module


def main() -> None:
    """Print the list, or what each pass does to a model for a target."""
    if len(sys.argv) != 3:
        print(PIPELINE)
        return
    from tvm_edge.compiler.driver import start

    before = start(sys.argv[1], sys.argv[2], Options(tuning_logs=None))
    for each, after in PIPELINE.steps(before):
        count = len(after.module.functions)
        done = "" if after.module.same_as(before.module) else _changed(before.module, after.module)
        print(f"{each.phase:12} {each.name:24} {count:4} functions  {done}")
        before = after


def _changed(before: tvm.IRModule, after: tvm.IRModule) -> str:
    import tvm_ffi

    return "" if tvm_ffi.structural_equal(before, after) else "changed"


if __name__ == "__main__":
    main()
