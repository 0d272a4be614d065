"""Graphs of sequences and optionals, written out as graphs of tensors.

Kernels take tensors. Of inputs that are at hand it is known how many tensors a sequence has and
whether an optional has a value, and then each element is a tensor of its own: what builds, indexes
and maps sequences is bookkeeping of names. Sequences and optionals: ONNX IR specification,
"Sequence Types" and "Optional Type".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvm_edge.errors import InvalidModelError, UnsupportedOperatorError

__all__ = ["Names", "Value", "Writer", "decides"]

Value = Any
"""The name of a tensor, a list of values, or ``None`` for an optional without a value."""

# Steps of loops, and elements of an input whose values may decide what is written.
_MOST_STEPS = 4096
_MOST_ELEMENTS = 64

Names = dict[str, Value]
"""Values by the names that a graph has for them."""

Operator = Callable[["Writer", onnx.NodeProto, Sequence[Value], Names], list[Value]]
"""Converter of a node, called with its operands: returns its results."""


class Writer:
    """A graph of tensors that grows node by node.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model that is written out.
    inputs : mapping of str to numpy.ndarray
        Tensors that are handed in, by the names that they have here.
    operators : mapping of str to callable
        Operators of sequences and optionals.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        inputs: Mapping[str, np.ndarray],
        operators: Mapping[str, Operator],
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self._inputs = inputs
        self._proto = proto
        self._operators = operators
        self._opset = next(
            (o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 13
        )
        # What is inside a branch that stays may not be the name of something outside.
        self._taken = {*inputs, *_inner_names(proto.graph)}
        self._makers: dict[str, onnx.NodeProto] = {}

    def graph(self, graph: onnx.GraphProto, outer: Names) -> list[Value]:
        """Write out a graph whose inputs `outer` knows; return its outputs."""
        names = dict(outer)
        for tensor in graph.initializer:
            if tensor.name not in names:
                names[tensor.name] = self._constant(tensor, tensor.name)
        for node in graph.node:
            made = self._node(node, names)
            names.update(
                (name, value) for name, value in zip(node.output, made, strict=False) if name
            )
        return [names[value.name] for value in graph.output]

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model of `outputs`, all of its inputs tensors."""
        graph = helper.make_graph(
            self.nodes,
            self._proto.graph.name or "tensors",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in self._inputs.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            list(self.constants.values()),
        )
        made = onnx.ModelProto()
        made.CopyFrom(self._proto)
        made.graph.CopyFrom(graph)
        made.ir_version = max(made.ir_version, 4)
        return made

    def emit(self, operator: str, inputs: Sequence[str], count: int = 1, **attrs: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        outputs = [self._new(operator) for _ in range(count)]
        self._add(helper.make_node(operator, inputs, outputs, **attrs))
        return outputs

    def constant(self, array: Any) -> str:
        """Add a constant; return its name."""
        name = self._new("constant")
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def number(self, name: str, what: str) -> np.ndarray:
        """Return the value of a tensor that decides what is written.

        Raises
        ------
        UnsupportedOperatorError
            It is calculated from data, not from a few whole numbers.
        """
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        nodes, inputs = self._ancestors(name)
        if not all(map(decides, inputs.values())):
            raise UnsupportedOperatorError(
                f"{what} is calculated from data, and how many tensors a sequence has must be "
                "known before the run; make it a constant"
            )
        if not nodes:
            return inputs[name]
        from onnx.reference import ReferenceEvaluator

        model = self.model([name])
        model.graph.ClearField("node")
        model.graph.node.extend(nodes)
        (value,) = ReferenceEvaluator(model).run([name], dict(self._inputs))
        return np.asarray(value)

    def length(self, name: str, axis: int) -> int:
        """Return the length of a tensor along an axis.

        Raises
        ------
        UnsupportedOperatorError
            It is known only in the run.
        """
        known: Sequence[int] | None = None
        if name in self._inputs:
            known = self._inputs[name].shape
        elif name in self.constants:
            known = self.constants[name].dims
        if known is not None and -len(known) <= axis < len(known):
            return int(known[axis])
        inferred = onnx.shape_inference.infer_shapes(self.model([name]), data_prop=True)
        dims = inferred.graph.output[0].type.tensor_type.shape.dim
        if not -len(dims) <= axis < len(dims) or not dims[axis].HasField("dim_value"):
            raise UnsupportedOperatorError(
                f"the tensor {name!r} is split into as many as it is long, which is not known "
                "before the run; give SplitToSequence a constant split"
            )
        return int(dims[axis].dim_value)

    def along(self, operator: str, x: str, axis: int) -> str:
        """Add a Squeeze or an Unsqueeze, whose axes became an input with opset 13."""
        if self._opset >= 13:
            return self.emit(operator, [x, self.constant(np.asarray([axis], "int64"))])[0]
        return self.emit(operator, [x], axes=[axis])[0]

    def split(self, x: str, lengths: Sequence[int], axis: int) -> list[str]:
        """Add a Split, whose lengths became an input with opset 13."""
        if self._opset >= 13:
            sizes = self.constant(np.asarray(lengths, "int64"))
            return self.emit("Split", [x, sizes], len(lengths), axis=axis)
        return self.emit("Split", [x], len(lengths), axis=axis, split=list(lengths))

    def _ancestors(self, name: str) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
        """Return what a tensor is calculated by, in order, and from which inputs."""
        needed, inputs, waiting = set(), {}, [name]
        while waiting:
            wanted = waiting.pop()
            maker = self._makers.get(wanted)
            if wanted in self._inputs:
                inputs[wanted] = self._inputs[wanted]
            elif maker is not None and id(maker) not in needed:
                needed.add(id(maker))
                waiting += [operand for operand in maker.input if operand]
        return [node for node in self.nodes if id(node) in needed], inputs

    def _node(self, node: onnx.NodeProto, names: Names) -> list[Value]:
        given = [names[name] if name else None for name in node.input]
        convert = None
        if node.domain in ("", "ai.onnx"):
            convert = self._operators.get(node.op_type)
        if convert is None and node.op_type == "Identity" and not isinstance(given[0], str):
            return given
        if node.op_type in ("If", "Loop") and self._decides(node, given, names):
            steps = self._choice if node.op_type == "If" else self._loop
            return steps(node, given, names)
        if convert is not None:
            return convert(self, node, given, names)
        return self._kept(node, given, names)

    def _kept(self, node: onnx.NodeProto, given: Sequence[Value], names: Names) -> list[str]:
        """Take over a node of tensors."""
        if any(isinstance(value, list) for value in given):
            raise UnsupportedOperatorError(
                f"{node.op_type} of sequences has no implementation; rewrite the model without it"
            )
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        kept.ClearField("input")
        kept.input.extend(value or "" for value in given)
        kept.ClearField("output")
        kept.output.extend(self._new(name) if name else "" for name in node.output)
        for attribute in kept.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, names)
        self._add(kept)
        return list(kept.output)

    def _decides(self, node: onnx.NodeProto, given: Sequence[Value], names: Names) -> bool:
        """Return whether a branch or a body handles other than tensors."""
        graphs = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        outer = {name for graph in graphs for name in _read(graph)}
        return (
            not all(value is None or isinstance(value, str) for value in given)
            or any(name in names and not isinstance(names[name], str) for name in outer)
            or any(
                value.type.WhichOneof("value") in ("sequence_type", "optional_type")
                for graph in graphs
                for value in graph.output
            )
        )

    def _choice(self, node: onnx.NodeProto, given: Sequence[Value], names: Names) -> list[Value]:
        taken = self.number(given[0], f"the condition of the If {node.name!r}").reshape(-1)[0]
        return self.graph(_body(node, "then_branch" if taken else "else_branch"), names)

    def _loop(self, node: onnx.NodeProto, given: Sequence[Value], names: Names) -> list[Value]:
        what, body = f"the number of steps of the Loop {node.name!r}", _body(node, "body")
        limit, running, *state = given
        most = None if limit is None else int(self.number(limit, what).item())
        rows: list[list[str]] = [[] for _ in body.output[1 + len(state) :]]
        step = 0
        while most is None or step < most:
            if running is not None and not self.number(running, what).item():
                break
            if step == _MOST_STEPS:
                raise UnsupportedOperatorError(f"{what} is above {_MOST_STEPS}; take fewer")
            true = running if running is not None else self.constant(np.asarray(True))
            actual = [self.constant(np.asarray(step, "int64")), true, *state]
            formal = [value.name for value in body.input]
            outputs = self.graph(body, {**names, **dict(zip(formal, actual, strict=True))})
            running, state = outputs[0], outputs[1 : 1 + len(state)]
            for column, value in zip(rows, outputs[1 + len(state) :], strict=True):
                column.append(value)
            step += 1
        if rows and not step:
            raise UnsupportedOperatorError(f"{what} is 0, and nothing tells the shapes of its rows")
        return [*state, *(self.stacked(column) for column in rows)]

    def stacked(self, values: Sequence[str], axis: int = 0) -> str:
        """Stack tensors along a new axis."""
        wide = [self.along("Unsqueeze", value, axis) for value in values]
        return self.emit("Concat", wide, axis=axis)[0]

    def _constant(self, tensor: onnx.TensorProto, name: str) -> str:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = self._new(name)
        self.constants[copy.name] = copy
        return copy.name

    def _add(self, node: onnx.NodeProto) -> None:
        self.nodes.append(node)
        self._makers.update(dict.fromkeys(node.output, node))

    def _new(self, wish: str) -> str:
        name, number = wish, 0
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name


def decides(array: np.ndarray) -> bool:
    """Return whether the values of an input may decide what is written: a few whole numbers."""
    return array.dtype.kind in "iub" and array.size <= _MOST_ELEMENTS


def _body(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.g
    raise InvalidModelError(
        f"the {node.op_type} {node.name!r} has no {name}; export the model again"
    )


def _read(graph: onnx.GraphProto) -> set[str]:
    """Return the names of outer values that a graph reads."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in node.input if name}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                read |= _read(attribute.g)
    return (read | {value.name for value in graph.output}) - own


def _inner_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that branches and bodies give."""
    found: set[str] = set()
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = attribute.g
                found.update(value.name for value in inner.input)
                found.update(tensor.name for tensor in inner.initializer)
                found.update(name for each in inner.node for name in each.output)
                found |= _inner_names(inner)
    return found


def _rename(graph: onnx.GraphProto, names: Names) -> None:
    """Let a graph read outer tensors by the names that they have here."""
    outer = {name: names[name] for name in _read(graph) if name in names}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = outer.get(name, name)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, outer)
