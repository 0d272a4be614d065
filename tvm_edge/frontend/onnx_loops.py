"""Loops of a number of steps that is known, written out step by step.

What is left is a graph without control flow, whose kernels are fused and whose memory is planned
across steps. A Loop whose number of steps or whose condition is calculated in the run stays
(:mod:`tvm_edge.frontend.loop_import`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["insert_constant", "unroll_loops"]

# Steps of one loop, and nodes that all loops together become: a kernel each, or nearly.
_MOST_STEPS = 4096
_MOST_NODES = 1 << 15


def unroll_loops(model: ir.Model) -> int:
    """Write out the loops of the main graph that can be; nested ones take several calls.

    Parameters
    ----------
    model : onnx_ir.Model
        Constants folded; changed in place.

    Returns
    -------
    int
        How many were written out.
    """
    unrolled = 0
    budget = _MOST_NODES
    for node in list(model.graph):
        if node.domain not in ("", "ai.onnx") or node.op_type != "Loop":
            continue
        before = model.graph.num_nodes()
        results = _loop(node, budget)
        if results is None:
            continue
        for old, new in zip(node.outputs, results, strict=False):
            if new is None:
                continue
            new.type, new.shape = new.type or old.type, new.shape or old.shape
            _replace(model.graph, node, old, new)
        model.graph.remove(node, safe=True)
        budget -= model.graph.num_nodes() - before
        unrolled += 1
    return unrolled


def _replace(graph: ir.Graph, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Take `new` for `old`; an output of the model keeps its name."""
    if old.is_graph_output():
        kept = ir.Node("", "Identity", [new])
        graph.insert_before(node, kept)
        (result,) = kept.outputs
        result.type, result.shape = old.type, old.shape
        result.name, old.name = old.name, None
        new = result
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _loop(node: ir.Node, budget: int) -> list[ir.Value | None] | None:
    """Write out a Loop before it, and return its results; ``None`` if its steps are not known."""
    body = node.attributes["body"].as_graph()
    steps = _number(node.inputs[0])
    running = node.inputs[1] if len(node.inputs) > 1 else None
    if steps is None or (running is not None and _number(running) is None):
        return None
    if running is not None and not _number(running):
        steps = 0
    steps = max(int(steps), 0)
    if not _goes_on(body) or steps > _MOST_STEPS or steps * body.num_nodes() > budget:
        return None
    state = list(node.inputs[2:])
    collected: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(state) :]]
    for step in range(steps):
        number = insert_constant(node, np.asarray(step, "int64"))
        true = insert_constant(node, np.asarray(True))
        outputs = _step(node, body, [number, true, *state])
        state = list(outputs[1 : 1 + len(state)])
        for rows, value in zip(collected, outputs[1 + len(state) :], strict=True):
            rows.append(value)
    if not steps and any(
        not output.is_graph_output() or output.uses() for output in node.outputs[len(state) :]
    ):
        return None  # rows of a shape that nothing tells
    return [*state, *(_stacked(node, rows) for rows in collected)]


def _step(node: ir.Node, body: ir.Graph, actual: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """Copy the body before `node`, with `actual` inputs; return its outputs."""
    copy = body.clone(allow_outer_scope_values=True)
    outputs = list(copy.outputs)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    for formal, value in zip(list(copy.inputs), actual, strict=True):
        outputs = [value if output is formal else output for output in outputs]
        if value is not None:
            ir.convenience.replace_all_uses_with(formal, value)
    for initializer in list(copy.initializers.values()):
        replacement = insert_constant(node, initializer.const_value.numpy())
        outputs = [replacement if output is initializer else output for output in outputs]
        ir.convenience.replace_all_uses_with(initializer, replacement)
    copy.outputs.clear()
    nodes = list(copy)
    copy.remove(nodes)
    for inner in nodes:
        inner.name = None
        for output in inner.outputs:
            output.name = None  # a name for each step: serialization gives one
        graph.insert_before(node, inner)
    return outputs


def _goes_on(body: ir.Graph) -> bool:
    """Return whether the body's condition is the one it was given, or true."""
    condition = body.outputs[0]
    while condition is not body.inputs[1]:
        producer = condition.producer()
        if producer is None or producer.op_type not in ("Identity", "Constant"):
            break
        if producer.op_type == "Constant" or producer.inputs[0] is None:
            break
        condition = producer.inputs[0]
    return condition is body.inputs[1] or bool(_number(condition))


def _number(value: ir.Value | None) -> Any:
    """Return the value of a constant of one element, else ``None``."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor.numpy().item() if tensor is not None and tensor.size == 1 else None


def insert_constant(node: ir.Node, array: np.ndarray) -> ir.Value:
    """Put a Constant before a node; return its value."""
    made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
    (result,) = made.outputs
    result.const_value = ir.tensor(array)
    result.type = ir.TensorType(result.const_value.dtype)
    result.shape = ir.Shape(array.shape)
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_before(node, made)
    return result


def _stacked(node: ir.Node, rows: Sequence[ir.Value]) -> ir.Value | None:
    """Stack rows along a new first axis."""
    if not rows:
        return None
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    version = graph.opset_imports.get("", 13)
    wide = []
    for row in rows:
        if version >= 13:
            inputs, attributes = [row, insert_constant(node, np.asarray([0], "int64"))], []
        else:
            inputs, attributes = [row], [ir.AttrInt64s("axes", [0])]
        expanded = ir.Node("", "Unsqueeze", inputs, attributes)
        graph.insert_before(node, expanded)
        wide.append(expanded.outputs[0])
    joined = ir.Node("", "Concat", wide, [ir.AttrInt64("axis", 0)])
    graph.insert_before(node, joined)
    return joined.outputs[0]
