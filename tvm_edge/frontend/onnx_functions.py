"""Operators that ONNX defines by others, written out as those; names of all operators."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tvm_edge.errors import InvalidModelError, one_line
from tvm_edge.frontend.onnx_edges import all_nodes
from tvm_edge.frontend.onnx_source import without_weights
from tvm_edge.ops.registry import find

if TYPE_CHECKING:
    import onnx

__all__ = ["DOMAINS", "expand_functions", "is_known", "label", "standard_version"]

DOMAINS = ("", "ai.onnx")
"""Names of ONNX's own set of operators; TVM's importer looks at the operator's name alone."""

# TVM has these under the name and with another meaning, or calculates them less exactly.
_WRITTEN_OUT = frozenset({"Attention", "DynamicQuantizeLinear"})

# Written out they are random numbers or sequences, which are not supported either: the error should
# name what the model has.
_KEPT = frozenset({"Bernoulli", "Multinomial", "SequenceMap"})


def expand_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace operators without a converter by their definition in ONNX's specification.

    Parameters
    ----------
    proto : onnx.ModelProto
        Checked; changed in place. Its weights are not copied.

    Raises
    ------
    InvalidModelError
    """
    import onnx.helper
    import onnx.inliner

    wanted = {n.op_type for n in all_nodes(proto.graph) if _is_written_out(n.domain, n.op_type)}
    if not wanted:
        return proto
    # The definition of one names others.
    functions = [names for names in sorted(_defined()) if _is_written_out(*names)]
    light = without_weights(proto)
    # The inliner looks for types of constants, and of an operand that is left out, here alone.
    light.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in light.graph.initializer
    )
    light.graph.value_info.add(name="")
    try:
        light = onnx.inliner.inline_selected_functions(
            light, functions, inline_schema_functions=True
        )
    # C++ that fails in ways of its own: ValueError, RuntimeError, InferenceError.
    except Exception as err:
        raise InvalidModelError(
            f"{', '.join(sorted(wanted))} cannot be written out as ONNX defines it "
            f"({type(err).__name__}: {one_line(err)}); export the model again"
        ) from err
    proto.graph.ClearField("node")
    proto.graph.node.extend(light.graph.node)
    if not any(opset.domain in DOMAINS for opset in proto.opset_import):
        proto.opset_import.add(domain="", version=onnx.defs.onnx_opset_version())
    return proto


def standard_version(proto: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators in a model; the newest where it names none."""
    import onnx.defs

    versions = (o.version for o in proto.opset_import if o.domain in DOMAINS)
    return next(versions, onnx.defs.onnx_opset_version())


def label(node: onnx.NodeProto) -> str:
    """Return an operator's name in reports and in the registry, with a domain other than ONNX's."""
    return node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"


def is_known(node: onnx.NodeProto) -> bool:
    """Return whether the importer converts an operator, or ONNX writes it out for us."""
    return _is_converted(node.domain, node.op_type) or _is_written_out(node.domain, node.op_type)


def _is_converted(domain: str, name: str) -> bool:
    if domain not in DOMAINS:
        return find(f"{domain}.{name}").convert is not None
    return find(name).convert is not None or (name in _of_tvm() and name not in _WRITTEN_OUT)


def _is_written_out(domain: str, name: str) -> bool:
    return (domain, name) in _defined() and not _is_converted(domain, name)


@cache
def _of_tvm() -> frozenset[str]:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return frozenset({*_get_convert_map(), "If", "Loop"})


@cache
def _defined() -> frozenset[tuple[str, str]]:
    """Return domain and name of ONNX's operators with a definition by others."""
    import onnx

    return frozenset(
        (schema.domain, schema.name)
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.has_function or schema.has_context_dependent_function)
        and schema.name not in _KEPT
    )
