"""Passes that make kernels of operators, and give what they read and write its storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm.relax import transform
from tvm.relax.backend import DispatchSampling, DispatchSortScan

from tvm_edge.compiler import describe
from tvm_edge.compiler.compilation import Compilation, Kernel
from tvm_edge.compiler.graph_passes import tuning_logs
from tvm_edge.compiler.parallel_fusion import merge_kernels
from tvm_edge.compiler.passes import (
    CPU_CORES,
    OTHER_DEVICES,
    SEVERAL,
    WHOLE_GROUPS,
    WINDOWED,
    CompilerPass,
    on_module,
)
from tvm_edge.compiler.placement import copies_of
from tvm_edge.memory.footprint import call_bytes, kernel_scratch
from tvm_edge.relay_passes.ir.locations import calls_by_kernel
from tvm_edge.relay_passes.ir.node_trace import NodeTrace
from tvm_edge.relay_passes.lower.flat_images import flat_images
from tvm_edge.relay_passes.lower.fuse_tir import FuseTIR
from tvm_edge.relay_passes.lower.hand_out_results import hand_out_results
from tvm_edge.relay_passes.lower.in_branches import InBranches
from tvm_edge.relay_passes.lower.launch_grids import LaunchGrids
from tvm_edge.relay_passes.lower.legalize import legalize_ops
from tvm_edge.relay_passes.lower.lower_operators import LowerOperators
from tvm_edge.relay_passes.lower.mark_elementwise import MarkElementwise
from tvm_edge.relay_passes.lower.number_kernels import number_kernels
from tvm_edge.relay_passes.lower.own_lengths import own_lengths
from tvm_edge.relay_passes.lower.plain_branches import PlainBranches
from tvm_edge.relay_passes.lower.schedule_kernels import schedule_kernels
from tvm_edge.relay_passes.lower.spread_vdevices import SpreadVDevices
from tvm_edge.relay_passes.memory.add_workspace import AddWorkspace
from tvm_edge.relay_passes.memory.concat_in_place import concat_in_place
from tvm_edge.relay_passes.memory.lift_weights import LiftWeights
from tvm_edge.relay_passes.memory.reuse_in_place import ReuseInPlace
from tvm_edge.relay_passes.memory.share_constants import ShareConstants
from tvm_edge.relay_passes.memory.stream_layers import stream_layers
from tvm_edge.relay_passes.memory.stream_weights import StreamWeights
from tvm_edge.relay_passes.memory.unaligned_inputs import take_unaligned
from tvm_edge.relay_passes.place.verify_placement import VerifyPlacement
from tvm_edge.relay_passes.precision.calculate_in_float32 import CalculateInFloat32
from tvm_edge.schedules.typical import typical_lengths

__all__ = ["KERNELS"]


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


def _hand_out_results(c: Compilation) -> Compilation:
    module, handed_out = hand_out_results(c.module)
    return replace(c, module=module, handed_out=handed_out)


def _with_lengths(
    c: Compilation, change: Callable[[tvm.IRModule], tuple[tvm.IRModule, dict[str, int]]]
) -> Compilation:
    """Apply a pass that names lengths of kernels, and tells how long they typically are."""
    module, typical = change(c.module)
    largest = c.largest
    if largest:
        with typical_lengths(largest):
            largest = {**largest, **change(c.module)[1]}
    return replace(c, module=module, typical={**c.typical, **typical}, largest=largest)


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
        nbytes = describe.argument_bytes(func, c.typical)
        flops = describe.loop_flops(gvar, func)
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
    scratch = kernel_scratch(c.module, c.resolved, c.largest)
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
    return replace(c, module=module, weights=tuple(lift.weights))


def _read_unaligned(c: Compilation) -> Compilation:
    devices = enumerate(c.placed.inputs)
    on_cpu = [number for number, device in devices if c.placed.kinds[device] == c.resolved.cpu.kind]
    module, taken = take_unaligned(c.module, on_cpu)
    return replace(c, module=module, unaligned=taken)


def _keep_lifted(c: Compilation) -> Compilation:
    return replace(c, lifted=c.module, merged=c.module)


def _fuse_parallel(c: Compilation) -> Compilation:
    fusion = c.options.parallel_fusion
    parallel = merge_kernels(c.module, c.resolved, fusion, tuning_logs(c))
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


KERNELS = (
    # Operators become calls of kernels, some of them written for the device.
    on_module("lower", _lower_operators, "LowerOperators"),
    on_module("lower", DispatchSampling()),
    on_module("lower", DispatchSortScan()),
    on_module("lower", legalize_ops()),
    on_module("lower", SpreadVDevices()),
    on_module("lower", transform.AnnotateTIROpPattern()),
    on_module("lower", MarkElementwise()),
    on_module("lower", transform.FoldConstant()),
    # Before fusion: a reshape is a view and costs nothing, inside a kernel it would copy.
    on_module("lower", transform.RewriteDataflowReshape()),
    on_module("lower", InBranches(transform.RewriteDataflowReshape()), "ReshapesInBranches"),
    on_module("lower", transform.DeadCodeElimination()),
    CompilerPass("lower", "ListCopies", _list_copies).when(*SEVERAL),
    CompilerPass("lower", "TraceNodes", lambda c: replace(c, trace=NodeTrace(c.module))),
    # Element-wise operators are grouped with the kernel before them.
    on_module("lower", InBranches(transform.FuseOps()), "FuseBranches").made_optional(),
    on_module("lower", PlainBranches()),
    on_module("lower", transform.FuseOps()).made_optional(),
    # Results that only a tuple reads, of which nobody reads that field.
    on_module("lower", transform.CanonicalizeBindings()),
    on_module("lower", transform.DeadCodeElimination()),
    CompilerPass("lower", "NumberKernels", _number_kernels),
    on_module("lower", FuseTIR()),
    on_module("lower", transform.DeadCodeElimination()),
    CompilerPass("lower", "OwnLengths", lambda c: _with_lengths(c, own_lengths)),
    CompilerPass("lower", "FlatImages", lambda c: _with_lengths(c, flat_images))
    .made_optional()
    .when(lambda c: c.resolved.kind == "llvm" and len(c.placed.kinds) == 1, "one CPU"),
    on_module("place", VerifyPlacement()),
    on_module("precision", lambda c: CalculateInFloat32(c.resolved.kind), "CalculateInFloat32"),
    CompilerPass("lower", "HandOutResults", _hand_out_results).when(
        lambda c: c.hands_out, "results are compared"
    ),
    CompilerPass("lower", "MeasureLoops", _measure_loops),
    CompilerPass("memory", "ConcatAtOffsets", _concat_at_offsets)
    .made_optional()
    .when(*OTHER_DEVICES),
    CompilerPass("memory", "StreamLayers", _stream_layers).when(*WINDOWED),
    CompilerPass("lower", "ScheduleKernels", _schedule_kernels),
    # Storage: results in place, workspaces, weights outside of the code.
    CompilerPass("memory", "ConcatInPlace", _concat_in_place).made_optional().when(*CPU_CORES),
    on_module(
        "memory", lambda c: ReuseInPlace(c.resolved.kind == "llvm"), "ReuseInPlace"
    ).made_optional(),
    # Kernels whose every call is in place now would else be built with those that run.
    on_module("memory", transform.DeadCodeElimination()),
    on_module("memory", LaunchGrids()),
    on_module("memory", AddWorkspace()),
    CompilerPass("memory", "MeasureKernels", _measure_kernels),
    on_module("memory", lambda c: StreamWeights(c.resolved.kind), "StreamWeights"),
    on_module("memory", ShareConstants()),
    CompilerPass("memory", "LiftWeights", _lift_weights),
    CompilerPass("memory", "ReadUnaligned", _read_unaligned).when(*WHOLE_GROUPS),
    CompilerPass("memory", "KeepLifted", _keep_lifted),
    # Independent kernels share a launch.
    CompilerPass("fuse", "FuseParallel", _fuse_parallel).made_optional().when(*WHOLE_GROUPS),
)
"""From placed operators to scheduled and merged kernels."""
