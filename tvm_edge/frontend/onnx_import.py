"""Import a checked ModelProto to the normal form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_edge.errors import (
    InputError,
    InvalidModelError,
    UnsupportedOperatorError,
    one_line,
)
from tvm_edge.frontend.given_inputs import GivenInputs
from tvm_edge.frontend.limits import refuse_unreal_tensors
from tvm_edge.frontend.normal_form import ImportedModel, NodeCost, SourceNode
from tvm_edge.frontend.onnx_constants import fold_constants
from tvm_edge.frontend.onnx_costs import TensorInfo, node_costs, tensor_infos
from tvm_edge.frontend.onnx_edges import all_nodes, sources
from tvm_edge.frontend.onnx_functions import (
    DOMAINS,
    expand_functions,
    is_known,
    label,
    standard_version,
)
from tvm_edge.frontend.onnx_graph import import_graph
from tvm_edge.frontend.onnx_inputs import fix_shapes, fix_values
from tvm_edge.frontend.onnx_loop_forms import unify_loops
from tvm_edge.frontend.onnx_pictures import prepare_pictures
from tvm_edge.frontend.onnx_source import checked_proto, shapes_do_not_fit, weight_notes
from tvm_edge.frontend.specs import output_specs
from tvm_edge.ops.converter import type_name
from tvm_edge.ops.small_types import SMALL_TYPES, STORED_AS
from tvm_edge.report import Dim, TensorSpec

if TYPE_CHECKING:
    import onnx

__all__ = [
    "import_onnx",
    "input_specs",
    "prepare",
    "refuse_unsupported",
    "source_nodes",
    "unsupported_nodes",
]


_STRING = 8  # onnx.TensorProto.STRING


def import_onnx(proto: onnx.ModelProto, given: GivenInputs, name: str) -> ImportedModel:
    """Bring an ONNX model to the normal form.

    Parameters
    ----------
    proto : onnx.ModelProto
        From :func:`tvm_edge.frontend.onnx_source.read_proto`; changed in place.
    given : GivenInputs
        Shapes that replace dynamic dimensions (or override static ones) of inputs, and values of
        inputs that are constants from then on.
    name : str
        The model's name in reports.

    Raises
    ------
    InvalidModelError, InputError, UnsupportedOperatorError
    """
    original, notes, dims = prepare(proto, given)
    refuse_unsupported(original)
    notes += weight_notes(original)
    proto = fold_constants(original)
    refuse_unsupported(proto)  # what functions of the model are made of
    inputs = input_specs(proto, dims)
    nodes, folded = source_nodes(original, proto, dims)
    del original  # its weights: the folded model has its own
    module, more = import_graph(proto, inputs)
    notes += more
    refuse_unreal_tensors(module)
    main = module["main"]
    if len(main.params) != len(inputs):  # the importer dropped or invented a parameter
        raise InvalidModelError(
            f"the importer made {len(main.params)} inputs of the model's {len(inputs)} "
            f"({', '.join(i.name for i in inputs)}); export the model again"
        )
    outputs = tuple(
        _with_the_models_type(_with_the_models_symbols(spec, value), value)
        for spec, value in zip(
            output_specs([value.name for value in proto.graph.output], main),
            proto.graph.output,
            strict=True,
        )
    )
    return ImportedModel(name, module, inputs, outputs, nodes, folded, notes)


def prepare(
    proto: onnx.ModelProto, given: GivenInputs
) -> tuple[onnx.ModelProto, tuple[str, ...], dict[str, Dim]]:
    """Write the shapes of the inputs, check the model, and name every node.

    Operators that have no converter and are defined by others are written out as those.

    Returns
    -------
    onnx.ModelProto
    tuple of str
        What of the file was mended, for the user.
    dict of str to Dim
        The open dimensions of inputs, by name.

    Raises
    ------
    InvalidModelError, InputError, UnsupportedOperatorError
    """
    fix_values(proto, given.values)
    dims = fix_shapes(proto, given.shapes)
    prepare_pictures(proto, given.pictures)
    try:
        proto, notes = checked_proto(_named(proto))
        unify_loops(proto.graph, standard_version(proto))
    except InvalidModelError as err:
        if not given.shapes or not shapes_do_not_fit(err):
            raise
        raise InputError(
            f"the model does not take inputs of the shapes {dict(given.shapes)}: "
            f"{one_line(err.__cause__ or err)}; choose other input_shapes",
            name=next(iter(given.shapes)),
        ) from err
    return _named(expand_functions(proto)), notes, dims


def _named(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Name every node: names are optional, and graph viewers show that of an output."""
    for node in proto.graph.node:
        node.name = node.name or (node.output[0] if node.output else "")
    return proto


def source_nodes(
    original: onnx.ModelProto, proto: onnx.ModelProto, dims: Mapping[str, Dim]
) -> tuple[tuple[SourceNode, ...], tuple[SourceNode, ...]]:
    """Return the nodes of `proto` with their costs, and those of `original` that were folded.

    Costs are those for the typical lengths of open dimensions.
    """
    typical = {name: dim.typical or 0 for name, dim in dims.items()}
    nodes = tuple(
        SourceNode(node.name, label(node), cost, inputs)
        for node, cost, inputs in zip(
            proto.graph.node, node_costs(proto, typical), sources(proto), strict=True
        )
    )
    kept = set(nodes)
    standard = [
        SourceNode(n.name, n.op_type, NodeCost(0, 0, 0, 0, 0))
        for n in original.graph.node
        if n.domain in DOMAINS
    ]
    return nodes, tuple(node for node in standard if node not in kept)


def unsupported_nodes(proto: onnx.ModelProto) -> dict[str, list[str]]:
    """Return operators without an implementation, each with the names of its nodes."""
    local = {(f.domain, f.name) for f in proto.functions}
    missing: dict[str, list[str]] = {}
    for node in all_nodes(proto.graph):
        # Functions of the model are expanded before import.
        if (node.domain, node.op_type) not in local and not is_known(node):
            missing.setdefault(label(node), []).append(node.name or node.output[0])
    return missing


def refuse_unsupported(proto: onnx.ModelProto) -> None:
    """Refuse a checked model with operators that have no implementation.

    Raises
    ------
    UnsupportedOperatorError
        It names each with its nodes.
    """
    for value in (*proto.graph.input, *proto.graph.output):
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and value.type.tensor_type.elem_type == _STRING:
            kind = "strings"
        if kind not in (None, "tensor_type"):
            raise UnsupportedOperatorError(
                f"{value.name!r} is {kind}, and only tensors of numbers are supported; "
                "make it one in the exporter"
            )
    missing = unsupported_nodes(proto)
    if missing:
        opsets = {opset.domain: opset.version for opset in proto.opset_import}
        tensors = tensor_infos(proto)
        nodes = {node.name or node.output[0]: node for node in all_nodes(proto.graph)}
        lines = []
        for name, where in sorted(missing.items()):
            shown = [f"{node} of {_operands(nodes[node], tensors)}" for node in where[:3]]
            opset = opsets.get(nodes[where[0]].domain, "unknown")
            rest = ", …" if len(where) > 3 else ""
            lines.append(f"{name} (opset {opset}, ×{len(where)}: {', '.join(shown)}{rest})")
        foreign = next(
            (name for name, n in missing.items() if nodes[n[0]].domain not in DOMAINS), ""
        )
        advice = (
            f", or give it a converter: tvm_edge.ops.registry.register({foreign!r}, convert=…)"
            if foreign
            else ""
        )
        raise UnsupportedOperatorError(
            f"no implementation of {'; '.join(lines)}; rewrite the model without "
            f"{'it' if len(missing) == 1 else 'them'}{advice}",
            sorted(missing),
        )


def _operands(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo]) -> str:
    """Write the shapes of a node's operands: ``1×3×8×8 and 4``."""
    known = [tensors.get(name) for name in node.input if name]
    shapes = [info.shape if info is not None else None for info in known]
    texts = [
        "unknown shape" if shape is None else "×".join(map(str, shape)) or "a scalar"
        for shape in shapes
    ]
    return " and ".join(texts) or "no operands"


def input_specs(proto: onnx.ModelProto, dims: Mapping[str, Dim]) -> tuple[TensorSpec, ...]:
    """Return the signatures of the inputs of a model."""
    initializers = {tensor.name for tensor in proto.graph.initializer}
    specs = []
    for value in proto.graph.input:
        if value.name in initializers:
            continue
        lengths = value.type.tensor_type.shape.dim
        shape = tuple(dim.dim_param or dim.dim_value for dim in lengths)
        own = tuple(dims[name] for name in dict.fromkeys(shape) if isinstance(name, str))
        specs.append(_with_the_models_type(TensorSpec(value.name, shape, "", dims=own), value))
    return tuple(specs)


def _with_the_models_type(spec: TensorSpec, value: onnx.ValueInfoProto) -> TensorSpec:
    """Add the type that the model says, and the one that the code has it in."""
    name = type_name(value.type.tensor_type.elem_type)
    if name in SMALL_TYPES:
        return replace(spec, dtype=name, stored_as=STORED_AS)
    return replace(spec, dtype=spec.dtype or name)


def _with_the_models_symbols(spec: TensorSpec, value: onnx.ValueInfoProto) -> TensorSpec:
    """Call lengths known only after the run what the model calls them."""
    dims = value.type.tensor_type.shape.dim
    if len(dims) != len(spec.shape):
        return spec
    shape = tuple(
        dim.dim_param or ours if isinstance(ours, str) else ours
        for ours, dim in zip(spec.shape, dims, strict=True)
    )
    return replace(spec, shape=shape)
