"""Read a report out of modules at the points where each fact is visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import tvm
from tvm import relax, tirx
from tvm.s_tir.analysis import estimate_tir_flops

from tvm_edge.compiler.schedule import KernelSchedule
from tvm_edge.compiler.storage_plan import by_device, over_time, planned_storages
from tvm_edge.frontend import ImportedModel, SourceNode, Survey
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.memory.footprint import (
    launch_code,
    mapped,
    pinned,
    rounding,
    tensor_bytes,
    windows,
    workspace,
)
from tvm_edge.memory.scratch import Scratch
from tvm_edge.relay_passes.memory.split_fc import SplitLayer
from tvm_edge.relay_passes.precision.lower_precision import LoweredPrecision
from tvm_edge.report import (
    KernelInfo,
    MemoryInfo,
    OperatorInfo,
    Placement,
    PrecisionInfo,
    SplitInfo,
    TensorSpec,
    layout_name,
)
from tvm_edge.schedules.gpu.channel_blocks import block_of

__all__ = [
    "describe_kernels",
    "describe_layouts",
    "describe_memory",
    "describe_operators",
    "describe_placements",
    "describe_precision",
    "describe_splits",
    "describe_streamed",
    "describe_unplaced",
    "partitions",
    "unfit_constants",
]

_BLOCKED = frozenset(
    ("conv2d_blocked", "conv2d_int8", "depthwise_int8", "window_blocked", "winograd")
)
_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")
_HOST = "llvm"
_WINOGRAD = frozenset(("winograd", "winograd_output"))


def describe_kernels(
    mod: tvm.IRModule,
    calls: Sequence[tuple[str, tuple[int, ...]]],
    names: Sequence[str],
    schedules: Mapping[str, KernelSchedule],
    model: ImportedModel,
    origins: Mapping[int, str],
    sizes: Sequence[tuple[int, int, int, int]],
) -> tuple[KernelInfo, ...]:
    """The launches of a run, with the `names` of their final kernels.

    `mod` holds the unscheduled kernels, called as in `calls`; `origins` says by node which
    configurations of convolutions were measured, and where; `sizes` are of
    :func:`~tvm_edge.memory.footprint.call_bytes`.
    """
    costs = {
        gvar.name_hint: (_flops(gvar, func), _argument_bytes(func))
        for gvar, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    loops = [costs[name][0] for name, _ in calls]
    infos = []
    work = _shared_out(calls, loops, model)
    for (name, nodes), final, flops, own in zip(calls, names, work, sizes, strict=True):
        schedule, (_, nbytes) = schedules[name], costs[name]
        operators = tuple(model.nodes[i].name for i in nodes)
        origin = _origin(schedule, nodes, origins)
        infos.append(
            KernelInfo(
                final, operators, schedule.device, origin, schedule.rule, flops, nbytes, *own
            )
        )
    return tuple(infos)


def _origin(schedule: KernelSchedule, nodes: Sequence[int], origins: Mapping[int, str]) -> str:
    """Where a kernel's schedule came from.

    A measured configuration holds for what computes the convolution. What packs its images comes
    with it, by the rule for element-wise kernels.
    """
    measured = [origins[node] for node in nodes if node in origins]
    if not measured or schedule.rule == "elementwise" or schedule.origin != "heuristic":
        return schedule.origin
    return measured[0]


def describe_layouts(
    mod: tvm.IRModule,
    calls: Sequence[tuple[str, tuple[int, ...]]],
    schedules: Mapping[str, KernelSchedule],
    model: ImportedModel,
) -> dict[str, str]:
    """Convolutions on images that are stored in another way than the model's, or by Winograd's
    algorithm: the layout, and the algorithm.
    """
    layouts = {}
    for name, nodes in calls:
        rule, func = schedules[name].rule, mod[name]
        block = int(func.params[-1].shape[-1]) if rule in _BLOCKED else block_of(func)
        if not block and rule not in _WINOGRAD:
            continue
        layout = layout_name(block)
        algorithm = ", Winograd" if rule in _WINOGRAD else ""
        for node in nodes:
            if model.nodes[node].op_type in _CONVOLUTIONS:
                layouts[model.nodes[node].name] = layout + algorithm
    return layouts


def _shared_out(
    calls: Sequence[tuple[str, tuple[int, ...]]], loops: Sequence[float], model: ImportedModel
) -> list[float]:
    """FLOPs of each launch: what its operators' definitions take.

    `loops` has what the loops of each launch do, guards of padding included. They share out an
    operator that several launches compute, and stand in where a definition does not say.
    """
    of_node: Counter[int] = Counter()  # FLOPs of loops
    launches: Counter[int] = Counter()
    for (_, nodes), work in zip(calls, loops, strict=True):
        for node in nodes:
            of_node[node] += work  # type: ignore[assignment]
            launches[node] += 1
    result = []
    for (_, nodes), work in zip(calls, loops, strict=True):
        known = [(node, model.nodes[node].cost.flops) for node in nodes]
        if not nodes or any(flops is None for _, flops in known):
            result.append(work)
            continue
        result.append(
            sum(
                (flops or 0) * (work / of_node[node] if of_node[node] else 1 / launches[node])
                for node, flops in known
            )
        )
    return result


def describe_operators(
    nodes: Sequence[SourceNode], folded: Sequence[SourceNode], placements: Sequence[Placement]
) -> tuple[OperatorInfo, ...]:
    """What each operator takes, and where; `placements` has one for each, in order."""
    return tuple(
        OperatorInfo(
            node.name,
            node.op_type,
            node.cost.flops,
            node.cost.parameters,
            node.cost.weight_bytes,
            node.cost.input_bytes,
            node.cost.output_bytes,
            placement.device,
            placement.reason,
            constant=index >= len(nodes),
            inputs=node.inputs,
        )
        for index, (node, placement) in enumerate(zip((*nodes, *folded), placements, strict=True))
    )


def describe_placements(
    model: ImportedModel,
    calls: Sequence[tuple[str, tuple[int, ...]]],
    schedules: Mapping[str, KernelSchedule],
    reasons: Mapping[int, str],
) -> tuple[Placement, ...]:
    """Where each of the user's operators runs and why, or why nowhere.

    An operator of which a part has left the GPU, as branches may, is said to be where that part is.
    """
    running: dict[int, str] = {}
    for name, nodes in calls:
        device = schedules[name].device
        running |= {index: device for index in nodes if running.get(index) != _HOST}
    default = "the target is this device"
    placed = [
        Placement(node.name, node.op_type, running[index], reasons.get(index, default))
        if index in running
        else Placement(node.name, node.op_type, "", "a view, or absorbed by its neighbours")
        for index, node in enumerate(model.nodes)
    ]
    return (*placed, *_folded(model.folded))


def describe_unplaced(survey: Survey) -> tuple[Placement, ...]:
    """Of a model with unsupported operators, for which nothing was decided."""
    missing = {name: info for info in survey.unsupported for name in info.operators}
    open_ones = [
        Placement(
            node.name,
            node.op_type,
            "",
            "no implementation"
            if node.name in missing and missing[node.name].op_type == node.op_type
            else "open: the model has unsupported operators",
        )
        for node in survey.nodes
    ]
    return (*open_ones, *_folded(survey.folded))


def _folded(nodes: Sequence[SourceNode]) -> list[Placement]:
    return [Placement(n.name, n.op_type, "", "constant: evaluated now") for n in nodes]


def partitions(kernels: Sequence[KernelInfo]) -> tuple[tuple[str, int], ...]:
    """Device and number of launches of each maximal run on one device."""
    return tuple((d, len(list(run))) for d, run in groupby(kernels, key=lambda k: k.device))


def describe_precision(
    mode: str, lowered: LoweredPrecision | None, before: tvm.IRModule, model: ImportedModel
) -> PrecisionInfo | None:
    """What became of the types in `before`; ``None`` if nothing."""
    if lowered is None:
        return None
    names = {index: node.name for index, node in enumerate(model.nodes)}
    return PrecisionInfo(
        mode,
        {names[node]: dtype for node, dtype in sorted(lowered.types.items())},
        {names[node]: reason for node, reason in sorted(lowered.reasons.items())},
        lowered.casts,
        _constant_bytes(lowered.module),
        _constant_bytes(before),
    )


def describe_splits(
    layers: Sequence[SplitLayer], placements: Sequence[Placement]
) -> tuple[SplitInfo, ...]:
    """What the report says of layers in parts; `placements` has one for each node, in order."""
    found = []
    for layer in layers:
        place = None if layer.node is None else placements[layer.node]
        found.append(
            SplitInfo(
                place.operator if place else "",
                place.device if place else "",
                layer.cut.along,
                layer.parts,
                layer.part_bytes,
                layer.weight_bytes,
            )
        )
    return tuple(found)


def describe_streamed(
    sizes: Iterable[int],
    calls: Sequence[tuple[str, tuple[int, ...]]],
    schedules: Mapping[str, KernelSchedule],
    model: ImportedModel,
) -> tuple[SplitInfo, ...]:
    """What the report says of layers whose weights are streamed as kernels read them.

    Parameters
    ----------
    sizes : iterable of int
        Bytes of the streamed weights of each launch that has some.
    calls : sequence of (str, tuple of int)
        Of each of these the kernel, and the nodes that it computes.
    schedules : mapping of str to KernelSchedule
        By kernel.
    model : ImportedModel
    """
    layers: dict[tuple[str, str], list[int]] = {}
    for size, (name, nodes) in zip(sizes, calls, strict=True):
        heaviest = max(nodes, key=lambda i: model.nodes[i].cost.weight_bytes, default=None)
        operator = "" if heaviest is None else model.nodes[heaviest].name
        layers.setdefault((operator, schedules[name].device), []).append(size)
    return tuple(
        SplitInfo(
            operator, device, "output" if parts[1:] else "", len(parts), max(parts), sum(parts)
        )
        for (operator, device), parts in layers.items()
    )


def unfit_constants(lowered: LoweredPrecision | None, model: ImportedModel) -> tuple[str, ...]:
    """Warnings of operators that stay float32 for the sake of a number."""
    if lowered is None:
        return ()
    return tuple(
        f"{model.nodes[node].name} ({model.nodes[node].op_type}) stays float32: {reason}"
        for node, reason in sorted(lowered.unfit.items())
    )


def _constant_bytes(mod: tvm.IRModule) -> int:
    """Bytes of the constants of ``main``, each counted once."""
    found: dict[tvm.ir.GenericConst, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found[expr] = tensor_bytes(expr.value.shape, str(expr.value.dtype))

    relax.analysis.post_order_visit(mod["main"], visit)
    return sum(found.values())


def describe_memory(
    lowered: tvm.IRModule,
    scratch: Mapping[str, Scratch],
    weights: Mapping[str, int],
    uploaded: Sequence[int],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    kernels: Sequence[KernelInfo],
    splits: Sequence[SplitInfo],
    resolved: ResolvedTarget,
) -> MemoryInfo:
    """Bytes of a process that loads the model and runs it.

    Parameters
    ----------
    lowered : IRModule
        With the storage plan.
    scratch : mapping of str to Scratch
        What kernels of the CPU allocate.
    weights : mapping of str to int
        Bytes by device, and of those that are streamed.
    uploaded : sequence of int
        Bytes of each that is on a GPU.
    inputs, outputs : sequence of TensorSpec
    kernels : sequence of KernelInfo
        The launches of a run, in order.
    splits : sequence of SplitInfo
        Layers whose weights are streamed.
    resolved : ResolvedTarget
    """
    results = sum(tensor_bytes(t.shape, t.stored_as or t.dtype) for t in outputs)
    storages = planned_storages(lowered)
    activations = by_device(lowered, storages)
    library = {kernel.name: kernel.device for kernel in kernels}
    programs, floor = launch_code(library.values(), resolved)
    room = windows(splits, resolved)
    on_gpu = [s.nbytes for s in storages.values() if s.device in ("", resolved.kind)]
    return MemoryInfo(
        weights=sum(weights.values()),
        activations=sum(activations.values()),
        by_device={} if len(activations) == 1 else activations,
        over_time=over_time(lowered, storages, [kernel.name for kernel in kernels]),
        workspace=workspace(scratch, resolved),
        inputs_outputs=results + sum(tensor_bytes(t.shape, t.stored_as or t.dtype) for t in inputs),
        weights_by_device=dict(weights),
        mapped=mapped(weights, resolved),
        window=sum(room) + pinned(room, resolved),
        rounding=rounding([*uploaded, *on_gpu, *room], resolved),
        programs=programs,
        floor=floor,
    )


def _flops(gvar: tvm.ir.GlobalVar, func: tirx.PrimFunc) -> float:
    """Operations of a kernel; 0 where loops depend on run-time values."""
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled", False):
        return 0.0  # sorts and sweeps, whose loops say nothing of how often they run
    try:
        return float(estimate_tir_flops(tvm.IRModule({gvar: func})))
    # TVM's estimator raises on loops whose extents are not constants and on opaque calls.
    except (RuntimeError, ValueError, TypeError):
        return 0.0


def _argument_bytes(func: tirx.PrimFunc) -> int:
    return sum(
        tensor_bytes(param.ty.shape, str(param.ty.dtype))
        for param in func.params
        if isinstance(param.ty, tirx.BufferType)
    )
