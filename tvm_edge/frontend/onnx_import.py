"""From a checked ModelProto to the normal form."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_edge.errors import (
    InputError,
    InvalidModelError,
    UnsupportedOperatorError,
    near_matches,
    one_line,
)
from tvm_edge.frontend.converters import CONVERTERS, refuse_types
from tvm_edge.frontend.limits import refuse_indices, refuse_unreal_tensors
from tvm_edge.frontend.naming import name_results
from tvm_edge.frontend.normal_form import ImportedModel, NodeCost, SourceNode
from tvm_edge.frontend.onnx_costs import TensorInfo, node_costs, tensor_infos
from tvm_edge.frontend.onnx_edges import sources
from tvm_edge.frontend.onnx_source import checked_proto, non_finite_weights
from tvm_edge.frontend.specs import output_specs
from tvm_edge.report import TensorSpec

if TYPE_CHECKING:
    import onnx

__all__ = [
    "fold_constants",
    "import_graph",
    "import_onnx",
    "input_specs",
    "prepare",
    "refuse_unsupported",
    "source_nodes",
    "unsupported_nodes",
]

_LOG = logging.getLogger("tvm_edge.frontend")

# The importer looks at op_type alone and would take "com.example.Relu" for Relu.
_DOMAINS = ("", "ai.onnx")

_NOT_IMPLEMENTED = (
    NotImplementedError,
    tvm.error.OpNotImplemented,
    tvm.error.OpAttributeInvalid,
    tvm.error.OpAttributeUnImplemented,
)

# Converters also refuse what they do not implement by ValueError and AssertionError.
_SAYS_NOT_IMPLEMENTED = re.compile(
    r"not (yet )?support|unsupported|only .*support|not implement", re.I
)

_STRING = 8  # onnx.TensorProto.STRING

# Elements of a folded tensor: ConstantOfShape and Expand can name any size.
_FOLD_LIMIT = 1 << 24


def import_onnx(
    proto: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]], name: str
) -> ImportedModel:
    """Bring an ONNX model to the normal form.

    Parameters
    ----------
    proto : onnx.ModelProto
        From :func:`tvm_edge.frontend.onnx_source.read_proto`; changed in place.
    input_shapes : mapping of str to sequence of int
        Shapes that replace dynamic dimensions (or override static ones) of inputs.
    name : str
        The model's name in reports.

    Raises
    ------
    InvalidModelError, InputError, UnsupportedOperatorError
    """
    original = prepare(proto, input_shapes)
    refuse_unsupported(original)
    notes = [
        f"the weight {weight!r} holds NaN or infinity; outputs that depend on it will too"
        for weight in non_finite_weights(original)
    ]
    proto = fold_constants(original)
    refuse_unsupported(proto)  # what functions of the model are made of
    inputs = input_specs(proto)
    nodes, folded = source_nodes(original, proto)
    del original  # its weights: the folded model has its own
    module = import_graph(proto)
    refuse_unreal_tensors(module)
    main = module["main"]
    if len(main.params) != len(inputs):  # the importer dropped or invented a parameter
        raise InvalidModelError(
            f"the importer made {len(main.params)} inputs of the model's {len(inputs)} "
            f"({', '.join(i.name for i in inputs)}); export the model again"
        )
    outputs = tuple(
        _with_the_models_symbols(spec, value)
        for spec, value in zip(
            output_specs([value.name for value in proto.graph.output], main),
            proto.graph.output,
            strict=True,
        )
    )
    return ImportedModel(name, module, inputs, outputs, nodes, folded, tuple(notes))


def prepare(proto: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Fix the shapes of the inputs, name every node, and check the model.

    Raises
    ------
    InvalidModelError, InputError, UnsupportedOperatorError
    """
    _freeze_inputs(proto, input_shapes)
    for node in proto.graph.node:
        # Names are optional; an output's name is unique and what graph viewers show.
        node.name = node.name or (node.output[0] if node.output else "")
    return checked_proto(proto)


def source_nodes(
    original: onnx.ModelProto, proto: onnx.ModelProto
) -> tuple[tuple[SourceNode, ...], tuple[SourceNode, ...]]:
    """The nodes of `proto` with their costs, and those of `original` that folding absorbed."""
    nodes = tuple(
        SourceNode(node.name, _label(node), cost, inputs)
        for node, cost, inputs in zip(
            proto.graph.node, node_costs(proto), sources(proto), strict=True
        )
    )
    kept = set(nodes)
    standard = [
        SourceNode(n.name, n.op_type, NodeCost(0, 0, 0, 0, 0))
        for n in original.graph.node
        if n.domain in _DOMAINS
    ]
    return nodes, tuple(node for node in standard if node not in kept)


def _freeze_inputs(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write `shapes` into the graph's inputs; afterwards every input dimension is a number."""
    initializers = {tensor.name for tensor in proto.graph.initializer}
    values = {v.name: v for v in proto.graph.input if v.name not in initializers}
    for name in shapes:
        if name not in values:
            raise InputError(
                f"input_shapes names {name!r}, which is no input of the model; "
                f"{near_matches(name, values)}",
                name=name,
            )
    for name, value in values.items():
        tensor_type = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "untyped"
            raise UnsupportedOperatorError(
                f"the input {name!r} is {kind}, and only tensors are supported; "
                "make it a tensor in the exporter"
            )
        dims = [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or "?")
            for d in tensor_type.shape.dim
        ]
        given: Sequence[int | str] | None = shapes.get(name)
        if given is None:
            if not tensor_type.HasField("shape"):
                raise InputError(
                    f"the input {name!r} has no shape in the model; say it with "
                    f"input_shapes={{{name!r}: (...)}}",
                    name=name,
                )
            if any(isinstance(d, str) for d in dims):
                example = tuple(1 if isinstance(d, str) else d for d in dims)
                raise InputError(
                    f"the input {name!r} has dynamic dimensions {_shape_text(dims)}; "
                    f"fix them with input_shapes={{{name!r}: {example}}} "
                    f"(command line: --input-shapes {name}:{','.join(map(str, example))})",
                    name=name,
                    expected="a static shape",
                    got=_shape_text(dims),
                )
            given = dims
        elif tensor_type.HasField("shape") and len(given) != len(dims):
            raise InputError(
                f"input_shapes gives {name!r} {len(given)} dimensions {tuple(given)}, and the "
                f"model has {len(dims)}: {_shape_text(dims)}; give one length per dimension",
                name=name,
                expected=_shape_text(dims),
                got=str(tuple(given)),
            )
        if any(not isinstance(d, int) or d <= 0 for d in given):
            raise InputError(
                f"the input {name!r} has the shape {_shape_text(given)}: every dimension must be "
                f"at least 1; choose one with input_shapes={{{name!r}: (...)}}",
                name=name,
                expected="positive dimensions",
                got=_shape_text(given),
            )
        tensor_type.shape.ClearField("dim")
        for length in given:  # numbers, by now
            tensor_type.shape.dim.add().dim_value = length
    if shapes:
        # Shapes that the exporter wrote for the old input would contradict the new one.
        proto.graph.ClearField("value_info")
        for value in proto.graph.output:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()


def unsupported_nodes(proto: onnx.ModelProto) -> dict[str, list[str]]:
    """Operators of the main graph without an implementation, each with the names of its nodes."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    known = {*_get_convert_map(), *CONVERTERS, "If"}
    local = {(f.domain, f.name) for f in proto.functions}
    missing: dict[str, list[str]] = {}
    for node in proto.graph.node:
        if (node.domain, node.op_type) in local:
            continue  # expanded before import
        if node.domain not in _DOMAINS or node.op_type not in known:
            missing.setdefault(_label(node), []).append(node.name or node.output[0])
    return missing


def _label(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in _DOMAINS else f"{node.domain}.{node.op_type}"


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
        nodes = {node.name or node.output[0]: node for node in proto.graph.node}
        lines = []
        for label, where in sorted(missing.items()):
            shown = [f"{name} of {_operands(nodes[name], tensors)}" for name in where[:3]]
            opset = opsets.get(nodes[where[0]].domain, "unknown")
            rest = ", …" if len(where) > 3 else ""
            lines.append(f"{label} (opset {opset}, ×{len(where)}: {', '.join(shown)}{rest})")
        raise UnsupportedOperatorError(
            f"no implementation of {'; '.join(lines)}; rewrite the model without "
            f"{'it' if len(missing) == 1 else 'them'}",
            sorted(missing),
        )


def _operands(node: onnx.NodeProto, tensors: Mapping[str, TensorInfo]) -> str:
    """The shapes of a node's operands: ``1×3×8×8 and 4``."""
    known = [tensors.get(name) for name in node.input if name]
    shapes = [info.shape if info is not None else None for info in known]
    texts = [
        "unknown shape" if shape is None else "×".join(map(str, shape)) or "a scalar"
        for shape in shapes
    ]
    return " and ".join(texts) or "no operands"


def fold_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Expand functions and evaluate what does not depend on the inputs.

    Folding here takes milliseconds; TVM's FoldConstant compiles a kernel per operator and takes
    11 s on ResNet50's batch normalisations.

    Raises
    ------
    InvalidModelError
        The functions cannot be expanded.
    """
    import onnx_ir
    import onnxscript.optimizer

    # onnxscript and what it computes with raise whatever a damaged field happens to cause.
    try:
        model = onnx_ir.serde.deserialize_model(proto)
        if model.functions:
            onnxscript.optimizer.inline(model)
            proto = onnx_ir.serde.serialize_model(model)
    except Exception as err:
        raise InvalidModelError(
            f"the functions of the model cannot be expanded ({type(err).__name__}: "
            f"{one_line(err)}); export it again without functions"
        ) from err
    try:
        onnxscript.optimizer.fold_constants(model, output_size_limit=_FOLD_LIMIT)
        onnxscript.optimizer.remove_unused_nodes(model)
        return onnx_ir.serde.serialize_model(model)
    except Exception as err:
        # TVM folds them later, a kernel each.
        _LOG.warning(
            "constants are not folded before import, which slows compilation (%s: %s)",
            type(err).__name__,
            one_line(err),
        )
        return proto


def input_specs(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Signatures of the inputs of a model with static shapes."""
    import onnx

    initializers = {tensor.name for tensor in proto.graph.initializer}
    specs = []
    for value in proto.graph.input:
        if value.name in initializers:
            continue
        tensor_type = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type)
        specs.append(
            TensorSpec(value.name, tuple(d.dim_value for d in tensor_type.shape.dim), dtype.name)
        )
    return tuple(specs)


def import_graph(proto: onnx.ModelProto) -> tvm.IRModule:
    """Convert a prepared graph; the variable of node ``i``'s result is called ``n<i>_``.

    Raises
    ------
    UnsupportedOperatorError, InvalidModelError
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):
        """TVM's importer with our converters in front; remembers what each node computed."""

        def __init__(self) -> None:
            super().__init__(shape_dict=None, dtype_dict=None)
            self.results: dict[relax.Var, int] = {}

        def _construct_nodes(self, graph: onnx.GraphProto) -> None:
            # Names may repeat and need not be identifiers: number the nodes instead.
            for index, node in enumerate(graph.node):
                node.name = f"n{index}"
            super()._construct_nodes(graph)

        def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
            """Done before, with converters of ours that TVM does not know (refuse_unsupported)."""

        def _convert_operator(
            self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
        ) -> relax.Expr:
            result = None
            refuse_types(op_name, inputs)
            refuse_indices(op_name, inputs, attrs)
            if op_name in CONVERTERS:
                result = CONVERTERS[op_name](self.bb, inputs, {**attrs, "opset": opset})
            if result is None:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
            if isinstance(result, (relax.Call, relax.TupleGetItem)):
                result = self.bb.emit(result)
            number = attrs["tvm_custom"]["name"].removeprefix("n")
            if not number.isdecimal():
                return result  # in a branch of an If
            index = int(number)
            for value in result.fields if isinstance(result, relax.Tuple) else [result]:
                if isinstance(value, relax.Var):
                    self.results.setdefault(value, index)
            return result

    opset = next(o.version for o in proto.opset_import if o.domain in _DOMAINS)
    printed = io.StringIO()
    try:
        # The importer prints the failing operator with all its weights, and warns about names it
        # changes; the error below says the same in one line.
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            importer = Importer()
            module = importer.from_onnx(proto.graph, opset)
    # A converter refuses a model by whatever exception comes up inside it: ValueError,
    # AssertionError, KeyError, TVM's InternalError.
    except Exception as err:
        _LOG.debug("TVM's importer printed: %s", printed.getvalue())
        operator = re.match(r"Error converting operator (\w+)", printed.getvalue())
        reason = (str(err).strip().splitlines() or [type(err).__name__])[-1][:300]
        if isinstance(err, _NOT_IMPLEMENTED) or _SAYS_NOT_IMPLEMENTED.search(reason):
            raise UnsupportedOperatorError(
                f"this form of the operator {operator.group(1) if operator else '?'} has no "
                f"implementation: {reason}; rewrite the model without it, or report it",
                [operator.group(1)] if operator else [],
            ) from err
        what = f"the operator {operator.group(1)}" if operator else "the graph"
        raise InvalidModelError(
            f"{what} does not fit its inputs: {reason}; export the model again, and report it "
            "if ONNX Runtime runs this file"
        ) from err
    return name_results(module, importer.results)


def _with_the_models_symbols(spec: TensorSpec, value: onnx.ValueInfoProto) -> TensorSpec:
    """Lengths known only after the run, called what the model calls them."""
    dims = value.type.tensor_type.shape.dim
    if len(dims) != len(spec.shape):
        return spec
    shape = tuple(
        dim.dim_param or ours if isinstance(ours, str) else ours
        for ours, dim in zip(spec.shape, dims, strict=True)
    )
    return TensorSpec(spec.name, shape, spec.dtype)


def _shape_text(dims: Sequence[int | str]) -> str:
    return "(" + ", ".join(str(d) for d in dims) + ("," if len(dims) == 1 else "") + ")"
