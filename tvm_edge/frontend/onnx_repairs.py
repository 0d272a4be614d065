"""Repairs of files that ONNX Runtime runs and the ONNX specification refuses.

Exporters write them, and their users see no error anywhere else. Each repair says which node it is
about, once; a model that is broken beyond them is refused as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm_edge.frontend.onnx_edges import all_nodes, subgraphs

if TYPE_CHECKING:
    import onnx

__all__ = ["forget_declared_shapes", "repair"]

_STANDARD = ("", "ai.onnx")
# ONNX's first version of them; of the second there is none.
_SAVED_AS_STANDARD = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 1 << 30}
# Versions of the operator set in which onnx calls GroupNormalization deprecated: scale and bias
# have a number for each group there, for each channel since.
_OLD_GROUPS = range(18, 21)


def repair(proto: onnx.ModelProto) -> list[str]:
    """Bring a model to the specification; return what the user should know.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place.
    """
    notes: list[str] = []
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    version = next((v for domain, v in versions.items() if domain in _STANDARD), 0)
    _name_domains(proto, version)
    for domain in sorted(
        {node.domain for node in all_nodes(proto.graph)} - {*versions, *_STANDARD}
    ):
        proto.opset_import.add(domain=domain, version=1)
        if not domain.startswith("com.microsoft"):  # which ONNX Runtime asks no model to import
            notes.append(
                f"the model imports no version of the operators of {domain!r}; 1 is assumed"
            )
    _drop_empty_operands(proto, version)
    if version in _OLD_GROUPS:
        notes += _write_out_group_norms(proto.graph)
    outer = {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    outer.update(name for node in proto.graph.node for name in node.output)
    for node in proto.graph.node:
        for graph in subgraphs(node):
            for name in _unshadow(graph, outer, {}):
                notes.append(
                    f"the name {name!r} inside of the node {node.name!r} is another's outside of "
                    "it too; inside, the inner one is meant"
                )
    return notes


def forget_declared_shapes(graph: onnx.GraphProto) -> None:
    """Drop the shapes that a file declares of results, in its subgraphs too; keep their types."""
    graph.ClearField("value_info")
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for inner in subgraphs(node):
            forget_declared_shapes(inner)


def _name_domains(proto: onnx.ModelProto, version: int) -> None:
    """Give operators that ONNX Runtime saves as ONNX's its own domain where ONNX lacks them."""
    for node in all_nodes(proto.graph):
        since = _SAVED_AS_STANDARD.get(node.op_type)
        if node.domain in _STANDARD and since is not None and version < since:
            node.domain = "com.microsoft"


def _drop_empty_operands(proto: onnx.ModelProto, version: int) -> None:
    """Leave out the operands of a Resize that are there without elements: roi, scales, sizes.

    Before opset 13 roi and scales may be empty and not left out.
    """
    first = 1 if version >= 13 else 3
    empty = {tensor.name for tensor in proto.graph.initializer if 0 in tensor.dims}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            empty.update(
                node.output[0]
                for attribute in node.attribute
                if attribute.name == "value" and 0 in attribute.t.dims
            )
    for node in all_nodes(proto.graph):
        if node.op_type == "Resize" and node.domain in _STANDARD:
            for index in range(first, len(node.input)):
                if node.input[index] in empty:
                    node.input[index] = ""


def _write_out_group_norms(graph: onnx.GraphProto) -> list[str]:
    """Write GroupNormalization of opset 18 as InstanceNormalization of its groups."""
    import numpy as np
    import onnx.helper
    import onnx.numpy_helper

    notes = []
    nodes = list(graph.node)
    graph.ClearField("node")
    for node in nodes:
        if node.op_type != "GroupNormalization" or node.domain not in _STANDARD:
            graph.node.append(node)
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        x, scale, bias = node.input
        own = f"{node.output[0]}/groups"
        shape = np.asarray([0, attributes["num_groups"], -1], "int64")
        graph.initializer.append(onnx.numpy_helper.from_array(shape, f"{own}/shape"))
        graph.node.extend(
            [
                onnx.helper.make_node("Reshape", [x, f"{own}/shape"], [own], name=f"{own}/in"),
                onnx.helper.make_node(
                    "InstanceNormalization",
                    [own, scale, bias],
                    [f"{own}/normal"],
                    name=node.name,
                    epsilon=attributes.get("epsilon", 1e-5),
                ),
                onnx.helper.make_node("Shape", [x], [f"{own}/whole"], name=f"{own}/size"),
                onnx.helper.make_node(
                    "Reshape", [f"{own}/normal", f"{own}/whole"], node.output, name=f"{own}/out"
                ),
            ]
        )
        notes.append(
            f"the node {node.name!r} is a GroupNormalization of opset 18, whose scale and bias "
            "are of groups; export with opset 21 for one that is not deprecated"
        )
    return notes


def _unshadow(graph: onnx.GraphProto, outer: set[str], names: Mapping[str, str]) -> list[str]:
    """Rename what a subgraph calls as something outside of it; return the old names."""
    own = [value.name for value in (*graph.input, *graph.initializer)]
    own += [name for node in graph.node for name in node.output if name]
    shadowed = [name for name in dict.fromkeys(own) if name in outer]
    taken = {*outer, *own}
    renamed = {name: other for name, other in names.items() if name not in own}
    for name in shadowed:
        number = 1
        while f"{name}/{number}" in taken:
            number += 1
        renamed[name] = f"{name}/{number}"
        taken.add(renamed[name])
    for value in (*graph.input, *graph.initializer, *graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = renamed.get(name, name)
        for inner in subgraphs(node):
            shadowed += _unshadow(inner, {*taken, *renamed.values()}, renamed)
    return shadowed
