"""Which nodes of an ONNX graph read the results of which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["reads", "sources"]


def sources(proto: onnx.ModelProto) -> list[tuple[int, ...]]:
    """For each node of the graph the positions of the nodes whose results it reads, each once."""
    made = {name: i for i, node in enumerate(proto.graph.node) for name in node.output if name}
    return [
        tuple(dict.fromkeys(made[name] for name in reads(node) if name in made))
        for node in proto.graph.node
    ]


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Tensors that a node takes, those that its branches take from around it included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            inside = [name for inner in graph.node for name in reads(inner)]
            yield from (n for n in (*inside, *(v.name for v in graph.output)) if n not in own)
