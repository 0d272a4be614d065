"""The cheapest placement of operators on two devices, as a minimum cut.

The time of a run is taken as a sum: that of each operator on its device, of each copy of a tensor
to the other device (once, however many operators read it there), and of each kernel that stands
alone because the operator it would be fused with is elsewhere. Each term is least when everything
it names is on one device, so the sum is submodular and a minimum cut of a graph of operators and
tensors finds its minimum, all placements considered: Kolmogorov and Zabih, "What energy functions
can be minimized via graph cuts?", 2004. ICPP'19 (§3.1.2) places by a list instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_edge.extras import require
from tvm_edge.relay_passes.place.label_operators import CPU, GPU

__all__ = ["PlacementProblem", "Seam", "Transfer", "place_by_cost"]

_NANOSECONDS = 1000  # in a microsecond: cuts of whole numbers are exact
_NEVER = 10**15


@dataclass(frozen=True)
class Transfer:
    """A tensor that is copied where a reader is not on the device of its producer.

    Attributes
    ----------
    producer : int
        An operator.
    readers : tuple[int, ...]
        Operators.
    us : tuple[float, float]
        Microseconds of a copy to the GPU, and to the CPU.
    """

    producer: int
    readers: tuple[int, ...]
    us: tuple[float, float]


@dataclass(frozen=True)
class Seam:
    """Two operators that are one kernel when they are on one device.

    Attributes
    ----------
    producer, consumer : int
    us : tuple[float, float]
        Latency of the consumer by itself, on the GPU and on the CPU.
    """

    producer: int
    consumer: int
    us: tuple[float, float]


@dataclass(frozen=True)
class PlacementProblem:
    """Operators, by number, and what they and their neighbourhood cost.

    Attributes
    ----------
    us : sequence of (float, float)
        Microseconds of each operator on the GPU and on the CPU; without those of a :class:`Seam`.
    fixed : mapping of int to int
        Operators whose device is given.
    transfers, seams : sequences
    """

    us: Sequence[tuple[float, float]]
    fixed: Mapping[int, int]
    transfers: Sequence[Transfer] = ()
    seams: Sequence[Seam] = ()

    def total(self, places: Sequence[int]) -> float:
        """Microseconds of a run with operators at `places`."""
        time = sum(us[place] for us, place in zip(self.us, places, strict=True))
        for transfer in self.transfers:
            elsewhere = {places[reader] for reader in transfer.readers}
            elsewhere.discard(places[transfer.producer])
            time += sum(transfer.us[place] for place in elsewhere)
        for seam in self.seams:
            if places[seam.producer] != places[seam.consumer]:
                time += seam.us[places[seam.consumer]]
        return time


def place_by_cost(problem: PlacementProblem) -> list[int]:
    """The device of each operator in a placement of the least total time.

    Of several such placements, that with the fewest operators on the CPU.
    """
    networkx = require("networkx", "onnx", "to place operators by cost")

    graph = networkx.DiGraph()
    source, sink = "GPU", "CPU"  # what a cut leaves with the source is on the GPU

    def edge(tail: object, head: object, us: float) -> None:
        amount = min(round(us * _NANOSECONDS), _NEVER)
        if graph.has_edge(tail, head):
            graph[tail][head]["capacity"] += amount
        else:
            graph.add_edge(tail, head, capacity=amount)

    graph.add_nodes_from((source, sink))
    for operator, (on_gpu, on_cpu) in enumerate(problem.us):
        edge(source, operator, on_cpu)
        edge(operator, sink, on_gpu)
    for operator, place in problem.fixed.items():
        tail, head = (source, operator) if place == GPU else (operator, sink)
        edge(tail, head, _NEVER)
    for number, transfer in enumerate(problem.transfers):
        # A node for the copy in each direction: however many readers, it is cut once.
        there, back = ("to CPU", number), ("to GPU", number)
        edge(transfer.producer, there, transfer.us[CPU])
        edge(back, transfer.producer, transfer.us[GPU])
        for reader in transfer.readers:
            edge(there, reader, _NEVER)
            edge(reader, back, _NEVER)
    for seam in problem.seams:
        edge(seam.producer, seam.consumer, seam.us[CPU])
        edge(seam.consumer, seam.producer, seam.us[GPU])
    _, (_, with_sink) = networkx.minimum_cut(graph, source, sink)
    return [CPU if operator in with_sink else GPU for operator in range(len(problem.us))]
