"""The report of a compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import tvm
from tvm import relax, tirx
from tvm.s_tir.analysis import estimate_tir_flops

from tvm_edge.compiler.compilation import Compilation, Kernel, ModelInstructions
from tvm_edge.compiler.describe_memory import largest, memory_of
from tvm_edge.compiler.parallel_fusion import describe_groups, merged_info
from tvm_edge.frontend import ImportedModel, SourceNode, Survey
from tvm_edge.memory.footprint import tensor_bytes
from tvm_edge.relay_passes.lower.schedule_kernels import KernelSchedule
from tvm_edge.relay_passes.memory.split_fc import SplitLayer
from tvm_edge.report import (
    CompileReport,
    KernelInfo,
    ModelAlone,
    OperatorInfo,
    Placement,
    PrecisionInfo,
    SplitInfo,
    layout_name,
)
from tvm_edge.schedules.gpu.channel_blocks import block_of
from tvm_edge.schedules.typical import evaluate

__all__ = [
    "argument_bytes",
    "channel_block",
    "describe_operators",
    "describe_unplaced",
    "kernel_infos",
    "launches_of",
    "loop_flops",
    "report_of",
]

_BLOCKED = frozenset(
    ("conv2d_blocked", "conv2d_int8", "depthwise_int8", "window_blocked", "winograd")
)
_UNITS = frozenset(("tensor_blocks", "tensor_winograd", "unit_window"))
_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")
_HOST = "llvm"
_WINOGRAD = frozenset(("winograd", "winograd_output", "tensor_winograd"))


def report_of(c: Compilation) -> CompileReport:
    """Report of a compilation whose instructions are made; seconds are the caller's to add."""
    apart = kernel_infos(c, c.apart)
    kernels = launches_of(c.kernels, c.launches, apart)
    placements = describe_placements(c)
    splits = (*_split_layers(c.split_layers, placements), *_streamed_layers(c))
    memory = memory_of(c, c.plain, range(len(c.weights)), None, kernels, splits)
    models = tuple(_model_alone(c, model, apart, splits) for model in c.models)
    return CompileReport(
        model=c.imported.name,
        target=f"{c.asked.kind} ({c.asked.spec.name})",
        placements=placements,
        operators=describe_operators(c.imported.nodes, c.imported.folded, placements),
        kernels=kernels,
        copies=c.copies,
        layouts=_layouts(c),
        fusion_groups=describe_groups(apart, c.groups, c.options.parallel_fusion),
        memory=largest(memory, models),
        models=models,
        partitions=_partitions(kernels),
        precision=_precision(c),
        records=c.choices.with_ignored(c.layouts.ignored),
        layout_choice=c.layouts.info,
        splits=splits,
        warnings=(
            *c.imported.warnings,
            *_kept_float32(c),
            *c.choices.warnings,
            *c.layouts.warnings,
        ),
        seconds=c.clock.seconds,
    )


def channel_block(func: tirx.PrimFunc, rule: str) -> int:
    """Return the channels of a block of a kernel's result, 0 if it is not stored in blocks.

    Parameters
    ----------
    func : PrimFunc
        Not scheduled yet.
    rule : str
        Schedule rule that applies to it.
    """
    shape = func.params[-1].shape
    if rule in _UNITS:  # products of matrices are by these rules as well
        return int(shape[-1]) if len(shape) == 5 else 0
    return int(shape[-1]) if rule in _BLOCKED else block_of(func)


def kernel_infos(c: Compilation, numbers: Sequence[int]) -> dict[int, KernelInfo]:
    """Describe kernels that are not merged, by their numbers."""
    own = {number: c.kernels[number] for number in numbers}
    work = _shared_out(own, c.imported)
    infos = {}
    for number, kernel in own.items():
        schedule = kernel.schedule
        assert schedule is not None, "kernels are scheduled before they are described"
        infos[number] = KernelInfo(
            kernel.name,
            tuple(c.imported.nodes[i].name for i in kernel.nodes),
            schedule.device,
            _origin(schedule, kernel.nodes, c.choices.origins),
            schedule.rule,
            work[number],
            kernel.nbytes,
            kernel.weights,
            kernel.results,
            kernel.workspace,
            kernel.streamed,
        )
    return infos


def launches_of(
    kernels: Mapping[int, Kernel], numbers: Sequence[int], apart: Mapping[int, KernelInfo]
) -> tuple[KernelInfo, ...]:
    """Describe the launches of a run, merged ones from their members in `apart`."""
    return tuple(
        merged_info(kernels[number].name, [apart[member] for member in kernels[number].members])
        if kernels[number].members
        else apart[number]
        for number in numbers
    )


def _origin(schedule: KernelSchedule, nodes: Sequence[int], origins: Mapping[int, str]) -> str:
    """Return the origin of a kernel's schedule.

    A measured configuration holds for the kernel that computes the convolution. The kernel that
    packs its images comes with it, by the rule for element-wise kernels.
    """
    measured = [origins[node] for node in nodes if node in origins]
    if not measured or schedule.rule == "elementwise" or schedule.origin != "heuristic":
        return schedule.origin
    return measured[0]


def _layouts(c: Compilation) -> dict[str, str]:
    """Layout and algorithm of convolutions whose images are stored in another way than the model's,
    or that are by Winograd's algorithm.
    """
    layouts = {}
    for number in c.apart:
        kernel = c.kernels[number]
        winograd = kernel.schedule is not None and kernel.schedule.rule in _WINOGRAD
        if not kernel.block and not winograd:
            continue
        layout = layout_name(kernel.block) + (", Winograd" if winograd else "")
        for node in kernel.nodes:
            if c.imported.nodes[node].op_type in _CONVOLUTIONS:
                layouts[c.imported.nodes[node].name] = layout
    return layouts


def _shared_out(kernels: Mapping[int, Kernel], model: ImportedModel) -> dict[int, float]:
    """Return the FLOPs of each kernel, by its operators' definitions.

    Operations of loops, guards of padding included, share out an operator that several kernels
    compute, and stand in where a definition does not say.
    """
    of_node: Counter[int] = Counter()  # FLOPs of loops
    readers: Counter[int] = Counter()
    for kernel in kernels.values():
        for node in kernel.nodes:
            of_node[node] += kernel.loop_flops  # type: ignore[assignment]
            readers[node] += 1
    result = {}
    for number, kernel in kernels.items():
        work = kernel.loop_flops
        known = [(node, model.nodes[node].cost.flops) for node in kernel.nodes]
        if not known or any(flops is None for _, flops in known):
            result[number] = work
            continue
        result[number] = sum(
            (flops or 0) * (work / of_node[node] if of_node[node] else 1 / readers[node])
            for node, flops in known
        )
    return result


def describe_operators(
    nodes: Sequence[SourceNode], folded: Sequence[SourceNode], placements: Sequence[Placement]
) -> tuple[OperatorInfo, ...]:
    """Return the work and the place of each operator; `placements` has one for each, in order."""
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


def describe_placements(c: Compilation) -> tuple[Placement, ...]:
    """Return the device of each of the user's operators and the reason, or why it has none.

    An operator of which a part has left the GPU, as branches may, is said to be where that part is.
    """
    running: dict[int, str] = {}
    for number in c.apart:
        kernel = c.kernels[number]
        assert kernel.schedule is not None, "kernels are scheduled before they are described"
        device = kernel.schedule.device
        running |= {index: device for index in kernel.nodes if running.get(index) != _HOST}
    default = "the target is this device"
    placed = [
        Placement(node.name, node.op_type, running[index], c.placed.reasons.get(index, default))
        if index in running
        else Placement(node.name, node.op_type, "", "a view, or absorbed by its neighbours")
        for index, node in enumerate(c.imported.nodes)
    ]
    return (*placed, *_folded(c.imported.folded))


def describe_unplaced(survey: Survey) -> tuple[Placement, ...]:
    """Describe the operators of a model with unsupported ones, for which nothing was decided."""
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


def _partitions(kernels: Sequence[KernelInfo]) -> tuple[tuple[str, int], ...]:
    """Device and number of launches of each maximal run on one device."""
    return tuple((d, len(list(run))) for d, run in groupby(kernels, key=lambda k: k.device))


def _precision(c: Compilation) -> PrecisionInfo | None:
    """Types of the operators; ``None`` if nothing was lowered."""
    lowered = c.lowered_types
    if lowered is None:
        return None
    choice = c.precision_choice
    names = {index: node.name for index, node in enumerate(c.imported.nodes)}
    return PrecisionInfo(
        c.precision,
        {names[node]: dtype for node, dtype in sorted(lowered.types.items())},
        {names[node]: reason for node, reason in sorted(lowered.reasons.items())},
        lowered.casts,
        _constant_bytes(lowered.module),
        _constant_bytes(c.placed.module),
        *((choice.chosen_us, choice.float32_us) if choice else (0.0, 0.0)),
        sum(k.schedule is not None and k.schedule.in_float16 for k in c.kernels.values()),
    )


def _split_layers(
    layers: Sequence[SplitLayer], placements: Sequence[Placement]
) -> Iterator[SplitInfo]:
    """Layers in parts; `placements` has one for each node, in order."""
    for layer in layers:
        place = None if layer.node is None else placements[layer.node]
        yield SplitInfo(
            place.operator if place else "",
            place.device if place else "",
            layer.cut.along,
            layer.parts,
            layer.part_bytes,
            layer.weight_bytes,
        )


def _streamed_layers(c: Compilation) -> Iterator[SplitInfo]:
    """Layers whose weights are streamed as kernels read them."""
    layers: dict[tuple[str, str], list[int]] = {}
    nodes = c.imported.nodes
    for kernel in c.kernels.values():
        if kernel.streamed_layer is None or kernel.schedule is None:
            continue
        heaviest = max(kernel.nodes, key=lambda i: nodes[i].cost.weight_bytes, default=None)
        operator = "" if heaviest is None else nodes[heaviest].name
        key = operator, kernel.schedule.device
        layers.setdefault(key, []).append(kernel.streamed_layer)
    for (operator, device), parts in layers.items():
        along = "output" if parts[1:] else ""
        yield SplitInfo(operator, device, along, len(parts), max(parts), sum(parts))


def _kept_float32(c: Compilation) -> tuple[str, ...]:
    """Warn of operators that stay float32 for the sake of a number, or all for the device's."""
    if c.lowered_types is None:
        return ()
    nodes, spec = c.imported.nodes, c.resolved.spec
    if spec.launches_grids and not spec.float16:
        return (f"all operators stay float32: {spec.name} does not calculate in float16",)
    return tuple(
        f"{nodes[node].name} ({nodes[node].op_type}) stays float32: {reason}"
        for node, reason in sorted(c.lowered_types.unfit.items())
    )


def _constant_bytes(mod: tvm.IRModule) -> int:
    """Bytes of the constants of ``main``, each counted once."""
    found: dict[tvm.ir.GenericConst, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found[expr] = tensor_bytes(expr.value.shape, str(expr.value.dtype))

    relax.analysis.post_order_visit(mod["main"], visit)
    return sum(found.values())


def _model_alone(
    c: Compilation,
    model: ModelInstructions,
    apart: Mapping[int, KernelInfo],
    splits: Sequence[SplitInfo],
) -> ModelAlone:
    """One of several models where it runs alone."""
    kernels = launches_of(model.kernels, model.launches, apart)
    memory = memory_of(c, model.plain, model.weights, model.part, kernels, splits)
    return ModelAlone(model.part.name, kernels, memory)


def loop_flops(gvar: tvm.ir.GlobalVar, func: tirx.PrimFunc) -> float:
    """Return the operations of a kernel's loops; 0 where they depend on run-time values."""
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled", False):
        return 0.0  # sorts and sweeps, whose loops say nothing of how often they run
    try:
        return float(estimate_tir_flops(tvm.IRModule({gvar: func})))
    # TVM's estimator raises on loops whose extents are not constants and on opaque calls.
    except (RuntimeError, ValueError, TypeError):
        return 0.0


def argument_bytes(func: tirx.PrimFunc, lengths: Mapping[str, int]) -> int:
    """Return the bytes of a kernel's arguments, each counted once.

    Open dimensions are as long as `lengths` says by their names; arguments with others, which
    depend on data, do not count.
    """
    found = 0
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            shape = [evaluate(length, lengths) for length in param.ty.shape]
            found += 0 if None in shape else tensor_bytes(shape, str(param.ty.dtype))
    return found
