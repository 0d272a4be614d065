"""Latencies of a network's operators by their layouts: measured, or estimated beside it.

The fastest tuning record of a convolution in a layout counts. Where there is none, the schedules'
own cost model counts, corrected by its error where there are records: of the same convolution, or
else of all; in channel blocks or in NCHW as the layout at hand, or else in the other. Beside
records of the same convolution an estimate counts double: a network would take those that are too
low.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.records import RecordDevice, RecordLibrary
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph, LayoutPlan
from tvm_edge.relay_passes.solvers.layout_problem import LayoutProblem
from tvm_edge.schedules.conv_config import ConfigSpace, ConvConfig
from tvm_edge.schedules.conv_records import config_of, config_space, recorded_workload
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import estimate as on_cpu
from tvm_edge.schedules.gpu import estimate as on_gpu
from tvm_edge.tuning.transform_times import Kind, Shape, TransformTimes

__all__ = ["Options", "Way", "layout_problem", "plan_of", "transform_kinds", "ways"]


# Factor on the estimate of a layout that was never measured, beside one that was: pointwise and
# strided convolutions of YOLOv1 had 1.0 to 2.6 times the estimated latency.
_DOUBT = 2.0


@dataclass(frozen=True)
class Way:
    """Fastest known way to compute a convolution in one layout.

    Attributes
    ----------
    config : ConvConfig
    seconds : float
    measured : bool
        Whether it has a record.
    """

    config: ConvConfig
    seconds: float
    measured: bool


Options = Mapping[ConvWorkload, Mapping[int, Way]]
"""Ways by convolution and layout."""


def ways(
    workloads: Iterable[ConvWorkload], resolved: ResolvedTarget, folder: Path
) -> tuple[Options, tuple[str, ...]]:
    """Return the latency of each convolution in each of its layouts.

    Parameters
    ----------
    workloads : iterable of ConvWorkload
    resolved : ResolvedTarget
    folder : Path
        Of records.

    Returns
    -------
    Options
    tuple of str
        Records that could not be read.
    """
    spec = resolved.spec
    found: dict[ConvWorkload, dict[int, Way]] = {}
    off: defaultdict[tuple[ConvWorkload | None, bool], list[float]] = defaultdict(list)
    spaces = {
        workload: config_space(workload, spec, blocks=True) for workload in dict.fromkeys(workloads)
    }
    with RecordLibrary(RecordDevice.of(spec), folder) as library:
        for workload, space in spaces.items():
            found[workload] = own = _recorded(workload, space, library, resolved)
            for block, way in own.items():
                ratio = way.seconds / _estimate(workload, way.config, spec)
                off[workload, bool(block)].append(ratio)
                off[None, bool(block)].append(ratio)
        warnings = library.warnings
    for workload, space in spaces.items():
        for block, (config, seconds) in _estimated(space, spec).items():
            if block not in found[workload]:
                like = (
                    (own, kind) for kind in (bool(block), not block) for own in (workload, None)
                )
                known = next((off[key] for key in like if key in off), [1.0])
                doubt = _DOUBT if any(way.measured for way in found[workload].values()) else 1.0
                found[workload][block] = Way(config, seconds * median(known) * doubt, False)
    return found, warnings


def _recorded(
    workload: ConvWorkload, space: ConfigSpace, library: RecordLibrary, resolved: ResolvedTarget
) -> dict[int, Way]:
    found: dict[int, Way] = {}
    blocks = {config.block for config in space.configs}
    for each in library.of_device(recorded_workload(workload), resolved.kind):
        record = each.record
        if record.config.get("block") in found:
            continue
        try:
            config = config_of(record, space, resolved.spec)
        except ValueError:  # of another version, or of another number of cores
            continue
        found[config.block] = Way(config, record.cost, True)
        if len(found) == len(blocks):
            break
    return found


def _estimate(workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec) -> float:
    """Return seconds by the cost model of the device's schedules."""
    of_device = on_cpu if spec.has_cpu_cores else on_gpu
    return of_device.convolution_seconds(workload, config, spec)


def _estimated(space: ConfigSpace, spec: DeviceSpec) -> dict[int, tuple[ConvConfig, float]]:
    """Return the best configuration of each layout by the cost model of the schedules."""
    best: dict[int, tuple[ConvConfig, float]] = {}
    for config in space.top(1):
        seconds = _estimate(space.workload, config, spec)
        if config.block not in best or seconds < best[config.block][1]:
            best[config.block] = config, seconds
    return best


def transform_kinds(graph: LayoutGraph) -> dict[Kind, set[Shape]]:
    """Return the transforms that a network may need, with the shapes of their images."""
    found: defaultdict[Kind, set[Shape]] = defaultdict(set)
    for node in graph.nodes:
        for read in node.reads:
            source = graph.nodes[read.source]
            for before in source.layouts if source.shape else ():
                for after in read.layouts:
                    if before != after:
                        found[before, after].add(source.shape)
    return dict(found)


def layout_problem(graph: LayoutGraph, options: Options, times: TransformTimes) -> LayoutProblem:
    """Return a network with the latencies of its operators.

    Element-wise operators are part of the kernels before them, and pooling is as fast in one layout
    as in another. A copy of channels is as slow as packing them.
    """
    seconds, transforms, read_as = [], [], _read_as(graph)
    for number, node in enumerate(graph.nodes):
        workload = graph.convolutions.get(number)
        if workload is not None:
            seconds.append([options[workload][layout].seconds for layout in node.layouts])
        else:
            copied = number in graph.copies
            seconds.append(
                [_copy(node.shape, times) if copied and not x else 0.0 for x in node.layouts]
            )
        own: dict[Kind, float] = {}
        for before in node.layouts:
            gathered = (number, before) in graph.gathers
            copy = _copy(node.shape, times) if gathered else 0.0
            for after in read_as[number] | {before}:
                changed = before != after and node.shape
                made = times.seconds(node.shape, before, after) if changed else 0.0
                own[before, after] = made + copy
        transforms.append(own)
    return graph.problem(seconds, transforms)


def _read_as(graph: LayoutGraph) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in graph.nodes]
    for node in graph.nodes:
        for read in node.reads:
            found[read.source].update(read.layouts)
    return found


def _copy(shape: Shape, times: TransformTimes) -> float:
    kinds = [kind for kind in times.known if not kind[0]]
    return min((times.seconds(shape, *kind) for kind in kinds), default=0.0) if shape else 0.0


def plan_of(graph: LayoutGraph, layouts: tuple[int, ...], options: Options) -> LayoutPlan:
    """Return the plan to compile for these layouts."""
    configs = {
        number: options[workload][layouts[number]].config
        for number, workload in graph.convolutions.items()
        if layouts[number]
    }
    return LayoutPlan(graph.digest, layouts, configs)
