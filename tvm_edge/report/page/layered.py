"""Coordinates for a directed graph without cycles: layers from top to bottom, few bends.

Sugiyama's method. The layer of a node is the longest path to it; an edge over several layers goes
through points of its own in those between, and all such edges of one node share them, so that what
many read is one trunk. Nodes are ordered by the mean place of their neighbours, and come to lie as
near below and above them as their order lets them: isotonic regression, layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

__all__ = ["Layout", "lay_out"]

_SWEEPS = 6
_THIN = 0.16  # width of a point of a long edge, in widths of a node
_STRAIGHT = 8.0  # how much more a long edge wants to be straight than a short one

Point = tuple[float, int]


@dataclass(frozen=True)
class Layout:
    """Coordinates of nodes and edges.

    Attributes
    ----------
    nodes : list of (float, int)
        Centre of each node, in widths of a node and layers; the leftmost node's is 0.5.
    edges : dict of (int, int) to list of (float, int)
        The points between its ends that an edge goes through, downwards.
    width : float
    layers : int
    """

    nodes: list[Point]
    edges: dict[tuple[int, int], list[Point]]
    width: float
    layers: int


class _Graph:
    """Nodes by number: the sources and the readers of each."""

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        self.sources: dict[int, dict[int, None]] = {node: {} for node in range(count)}
        self.readers: dict[int, dict[int, None]] = {node: {} for node in range(count)}
        for source, reader in edges:
            self.connect(source, reader)

    def add_node(self, node: int) -> None:
        self.sources[node], self.readers[node] = {}, {}

    def connect(self, source: int, reader: int) -> None:
        self.readers[source][reader] = self.sources[reader][source] = None

    def disconnect(self, source: int, reader: int) -> None:
        del self.readers[source][reader], self.sources[reader][source]

    def in_order(self) -> Iterator[int]:
        """Nodes, each after its sources and otherwise by number."""
        waiting = {node: len(sources) for node, sources in self.sources.items()}
        ready = [node for node, count in waiting.items() if not count]
        heapify(ready)
        while ready:
            node = heappop(ready)
            yield node
            for reader in self.readers[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heappush(ready, reader)


def lay_out(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """Coordinates of the nodes 0 to `count` - 1.

    Parameters
    ----------
    count : int
    edges : iterable of (int, int)
        From, to; without cycles.
    """
    graph = _Graph(count, edges)
    layer = _layer_of(graph)
    routes = _add_trunks(graph, layer)
    layers: list[list[int]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in graph.in_order():
        layers[layer[node]].append(node)
    _order(graph, layers)
    room = {node: 1.0 if node < count else _THIN for node in layer}
    x = _spread(graph, layers, room)
    left = min((x[node] - room[node] / 2 for node in layer), default=0.0)
    right = max((x[node] + room[node] / 2 for node in layer), default=0.0)

    def point(node: int) -> Point:
        return x[node] - left, layer[node]

    return Layout(
        [point(node) for node in range(count)],
        {edge: [point(node) for node in route] for edge, route in routes.items()},
        right - left,
        len(layers),
    )


def _layer_of(graph: _Graph) -> dict[int, int]:
    """The longest path to each node; one that reads nothing stands just above its first reader."""
    layer: dict[int, int] = {}
    for node in graph.in_order():
        layer[node] = max((layer[source] + 1 for source in graph.sources[node]), default=0)
    for node, readers in graph.readers.items():
        if readers and not graph.sources[node]:
            layer[node] = min(layer[reader] for reader in readers) - 1
    return layer


def _add_trunks(graph: _Graph, layer: dict[int, int]) -> dict[tuple[int, int], list[int]]:
    """Put points on edges over several layers, and return those of each edge of the graph."""
    routes: dict[tuple[int, int], list[int]] = {}
    following = len(layer)
    for node in list(layer):
        trunk: list[int] = []
        for reader in sorted(graph.readers[node], key=lambda reader: layer[reader]):
            between = layer[reader] - layer[node] - 1
            while len(trunk) < between:
                graph.add_node(following)
                graph.connect(trunk[-1] if trunk else node, following)
                layer[following] = layer[node] + len(trunk) + 1
                trunk.append(following)
                following += 1
            routes[node, reader] = trunk[:between]
            if between:
                graph.disconnect(node, reader)
                graph.connect(trunk[between - 1], reader)
    return routes


def _order(graph: _Graph, layers: list[list[int]]) -> None:
    """Sort each layer by the mean place of the neighbours above, then below, and again."""
    place = {node: float(i) for nodes in layers for i, node in enumerate(nodes)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = graph.sources if down else graph.readers
        for nodes in layers if down else reversed(layers):
            mean = {}
            for node in nodes:
                places = [place[other] for other in near[node]]
                mean[node] = sum(places) / len(places) if places else place[node]
            nodes.sort(key=mean.__getitem__)
            place.update({node: float(i) for i, node in enumerate(nodes)})


def _spread(graph: _Graph, layers: list[list[int]], room: dict[int, float]) -> dict[int, float]:
    """Centres: as near to the mean of the neighbours as the order allows."""
    x: dict[int, float] = {}
    for nodes in layers:
        total, at = sum(room[node] for node in nodes), 0.0
        for node in nodes:
            x[node] = at + room[node] / 2 - total / 2
            at += room[node]
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        near = graph.sources if down else graph.readers
        for nodes in layers if down else reversed(layers):
            wanted, weights, offsets, at = [], [], [], 0.0
            for node in nodes:
                places = [x[other] for other in near[node]]
                offsets.append(at + room[node] / 2)
                at += room[node]
                wanted.append((sum(places) / len(places) if places else x[node]) - offsets[-1])
                thin = room[node] < 1 and any(room[other] < 1 for other in near[node])
                weights.append(_STRAIGHT if thin else 1.0)
            for node, offset, value in zip(nodes, offsets, _rising(wanted, weights), strict=True):
                x[node] = value + offset
    return x


def _rising(wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `wanted` in weighted squares: neighbours that are
    in the wrong order become their mean, until none are.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(wanted, weights, strict=True):
        length = 1
        while pools and pools[-1][0] > value:
            mean, heavy, many = pools.pop()
            value = (mean * heavy + value * weight) / (heavy + weight)
            weight, length = heavy + weight, length + many
        pools.append((value, weight, length))
    return [mean for mean, _, length in pools for _ in range(length)]
