"""The layouts that a graph tuner chose for a network, as far as they hold here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm

from tvm_edge.compiler.convolutions import TuningLogs
from tvm_edge.frontend import SourceNode
from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.records import (
    LAYOUTS,
    SHIPPED,
    LayoutRecord,
    TuningRecord,
    find_layouts,
    store_of,
    user_folder,
)
from tvm_edge.relay_passes.ir.locations import node_of
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph, LayoutPlan, layout_graph
from tvm_edge.report import LayoutsInfo, TransformInfo, layout_name
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import (
    config_of,
    config_space,
    recorded_target,
    recorded_workload,
)
from tvm_edge.schedules.layouts import block_sizes

__all__ = ["LayoutChoice", "choose_layouts", "describe_layout_plan", "has_layouts"]


@dataclass(frozen=True)
class LayoutChoice:
    """Layouts of a module's ``main``.

    Attributes
    ----------
    plan : LayoutPlan or None
    info : LayoutsInfo or None
    ignored, warnings : tuple of str
        Records that do not hold here, and files that could not be read.
    """

    plan: LayoutPlan | None = None
    info: LayoutsInfo | None = None
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def has_layouts(resolved: ResolvedTarget) -> bool:
    """Return whether there is a choice: there is none where registers have one lane."""
    return bool(block_sizes(resolved.spec))


def choose_layouts(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    tuning_logs: TuningLogs,
    nodes: Sequence[SourceNode],
) -> LayoutChoice:
    """Choose the layouts of a module of one device by tuning records.

    Parameters
    ----------
    mod : tvm.IRModule
        Its convolutions still are operators.
    resolved : ResolvedTarget
    tuning_logs : path, False or None
    nodes : sequence of SourceNode
        Of the user's model.
    """
    if isinstance(tuning_logs, bool) or not has_layouts(resolved):
        return LayoutChoice()
    folders = [user_folder(tuning_logs), SHIPPED]
    if not any(_has_file(folder, resolved.spec) for folder in folders):
        return LayoutChoice()
    graph = layout_graph(mod["main"], resolved.spec)
    target = recorded_target(resolved.kind, resolved.spec)
    record, warnings = find_layouts(folders, resolved.spec.key, target, graph.digest)
    if record is None:
        return LayoutChoice(warnings=warnings)
    try:
        plan = _plan_of(record, graph, resolved.spec)
    except ValueError as err:
        reason = f"the layouts of {record.name}: {err}; tune it again with graph=True (--graph)"
        return LayoutChoice(ignored=(reason,), warnings=warnings)
    return LayoutChoice(plan, describe_layout_plan(record, graph, nodes), (), warnings)


def describe_layout_plan(
    record: LayoutRecord, graph: LayoutGraph, nodes: Sequence[SourceNode]
) -> LayoutsInfo:
    """A record of layouts in the words of a report."""

    def name(operator: int) -> str:
        var = graph.variables[operator]
        node = None if var is None else node_of(var)
        return "" if node is None else nodes[node].name

    counts, fixed = (
        Counter(layout_name(record.layouts[i]) for i in convolutions)
        for convolutions in (graph.convolutions, graph.fixed)
    )
    transforms = tuple(
        TransformInfo(name(t.operator), layout_name(t.before), layout_name(t.after), t.seconds)
        for t in record.transforms
    )
    return LayoutsInfo(
        dict(counts.most_common()),
        transforms,
        record.predicted,
        record.bound,
        record.measured,
        record.before,
        dict(fixed.most_common()),
    )


def _has_file(folder: Path, spec: DeviceSpec) -> bool:
    return store_of(folder, spec.key, LAYOUTS).is_file()


def _plan_of(record: LayoutRecord, graph: LayoutGraph, spec: DeviceSpec) -> LayoutPlan:
    """The plan that a record has.

    Raises
    ------
    ValueError
        What it says is not legal here.
    """
    if not graph.fits(record.layouts):
        raise ValueError("they do not go together")
    configs: dict[int, ConvConfig] = {}
    known: dict[str, ConvConfig] = {}
    for number, workload in graph.convolutions.items():
        block = record.layouts[number]
        if not block:
            continue
        knobs = record.configs.get(str(number))
        if knobs is None:
            raise ValueError(f"operator {number} has no configuration")
        measured = TuningRecord(
            record.device,
            record.target,
            recorded_workload(workload),
            record.template,
            record.template_version,
            knobs,
            (record.predicted,),
            record.tvm,
            record.time,
        )
        key = measured.workload.key + measured.config_hash
        if key not in known:
            known[key] = config_of(measured, config_space(workload, spec, blocks=True), spec)
        if known[key].block != block:
            raise ValueError(f"operator {number} is not in blocks of {block} channels")
        configs[number] = known[key]
    return LayoutPlan(graph.digest, tuple(record.layouts), configs)
