"""Inputs of a model whose values, not only their shapes, decide what code there is to generate.

The second operand of a Reshape, the axes of a reduction, the number of steps of a Loop. A model of
which such an operand is an input, or is calculated from one, is compiled for the input's value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm_edge.frontend.onnx_edges import all_nodes, subgraphs
from tvm_edge.frontend.onnx_functions import label
from tvm_edge.ops.registry import find

if TYPE_CHECKING:
    import onnx

__all__ = ["forming_inputs"]

# Arithmetic on shapes. Anything else ends the search: a shape that depends on a picture is
# not known before it, and a model for each picture is no model.
_ARITHMETIC = frozenset(
    "Abs Add And Cast CastLike Ceil Concat Div Equal Expand Floor Gather Greater GreaterOrEqual "
    "Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Pow Range ReduceMax ReduceMin "
    "ReduceProd ReduceSum Relu Reshape Round Slice Split Sqrt Squeeze Sub Sum Unsqueeze "
    "Where".split()
)

# Elements of an input that can be a shape, a list of axes or a limit.
_MOST_ELEMENTS = 64


def forming_inputs(proto: onnx.ModelProto) -> list[str]:
    """Return the inputs whose values form the code, in the model's order.

    Parameters
    ----------
    proto : onnx.ModelProto
        Functions expanded.
    """
    makers = {name: node for node in all_nodes(proto.graph) for name in node.output if name}
    actual = dict(_bodies(proto.graph))
    found: set[str] = set()
    waiting = [
        node.input[index]
        for node in all_nodes(proto.graph)
        for index in find(label(node)).forming
        if index < len(node.input) and node.input[index]
    ]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        maker = makers.get(name)
        if maker is not None and maker.op_type in _ARITHMETIC:
            # Of CastLike's second operand the type alone counts.
            count = 1 if maker.op_type == "CastLike" else len(maker.input)
            waiting += filter(None, maker.input[:count])
        elif maker is not None and maker.op_type == "If":
            position = list(maker.output).index(name)
            waiting.append(maker.input[0])
            waiting += [branch.output[position].name for branch in subgraphs(maker)]
        elif name in actual:
            waiting.append(actual[name])
    return [value.name for value in proto.graph.input if value.name in found and _is_short(value)]


def _bodies(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Pair the inputs of bodies of loops with their first values."""
    for node in graph.node:
        for inner in subgraphs(node):
            if node.op_type in ("Loop", "Scan"):
                yield from (
                    (formal.name, name)
                    for formal, name in zip(inner.input, node.input, strict=False)
                    if name
                )
            yield from _bodies(inner)


def _is_short(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return True
    lengths = [dim.dim_value for dim in tensor.shape.dim]  # 0 for one that is not known
    return len(lengths) <= 1 and math.prod(lengths) <= _MOST_ELEMENTS
