"""Edges between the nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["all_nodes", "reads", "sources", "subgraphs"]


def sources(proto: onnx.ModelProto) -> list[tuple[int, ...]]:
    """Return for each node the positions of the nodes whose results it reads, each once."""
    made = {name: i for i, node in enumerate(proto.graph.node) for name in node.output if name}
    return [
        tuple(dict.fromkeys(made[name] for name in reads(node) if name in made))
        for node in proto.graph.node
    ]


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node takes, those that its branches take from around it included."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        inside = [name for inner in graph.node for name in reads(inner)]
        yield from (n for n in (*inside, *(v.name for v in graph.output)) if n not in own)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the branches of an If, the body of a Loop."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)
