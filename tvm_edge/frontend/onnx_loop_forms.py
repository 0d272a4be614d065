"""Every loop of an ONNX graph in one form: a Loop whose state its steps change, and of tensors.

A Scan is a Loop over the rows of its sequences. What a Loop only carries along (Paddle's exporter
carries weights) is read from outside of it, where it may be a constant. A sequence that each step
appends to is a stack of rows that the Loop collects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tvm_edge.frontend.onnx_edges import reads, subgraphs

if TYPE_CHECKING:
    import onnx

__all__ = ["unify_loops"]

# A start of Slice's, before the first element: the end of a walk backwards.
_BEFORE_ALL = -(2**63) + 1


def unify_loops(graph: onnx.GraphProto, opset: int) -> None:
    """Write every Scan and Loop of a graph, and of the graphs in it, in that form.

    Parameters
    ----------
    graph : onnx.GraphProto
        No graph inside it has a name from outside; changed in place.
    opset : int
        Version of ONNX's operators.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            unify_loops(inner, opset)
        is_scan = node.op_type == "Scan" and node.domain == "" and opset >= 9
        made = _loop_over_rows(node) if is_scan else None
        nodes += made or [node]
    for loop in [node for node in nodes if node.op_type == "Loop" and node.domain == ""]:
        _forget_lengths(loop)
        nodes = _with_rows(nodes, loop)
        at = nodes.index(loop)
        nodes[at : at + 1] = [*_with_condition(loop), loop, *_read_from_outside(loop)]
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


class _Writer:
    """Makes nodes, with names that start with another node's."""

    def __init__(self, name: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._name = name

    def put(
        self, op_type: str, inputs: Iterable[str], output: str = "", **attributes: object
    ) -> str:
        import onnx.helper

        output = output or f"{self._name}/{op_type.lower()}/{len(self.nodes)}"
        made = onnx.helper.make_node(op_type, list(inputs), [output], name=output, **attributes)
        self.nodes.append(made)
        return output

    def constant(self, values: Any, dtype: str = "int64") -> str:
        import numpy as np
        import onnx.numpy_helper

        tensor = onnx.numpy_helper.from_array(np.asarray(values, dtype))
        return self.put("Constant", [], value=tensor)

    def backwards(self, value: str, output: str = "") -> str:
        """Turn the first axis around."""
        bounds = [self.constant([end]) for end in (-1, _BEFORE_ALL, 0, -1)]
        return self.put("Slice", [value, *bounds], output)


def _loop_over_rows(node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Return the nodes that a Scan is; ``None`` where the rank of a result is not known."""
    import onnx
    import onnx.helper

    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    body = onnx.GraphProto()
    body.CopyFrom(given["body"])
    count = given["num_scan_inputs"]
    held = len(node.input) - count
    rows = body.output[held:]
    axes = given.get("scan_input_axes") or [0] * count
    turned = given.get("scan_input_directions") or [0] * count
    out_axes = given.get("scan_output_axes") or [0] * len(rows)
    out_turned = given.get("scan_output_directions") or [0] * len(rows)
    ranks = [_rank(row) for row in rows]
    if any(axis != 0 and rank is None for axis, rank in zip(out_axes, ranks, strict=True)):
        return None
    prefix = node.name or node.output[0]
    outside, inside = _Writer(prefix), _Writer(f"{prefix}/body")
    axis = outside.constant(axes[0])
    steps = outside.put("Gather", [outside.put("Shape", [node.input[held]]), axis], axis=0)
    last = outside.put("Sub", [steps, outside.constant(1)])
    step, going = f"{prefix}/step", f"{prefix}/going"
    for formal, sequence, at, back in zip(
        body.input[held:], node.input[held:], axes, turned, strict=True
    ):
        index = inside.put("Sub", [last, step]) if back else step
        inside.put("Gather", [sequence, index], formal.name, axis=at)
    goes_on = inside.put("Identity", [going])
    own = list(body.node)
    del body.node[:]
    body.node.extend([*inside.nodes, *own])
    states = list(body.input[:held])
    results = list(body.output)
    info = onnx.helper.make_tensor_value_info
    del body.input[:], body.output[:]
    body.input.extend(
        [info(step, onnx.TensorProto.INT64, []), info(going, onnx.TensorProto.BOOL, [])]
    )
    body.input.extend(states)
    body.output.extend([info(goes_on, onnx.TensorProto.BOOL, []), *results])
    after = _Writer(f"{prefix}/result")
    collected = []
    for name, at, back, rank in zip(node.output[held:], out_axes, out_turned, ranks, strict=True):
        if not name or (at == 0 and not back):
            collected.append(name)
            continue
        stack = f"{prefix}/rows/{len(collected)}"
        collected.append(stack)
        if back:
            stack = after.backwards(stack, "" if at else name)
        if at:
            assert rank is not None, "looked at above"
            after.put("Transpose", [stack], name, perm=_moved_first(at, rank + 1))
    loop = onnx.helper.make_node(
        "Loop",
        [steps, outside.constant(True, "bool"), *node.input[:held]],
        [*node.output[:held], *collected],
        name=node.name,
        body=body,
    )
    return [*outside.nodes, loop, *after.nodes]


def _rank(value: onnx.ValueInfoProto) -> int | None:
    tensor = value.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _moved_first(axis: int, rank: int) -> list[int]:
    """Return the permutation that moves the first axis to `axis`."""
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return order


def _forget_lengths(loop: onnx.NodeProto) -> None:
    """Take lengths of states out of a Loop's body: exporters write those of the first step there.

    A list that each step appends to would be without elements in all of them, and onnxscript leaves
    out of a Concat what has none.
    """
    (body,) = subgraphs(loop)
    states = len(loop.input) - 2
    for value in (*body.input[2:], *body.output[1 : 1 + states]):
        if value.type.HasField("tensor_type"):
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    del body.value_info[:]


def _with_condition(loop: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Give a Loop that has none a condition that is true.

    One without any state would be left with its first operand alone, and onnx's inference of shapes
    subtracts two from their number.
    """
    if len(loop.input) > 1 and loop.input[1]:
        return []
    writer = _Writer(f"{loop.name or loop.output[0]}/outside")
    true = writer.constant(True, "bool")
    del loop.input[1:2]
    loop.input.insert(1, true)
    return writer.nodes


def _read_from_outside(loop: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Leave out of a Loop's state what none of its steps changes; return what it results in."""
    import onnx.helper

    (body,) = subgraphs(loop)
    same = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    kept: list[int] = []
    outer: dict[str, str] = {}
    carried: list[onnx.NodeProto] = []
    for i, initial in enumerate(loop.input[2:]):
        formal, result = body.input[2 + i].name, body.output[1 + i].name
        while result in same and result != formal:
            result = same[result]
        if result != formal or not initial:
            kept.append(i)
            continue
        outer[formal] = initial
        if i < len(loop.output) and loop.output[i]:
            carried.append(
                onnx.helper.make_node("Identity", [initial], [loop.output[i]], name=loop.output[i])
            )
    states = len(loop.input) - 2
    _keep(loop.output, [*kept, *range(states, len(loop.output))])
    _keep(body.output, [0, *(1 + i for i in kept), *range(1 + states, len(body.output))])
    _keep(body.input, [0, 1, *(2 + i for i in kept)])
    _keep(loop.input, [0, 1, *(2 + i for i in kept)])
    _rename(body, outer)
    return carried


def _with_rows(nodes: list[onnx.NodeProto], loop: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Collect rows in a Loop for the sequences that each of its steps appends to."""
    import onnx

    (body,) = subgraphs(loop)
    makers = {name: node.op_type for node in nodes for name in node.output}
    for i in reversed(range(len(loop.input) - 2)):
        formal, result = body.input[2 + i], body.output[1 + i].name
        readers = [node for node in body.node if formal.name in reads(node)]
        append = readers[0] if len(readers) == 1 else None
        if (
            makers.get(loop.input[2 + i]) != "SequenceEmpty"
            or append is None
            or append.op_type != "SequenceInsert"
            or len(append.input) > 2
            or append.output[0] != result
            or any(result in reads(node) for node in body.node)
        ):
            continue
        stack, row = loop.output[i], append.input[1]
        outside = {id(node): _reading_stack(node) for node in nodes if stack in reads(node)}
        if None in outside.values():
            continue
        nodes = [each for node in nodes for each in outside.get(id(node)) or [node]]
        body.node.remove(append)
        del body.input[2 + i], loop.input[2 + i], loop.output[i], body.output[1 + i]
        body.output.append(onnx.ValueInfoProto(name=row, type=formal.type.sequence_type.elem_type))
        loop.output.append(stack)
    return nodes


def _reading_stack(reader: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """Return nodes that read a stack of rows where `reader` reads a sequence of them."""
    stack, *rest = reader.input
    (result,) = reader.output
    writer = _Writer(reader.name or result)
    settings = {a.name: a.i for a in reader.attribute}
    if reader.op_type == "SequenceAt":
        writer.put("Gather", [stack, *rest], result, axis=0)
    elif reader.op_type == "SequenceLength":
        shape = writer.put("Shape", [stack])
        writer.put("Gather", [shape, writer.constant(0)], result, axis=0)
    elif reader.op_type != "ConcatFromSequence" or settings["axis"] != 0:
        return None
    elif settings.get("new_axis"):
        writer.put("Identity", [stack], result)
    else:
        shape = writer.put("Shape", [stack])
        bounds = [writer.constant([value]) for value in (2, 2**62, 0)]
        merged = [writer.constant([-1]), writer.put("Slice", [shape, *bounds])]
        writer.put("Reshape", [stack, writer.put("Concat", merged, axis=0)], result)
    return writer.nodes


def _keep(field: Any, kept: Iterable[int]) -> None:
    values = [field[i] for i in kept if i < len(field)]
    del field[:]
    field.extend(values)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Read other tensors in a graph, and in the graphs inside it."""
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
        for inner in subgraphs(node):
            _rename(inner, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)
