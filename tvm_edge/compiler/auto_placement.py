"""``fallback="auto"``: choose the operators that leave the GPU because that is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import relax

from tvm_edge.extras import require
from tvm_edge.frontend.operator_times import operator_us
from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.hardware.roofline import copy_us
from tvm_edge.relay_passes.ir.expressions import is_call
from tvm_edge.relay_passes.place.call_graph import HOST, CallGraph, tensor_bytes
from tvm_edge.relay_passes.place.label_operators import CPU, GPU, Label
from tvm_edge.relay_passes.solvers.minimum_cut import (
    PlacementProblem,
    Seam,
    Transfer,
    place_by_cost,
)

__all__ = ["cheaper_on_cpu", "placement_problem"]

_LEAST_US, _LEAST_OF_RUN, _LEAST_OF_PARTITION = 200.0, 0.02, 0.35
"""The smallest partition that leaves the GPU, by what that saves: microseconds, share of the time
of a run, and share of the latency of its operators on the GPU. A graph in many pieces keeps both
devices waiting for each other. Latencies are estimates: a network that they call a tenth faster on
the CPU stays where the user wants it."""

_VIEWS = frozenset(
    f"relax.{name}"
    for name in ("expand_dims", "flatten", "nn.batch_flatten", "nn.dropout", "reshape", "squeeze")
)


def cheaper_on_cpu(
    main: relax.Function, labels: Mapping[relax.Var, Label], resolved: ResolvedTarget
) -> dict[relax.Var, str]:
    """Results that are better computed on the CPU, and why.

    Parameters
    ----------
    main : relax.Function
        Operators not legalised yet, in administrative normal form, without branches.
    labels : mapping of relax.Var to Label
        Where operators have to be: those on the CPU cannot run on the GPU.
    resolved : ResolvedTarget
        A GPU and its host.
    """
    problem, variables = placement_problem(main, labels, resolved)
    places = place_by_cost(problem)
    reasons: dict[relax.Var, str] = {}
    for partition in _partitions(problem, places):
        gain = _gain(problem, places, partition)
        there = sum(problem.us[operator][GPU] for operator in partition)
        least = [_LEAST_OF_RUN * problem.total(places)]
        if not resolved.spec.on_cpu:  # the same cores run the same schedules: there is no doubt
            least.append(_LEAST_OF_PARTITION * there)
        if gain < max(_LEAST_US, *least):
            for operator in partition:
                places[operator] = GPU
    total = problem.total(places)
    for partition in _partitions(problem, places):
        gain = _gain(problem, places, partition)
        reason = f"by cost: saves some {gain / 1e3:.2g} ms of a run of {(total + gain) / 1e3:.2g}"
        reasons |= {variables[operator]: reason for operator in partition}
    return reasons


def placement_problem(
    main: relax.Function, labels: Mapping[relax.Var, Label], resolved: ResolvedTarget
) -> tuple[PlacementProblem, dict[int, relax.Var]]:
    """The costs of all placements of `main`, and the variable of each of its operators.

    Operator 0 is the host: it makes the inputs and reads the results.
    """
    gpu, cpu = resolved.spec, resolved.cpu.spec
    if gpu.unified_memory and gpu.bandwidth_gbs:  # theirs is the same
        cpu = replace(cpu, bandwidth_gbs=min(cpu.bandwidth_gbs, gpu.bandwidth_gbs))
    graph = CallGraph(main)
    us: list[tuple[float, float]] = [(0.0, 0.0)]
    fixed = {HOST: CPU}
    seams = []
    for operator, (var, call) in enumerate(graph.calls, start=1):
        times = _times(call, gpu, cpu)
        producer = graph.kernel_before(call)
        if producer is not None:
            seams.append(Seam(producer, operator, times))
            times = (0.0, 0.0)
        us.append(times)
        if labels[var].device == CPU:
            fixed[operator] = CPU
        elif not graph.reads(call):  # nothing would carry a virtual device to its kernel
            fixed[operator] = GPU
    transfers = []
    for tensor, readers in graph.readers.items():
        ends = (graph.producer[tensor], *readers)
        # The user's memory is another than the device's.
        shared = frozenset[str]() if HOST in ends else resolved.shared
        to_gpu, to_cpu = (
            copy_us(tensor_bytes(tensor), gpu, w in shared) for w in ("write", "read")
        )
        transfers.append(Transfer(ends[0], tuple(readers), (to_gpu, to_cpu)))
    problem = PlacementProblem(us, fixed, transfers, seams)
    return problem, {i: var for i, (var, _) in enumerate(graph.calls, start=1)}


def _times(call: relax.Call, gpu: DeviceSpec, cpu: DeviceSpec) -> tuple[float, float]:
    if is_call(call, *_VIEWS):
        return 0.0, 0.0
    return operator_us(call, gpu), operator_us(call, cpu)


def _partitions(problem: PlacementProblem, places: Sequence[int]) -> list[list[int]]:
    """The operators that are on the CPU by choice, in pieces that tensors connect."""
    networkx = require("networkx", "onnx", "to place operators by cost")

    chosen = [
        operator
        for operator, place in enumerate(places)
        if place == CPU and operator not in problem.fixed
    ]
    graph = networkx.Graph()
    graph.add_nodes_from(chosen)
    members = set(chosen)
    for transfer in problem.transfers:
        ends = [op for op in (transfer.producer, *transfer.readers) if op in members]
        networkx.add_path(graph, ends)
    return [sorted(piece) for piece in networkx.connected_components(graph)]


def _gain(problem: PlacementProblem, places: Sequence[int], partition: Sequence[int]) -> float:
    """Return by how many microseconds a run is slower with a partition on the GPU."""
    back = list(places)
    for operator in partition:
        back[operator] = GPU
    return problem.total(back) - problem.total(places)
