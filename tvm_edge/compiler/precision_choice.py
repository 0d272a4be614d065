"""``precision="mixed"``: choose the operators that stay float32 because that is faster.

An operator costs what its kernel is estimated to take in each type. Where a graph goes from one
type to the other on tensor cores an image is packed into channel blocks, or unpacked, by a pass
over it. The least total is a minimum cut, all choices considered, and float32 throughout is one of
them: by the estimate ``mixed`` loses to it never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm import relax

from tvm_edge.frontend.relax_costs import call_cost
from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.hardware.roofline import kernel_us, roofline_us
from tvm_edge.relay_passes.ir.expressions import bindings_of, constant_of, is_call, static_shape
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.relay_passes.place.call_graph import CallGraph, Tensor, tensor_bytes, tensor_type
from tvm_edge.relay_passes.place.label_operators import nodes_of
from tvm_edge.relay_passes.precision.precision_plan import PrecisionPlan, is_product
from tvm_edge.relay_passes.solvers.minimum_cut import PlacementProblem, Transfer, place_by_cost
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import algorithm as cpu_algorithm
from tvm_edge.schedules.cpu import estimate as cpu_estimate
from tvm_edge.schedules.gpu.algorithm import choose_config
from tvm_edge.schedules.gpu.estimate import convolution_seconds
from tvm_edge.schedules.gpu.tensor_space import tensor_config, tensor_objection

__all__ = ["PrecisionChoice", "choose_precision"]

_HALF, _WHOLE = 0, 1

_CONVERSIONS = 1.2
"""Factor of the arithmetic of CUDA kernels that read float16 and have no tensor cores: resnet50_v1
took 4,075 us in ``mixed`` on 8 multiprocessors of an H200 before tensor cores were used, and 3,432
in float32."""

_WIDENING = 1.1
"""Factor of the arithmetic of a CPU's products of matrices that widen float16: an instruction for
each vector of the matrix, which some ten rows share."""

_LEAST_GAIN = 1.1
"""Factor of a CPU's convolutions in float16: smaller gains of the estimate were none. Without
it resnet50_v1 took 28.3 ms in ``mixed`` on two cores of an EPYC (Zen 4), and 27.4 in float32."""


@dataclass(frozen=True)
class PrecisionChoice:
    """Operators that stay float32, by estimates.

    Attributes
    ----------
    reasons : dict of int to str
        Why, by node of the user's model.
    chosen_us, float32_us : float
        Estimated latency of the model as chosen, and in float32.
    """

    reasons: dict[int, str] = field(default_factory=dict)
    chosen_us: float = 0.0
    float32_us: float = 0.0


def choose_precision(
    main: relax.Function, resolved: ResolvedTarget, exceptions: Mapping[int, str]
) -> PrecisionChoice:
    """Choose the products that stay float32; none of a model with branches, which has no sum.

    Parameters
    ----------
    main : relax.Function
        Simplified and placed, operators not legalised yet.
    resolved : ResolvedTarget
        A device that has float16.
    exceptions : mapping of int to str
        Nodes that stay float32 anyway.
    """
    if any(isinstance(binding.value, relax.If) for binding in bindings_of(main)):
        return PrecisionChoice()
    plan = PrecisionPlan(main, resolved.kind, exceptions)
    graph = CallGraph(main)
    spec, slower = resolved.spec, _CONVERSIONS if resolved.kind == "cuda" else 1.0
    numbers = range(1, len(graph.calls) + 1)
    us = [(0.0, 0.0), *(_latencies(number, spec, slower, graph) for number in numbers)]
    free = {i for i, (var, _) in enumerate(graph.calls, start=1) if var in plan.lowered}
    fixed = {i: _WHOLE for i in range(len(us)) if i not in free}
    transfers = [
        Transfer(graph.producer[tensor], tuple(readers), (_pass_us(tensor, spec),) * 2)
        for tensor, readers in graph.readers.items()
    ]
    problem = PlacementProblem(us, fixed, transfers)
    types = place_by_cost(problem)
    nodes = nodes_of(main)
    products = [i for i in sorted(free) if is_product(graph.calls[i - 1][1])]
    lowered = {nodes[graph.calls[i - 1][0]] for i in products if types[i] == _HALF}
    reasons: dict[int, str] = {}
    for i in products:
        var, call = graph.calls[i - 1]
        node = nodes[var]
        if types[i] == _WHOLE and node is not None and node not in lowered:
            reasons[node] = _reason(us[i], _objection(call, spec))
    return PrecisionChoice(reasons, problem.total(types), problem.total([_WHOLE] * len(us)))


def _latencies(
    number: int, spec: DeviceSpec, slower: float, graph: CallGraph
) -> tuple[float, float]:
    """Estimate the microseconds of an operator in float16 and in float32."""
    _, call = graph.calls[number - 1]
    if graph.kernel_before(call) is not None:
        return 0.0, 0.0
    if not spec.launches_grids:
        return _cpu_latencies(call, spec)
    workload = _workload(call)
    if workload is None:
        return _roofline(call, spec, slower)
    config = choose_config(workload, spec)
    whole = 1e6 * convolution_seconds(workload, config, spec)
    on_tensor_cores = tensor_config(workload, "float16", spec)
    if on_tensor_cores is not None:
        return 1e6 * convolution_seconds(workload, on_tensor_cores, spec), whole
    half = 1e6 * convolution_seconds(workload, config, spec, stored=2, slower=slower)
    # It reads, and writes, images that others have in blocks.
    made = [tensor for tensor in graph.readers if graph.producer[tensor] == number]
    around = [*graph.reads(call), *made]
    return half + sum(_pass_us(tensor, spec) for tensor in around), whole


def _cpu_latencies(call: relax.Call, spec: DeviceSpec) -> tuple[float, float]:
    """Estimate the same on a CPU, which widens float16 to calculate."""
    found = conv_workload(call)
    if found is None:
        return _roofline(call, spec, _WIDENING)
    config = cpu_algorithm.choose_config(found[0], spec)
    half, whole = (
        1e6 * cpu_estimate.convolution_seconds(found[0], config, spec, widened=widened)
        for widened in (True, False)
    )
    return _LEAST_GAIN * half, whole


def _roofline(call: relax.Call, spec: DeviceSpec, slower: float) -> tuple[float, float]:
    """Estimate the same from operations, `slower` ones in float16, and bytes."""
    cost = call_cost(call)
    moved = (cost.input_bytes or 0) + (cost.output_bytes or 0) + cost.weight_bytes
    product, work = is_product(call), float(cost.flops or 0)
    half = roofline_us(work * slower, moved / 2, spec, contraction=product)
    return half, roofline_us(work, moved, spec, contraction=product)


def _workload(call: relax.Call) -> ConvWorkload | None:
    """Return a convolution, or a product of matrices as one of 1x1, with constant weights."""
    found = conv_workload(call)
    if found is not None:
        return found[0]
    weights = constant_of(call.args[1]) if is_call(call, "relax.matmul") else None
    shape = static_shape(call.args[0].ty) if weights is not None else None
    if weights is None or weights.ndim != 2 or shape is None or len(shape) != 2 or 0 in shape:
        return None
    reduction, columns = weights.shape
    rows = (1, reduction, 1, shape[0], columns)
    return ConvWorkload(*rows, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)


def _pass_us(tensor: Tensor, spec: DeviceSpec) -> float:
    """Estimate the conversion of an image between blocks of float16 and NCHW of float32.

    Without blocks it is fused with the kernel that makes the tensor.
    """
    shape = static_shape(tensor_type(tensor))
    if not spec.tensor_cores or shape is None or len(shape) != 4:
        return 0.0
    return kernel_us(0.0, 1.5 * tensor_bytes(tensor), spec)


def _objection(call: relax.Call, spec: DeviceSpec) -> str:
    workload = _workload(call) if spec.launches_grids else None
    return tensor_objection(workload, "float16", spec) if workload is not None else ""


def _reason(us: tuple[float, float], objection: str) -> str:
    half, whole = us
    why = f" ({objection})" if objection else ""
    paid = ", which does not pay for the conversions around it" if half <= whole else ""
    return f"by the estimate {half:.1f} us in float16{why}, {whole:.1f} in float32{paid}"
