"""ONNX graphs with more outputs, and cut into groups of nodes that run by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.frontend.onnx_edges import reads

if TYPE_CHECKING:
    import onnx

__all__ = ["Graph", "Group", "Part", "with_outputs"]

_SHAPE_LIKE = 16  # elements of an integer vector that may be a shape, axes, or a number of results


@dataclass(frozen=True)
class Group:
    """Nodes that one kernel computes, or one node.

    Attributes
    ----------
    nodes : tuple of int
        By their positions in the graph.
    ends : tuple of str
        Tensors that nodes outside of it read, and outputs of the model.
    """

    nodes: tuple[int, ...]
    ends: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A model of some groups that read given tensors.

    Attributes
    ----------
    model : onnx.ModelProto
    inputs : dict of str to numpy.ndarray
    outputs : dict of str to str
        Output of the model by the tensor that it is.
    """

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: dict[str, str]


class Graph:
    """An ONNX model whose nodes have names of their own.

    Parameters
    ----------
    proto : onnx.ModelProto
        Its nodes are named, and renamed where two have one name.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        _name_nodes(proto)
        self.proto = proto
        self.nodes = list(proto.graph.node)
        self.position = {node.name: number for number, node in enumerate(self.nodes)}
        self.outputs = [value.name for value in proto.graph.output]
        weights = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = [value.name for value in proto.graph.input if value.name not in weights]
        self.running = self._running()
        self._producer = {
            name: number for number, node in enumerate(self.nodes) for name in node.output
        }
        self._readers: dict[str, set[int]] = {}
        for number, node in enumerate(self.nodes):
            for name in reads(node):
                self._readers.setdefault(name, set()).add(number)

    def _running(self) -> frozenset[str]:
        """Tensors that depend on an input; all others are constants."""
        running = set(self.inputs)
        for node in self.nodes:
            random = not any(reads(node)) and node.op_type.startswith("Random")
            if random or any(name in running for name in reads(node)):
                running.update(filter(None, node.output))
        return frozenset(running)

    def group(self, nodes: Iterable[int]) -> Group:
        """Make a group of nodes."""
        members = tuple(sorted(set(nodes)))
        inside = set(members)
        ends = []
        for number in members:
            for name in self.nodes[number].output:
                outside = self._readers.get(name, set()) - inside
                if name in self.running and (outside or name in self.outputs):
                    ends.append(name)
        return Group(members, tuple(ends))

    def singles(self) -> list[Group]:
        """Each node that a run executes, by itself, if anybody reads its results."""
        each = (self.group([number]) for number in range(len(self.nodes)))
        return [group for group in each if group.ends]

    def producer(self, tensor: str) -> int:
        """Return the node that makes a tensor, -1 for inputs and weights."""
        return self._producer.get(tensor, -1)

    def after(self, operators: Collection[str]) -> list[str]:
        """Return the nodes whose results no node of some operators reads, directly or by others."""
        leading: set[int] = set()
        for number in reversed(range(len(self.nodes))):
            readers = {r for name in self.nodes[number].output for r in self._readers.get(name, ())}
            if self.nodes[number].op_type in operators or readers & leading:
                leading.add(number)
        return [node.name for number, node in enumerate(self.nodes) if number not in leading]

    def between(self, nodes: Collection[int], free: Collection[int]) -> set[int]:
        """Return the `free` nodes on paths from one of some nodes to another."""
        after: set[int] = set()
        todo = list(nodes)
        while todo:
            for name in self.nodes[todo.pop()].output:
                found = {r for r in self._readers.get(name, ()) if r in free} - after
                after |= found
                todo += found
        before: set[int] = set()
        todo = list(nodes)
        while todo:
            made = {self._producer.get(name, -1) for name in reads(self.nodes[todo.pop()])}
            found = (made & after) - before
            before |= found
            todo += found
        return before

    def closed(self, group: Group, known: Mapping[str, np.ndarray]) -> Group:
        """Add the nodes that compute what a group reads and is not known; its ends stay.

        They are views of what is known, or constants.
        """
        members, todo = set(group.nodes), list(group.nodes)
        while todo:
            for name in reads(self.nodes[todo.pop()]):
                producer = self._producer.get(name, -1)
                if name in self.running and name not in known and producer not in {-1, *members}:
                    members.add(producer)
                    todo.append(producer)
        return Group(tuple(sorted(members)), group.ends)

    def part(
        self, groups: Sequence[Group], values: Mapping[str, np.ndarray], *, typed: bool = True
    ) -> Part:
        """Make a model in which each group reads `values` in place of what others compute.

        What does not depend on the model's inputs is there as it is. Small vectors of integers,
        which may be shapes, become constants.

        Parameters
        ----------
        groups : sequence of Group
        values : mapping of str to numpy.ndarray
        typed : bool
            Whether outputs have a type, which ONNX Runtime can do without.

        Raises
        ------
        KeyError
            A tensor that a group reads is not among `values`.
        """
        import onnx
        from onnx import numpy_helper

        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        graph = model.graph
        for field in ("node", "input", "output", "value_info"):
            graph.ClearField(field)
        weights = {tensor.name for tensor in graph.initializer}
        inputs: dict[str, np.ndarray] = {}
        outputs: dict[str, str] = {}
        made: list[onnx.NodeProto] = []
        taken: set[str] = set()
        for number, group in enumerate(groups):
            own = {name for index in group.nodes for name in self.nodes[index].output if name}
            renamed = {name: f"{number}:{name}" for name in own}
            for index in group.nodes:
                node = onnx.NodeProto()
                node.CopyFrom(self.nodes[index])
                for name in reads(node):
                    if name in own or name not in self.running:
                        continue
                    value = values[name]
                    renamed.setdefault(name, f"in:{name}")
                    if renamed[name] in inputs or renamed[name] in weights:
                        continue
                    if _may_be_a_shape(value):
                        graph.initializer.append(numpy_helper.from_array(value, renamed[name]))
                        weights.add(renamed[name])
                    else:
                        graph.input.append(_value_info(renamed[name], value, value.shape))
                        inputs[renamed[name]] = value
                _rename(node, renamed)
                if node.name in taken:  # what several groups need is in each of them
                    node.name = f"{node.name}#{number}"
                taken.add(node.name)
                made.append(node)
            for name in group.ends:
                outputs[name] = renamed[name]
                if typed:
                    shape = [None] * values[name].ndim
                    graph.output.append(_value_info(renamed[name], values[name], shape))
                else:
                    graph.output.append(onnx.ValueInfoProto(name=renamed[name]))
        graph.node.extend([*self._constant_nodes(groups), *made])
        _drop_unread(model)
        return Part(model, inputs, outputs)

    def _constant_nodes(self, groups: Sequence[Group]) -> list[onnx.NodeProto]:
        """Nodes outside of the groups that depend on no input."""
        inside = {index for group in groups for index in group.nodes}
        return [
            node
            for number, node in enumerate(self.nodes)
            if number not in inside and not any(name in self.running for name in node.output)
        ]


def with_outputs(
    proto: onnx.ModelProto, tensors: Iterable[str], values: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Copy a model, with more outputs.

    Parameters
    ----------
    proto : onnx.ModelProto
    tensors : iterable of str
        The new outputs; those that are outputs already stay where they are.
    values : mapping of str to numpy.ndarray
        A value of each, for its type and number of axes.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(proto)
    there = {value.name for value in proto.graph.output}
    new = [name for name in dict.fromkeys(tensors) if name not in there]
    infos = [_value_info(name, values[name], [None] * values[name].ndim) for name in new]
    model.graph.output.extend(infos)
    return model


def _name_nodes(proto: onnx.ModelProto) -> None:
    taken = {node.name for node in proto.graph.node}
    seen: set[str] = set()
    for node in proto.graph.node:
        name = node.name or next(filter(None, node.output), node.op_type)
        number = 1
        while name in seen or (name != node.name and name in taken):
            number += 1
            name = f"{node.name or node.op_type}#{number}"
        node.name = name
        seen.add(name)


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the tensors that a node and its subgraphs read and write."""
    for field in (node.input, node.output):
        for index, name in enumerate(field):
            field[index] = names.get(name, name)
    for attribute in node.attribute:
        graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
        for graph in graphs:
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            outer = {name: new for name, new in names.items() if name not in own}
            for inner in graph.node:
                _rename(inner, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)


def _drop_unread(model: onnx.ModelProto) -> None:
    """Drop constants that nobody reads; weights may be most of a model."""
    graph = model.graph
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(reads(node))
    weights = [tensor for tensor in graph.initializer if tensor.name in wanted]
    for field in ("node", "initializer"):
        graph.ClearField(field)
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)


def _may_be_a_shape(value: np.ndarray) -> bool:
    return value.dtype.kind in "iu" and value.ndim < 2 and value.size <= _SHAPE_LIKE


def _value_info(name: str, value: np.ndarray, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    import onnx.helper

    dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, shape)
