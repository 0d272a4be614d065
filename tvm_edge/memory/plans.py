"""Ways to run a network in less memory, and the choice among them.

Those of "Are Very Deep Neural Networks Feasible on Mobile Devices?" (section 3): fully connected
layers on the CPU, whose weights then are pages of a file that the operating system may drop; the
same with frames pipelined; layers split, whose weights pass through a window. Beside them
convolutions without Winograd's algorithm, which needs a workspace for transformed images and
filters, and convolutions whose weights pass through that window as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm_edge.errors import MemoryBudgetError
from tvm_edge.extras import require
from tvm_edge.frontend import SourceNode
from tvm_edge.memory.budget import written
from tvm_edge.relay_passes.memory.stream_layers import LEAST_STREAMED
from tvm_edge.report import PlanInfo

__all__ = [
    "AS_IS",
    "Plan",
    "Prediction",
    "chosen",
    "dense_nodes",
    "offloaded",
    "possible",
]

_DENSE = frozenset(("Gemm", "MatMul", "matmul"))
_CONVOLUTIONS = ("Conv", "nn.conv")

_LEAST = written(LEAST_STREAMED)
_ON_CPU = "the target is the CPU, which reads its weights where the artifact is mapped"

_FC_ON_CPU = "FC on the CPU: its weights stay pages of the artifact, for the memory budget"
"""Reason of an operator that would run on the GPU and does not."""


@dataclass(frozen=True)
class Plan:
    """One way to run a model.

    Attributes
    ----------
    name : str
    offload : mapping of int to str
        Nodes of the model that run on the CPU beside the GPU, and why.
    winograd : bool
        Whether convolutions may be by Winograd's algorithm.
    weight_window : int or None
        Bytes of weights at a time, of dense layers that have more.
    conv_window : int or None
        Bytes of convolutions' weights at a time, all of which then are streamed.
    pipelined : bool
        Whether frames are in flight on both devices, as ``model.stream`` has them.
    instead_of : str
        The plan that this is with more streamed weights: what is to be preferred if it fits.
    """

    name: str
    offload: Mapping[int, str] = field(default_factory=dict)
    winograd: bool = True
    weight_window: int | None = None
    conv_window: int | None = None
    pipelined: bool = False
    instead_of: str = ""

    @property
    def least_streamed(self) -> int | None:
        """Bytes of a convolution's weights that are streamed, or more; ``None``: none are.

        Less where the window is small, so that parts of a layer that is cut are among them.
        """
        return None if self.conv_window is None else min(LEAST_STREAMED, self.conv_window // 8)


AS_IS = Plan("as is")
"""Plan of the compiler where nobody asks for less memory."""


@dataclass(frozen=True)
class Prediction:
    """Memory and time of a plan.

    Attributes
    ----------
    plan : Plan
    peak : int
        Bytes, as :attr:`tvm_edge.report.MemoryInfo.peak`.
    seconds : float
        Of a frame.
    bound : str
        The term that dominates the time.
    floor : int
        Bytes of the process without a model.
    """

    plan: Plan
    peak: int
    seconds: float
    bound: str
    floor: int


def dense_nodes(nodes: Sequence[SourceNode]) -> list[int]:
    """The fully connected layers that matter for memory."""
    return [index for index, node in enumerate(nodes) if node.op_type in _DENSE and _matters(node)]


def _is_convolution(node: SourceNode) -> bool:
    return node.op_type.startswith(_CONVOLUTIONS)


def _matters(node: SourceNode) -> bool:
    return node.cost.weight_bytes >= LEAST_STREAMED


def offloaded(nodes: Sequence[SourceNode]) -> list[int]:
    """The nodes that go to the CPU with the fully connected layers.

    All after them, unless there are convolutions; else what is between one of them and another.
    So a frame is copied from the GPU to the CPU once.
    """
    networkx = require("networkx", "onnx", "to plan for a memory budget")

    dense = dense_nodes(nodes)
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from((i, index) for index, node in enumerate(nodes) for i in node.inputs)
    after = {d for index in dense for d in networkx.descendants(graph, index)}
    if any(_is_convolution(nodes[index]) for index in after):
        after &= {a for index in dense for a in networkx.ancestors(graph, index)}
    return sorted({*dense, *after})


def possible(
    nodes: Sequence[SourceNode],
    *,
    beside_cpu: bool,
    unified: bool,
    offload: bool,
) -> Iterator[tuple[Plan, str]]:
    """Every plan, and why it is not to be had; empty for one that is.

    Parameters
    ----------
    nodes : sequence of SourceNode
        Of the model.
    beside_cpu : bool
        Whether the target is a GPU with a CPU beside it.
    unified : bool
        Whether they share memory.
    offload : bool
        Whether ``fallback=`` lets operators leave the GPU.
    """
    dense = dense_nodes(nodes)
    why_not_split = "" if dense else f"no fully connected layer has {_LEAST} of weights"
    if not beside_cpu:
        why_not_split = _ON_CPU
    why_on_gpu = why_not_split
    if beside_cpu and not offload:
        why_on_gpu = "fallback= keeps operators on the GPU"
    yield AS_IS, ""
    yield Plan("no Winograd", winograd=False), ""
    yield Plan("unified memory"), _why_not_unified(beside_cpu, unified)
    on_cpu = Plan(
        "FC on the CPU", dict.fromkeys(() if why_on_gpu else offloaded(nodes), _FC_ON_CPU)
    )
    yield on_cpu, why_on_gpu
    yield replace(on_cpu, name="FC on the CPU, pipelined", pipelined=True), why_on_gpu
    yield _direct(on_cpu), why_on_gpu
    largest = max((nodes[index].cost.weight_bytes for index in dense), default=0)
    # Two parts are in memory: one at work, and the next.
    quarters, split = (
        Plan(f"FC split ×{parts}", weight_window=2 * -(-largest // parts)) for parts in (4, 16)
    )
    yield quarters, why_not_split
    yield split, why_not_split
    yield _direct(split), why_not_split
    if dense:
        yield from _streamed(nodes, on_cpu, why_on_gpu)
        yield from _streamed(nodes, split, why_not_split)
    else:
        yield from _streamed(nodes, AS_IS, "" if beside_cpu else _ON_CPU)


def _direct(plan: Plan) -> Plan:
    """Return a plan without Winograd's algorithm."""
    return replace(plan, name=f"{plan.name}, no Winograd", winograd=False)


def _streamed(nodes: Sequence[SourceNode], base: Plan, why: str) -> Iterator[tuple[Plan, str]]:
    """A plan with the weights of convolutions streamed, in three ways; and why it cannot be."""
    sizes = [n.cost.weight_bytes for n in nodes if _is_convolution(n) and _matters(n)]
    if not sizes:
        why = why or f"no convolution has {_LEAST} of weights"
    largest = max(sizes, default=0)
    what = "convolutions streamed"
    name = what if base is AS_IS else f"{base.name}, {what}"
    whole = replace(base, name=name, conv_window=2 * largest, instead_of=base.name)
    yield whole, why
    plain = "no Winograd" if base is AS_IS else _direct(base).name
    direct = replace(_direct(whole), instead_of=plain)
    yield direct, why
    parts = replace(direct, name=f"{name} ×4", instead_of=direct.name)
    yield replace(_direct(parts), conv_window=2 * -(-largest // 4)), why


def _why_not_unified(beside_cpu: bool, unified: bool) -> str:
    if not beside_cpu:
        return "the target is the CPU"
    if not unified:
        return "the device has a memory of its own"
    return (
        "as is has one copy already: what is uploaded leaves the process, and shared tensors are "
        "mapped"
    )


def chosen(
    budget: int, model: str, considered: Sequence[tuple[Plan, Prediction | str]], advice: str
) -> tuple[Plan, tuple[PlanInfo, ...]]:
    """The fastest plan that fits, and all of them as a report has them.

    Of plans that are equally fast, the first.

    Parameters
    ----------
    budget : int
        Bytes.
    model : str
        Its name, for the message.
    considered : sequence of (Plan, Prediction or str)
        Prediction of each, or why it does not come into question.
    advice : str
        What else the user can do, for the message.

    Raises
    ------
    MemoryBudgetError
        None fits.
    """
    predictions = [found for _, found in considered if isinstance(found, Prediction)]
    fitting = [p for p in predictions if p.peak <= budget]
    if not fitting:
        least = min(predictions, key=lambda p: p.peak)
        raise MemoryBudgetError(
            f"{model} does not fit memory_budget={budget} ({written(budget)}): the smallest plan, "
            f"{least.plan.name!r}, is predicted to take {written(least.peak)}, of which "
            f"{written(least.floor)} is the process without a model; use "
            f"memory_budget={written(least.peak)!r} or more, {advice}",
            budget=budget,
            smallest_feasible=least.peak,
        )
    best = min(fitting, key=lambda p: p.seconds)
    return best.plan, tuple(_info(plan, found, best, budget) for plan, found in considered)


def _info(plan: Plan, found: Prediction | str, best: Prediction, budget: int) -> PlanInfo:
    if isinstance(found, str):
        return PlanInfo(plan.name, None, None, "", False, found, plan.pipelined)
    if found is best:
        reason = "the fastest that fits"
    elif found.peak > budget:
        reason = f"{written(found.peak - budget)} above the budget"
    else:
        reason = "fits, and is slower" if found.seconds > best.seconds else "fits, no faster"
    return PlanInfo(
        plan.name, found.peak, found.seconds, found.bound, found is best, reason, plan.pipelined
    )
