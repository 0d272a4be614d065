"""Survey of an ONNX model that cannot be imported.

The importer stops at the first operator that it does not implement. Here every node is tried by
itself, so that one look names all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm_edge.errors import InvalidModelError, UnsupportedOperatorError
from tvm_edge.frontend.given_inputs import GivenInputs
from tvm_edge.frontend.normal_form import Survey
from tvm_edge.frontend.onnx_constants import fold_constants
from tvm_edge.frontend.onnx_costs import TensorInfo, fix_lengths, tensor_infos
from tvm_edge.frontend.onnx_edges import reads
from tvm_edge.frontend.onnx_graph import import_graph
from tvm_edge.frontend.onnx_import import (
    input_specs,
    prepare,
    source_nodes,
    unsupported_nodes,
)
from tvm_edge.frontend.onnx_source import weight_notes
from tvm_edge.report import UnsupportedInfo

if TYPE_CHECKING:
    import onnx

__all__ = ["survey_onnx"]

_MISSING = "no implementation; rewrite the model without it"


def survey_onnx(
    proto: onnx.ModelProto,
    given: GivenInputs,
    name: str,
    error: UnsupportedOperatorError,
) -> Survey:
    """List the operators of a model with their costs, and those that have no implementation.

    Parameters
    ----------
    proto : onnx.ModelProto
        From :func:`tvm_edge.frontend.onnx_source.read_proto`; changed in place.
    given : GivenInputs
    name : str
    error : UnsupportedOperatorError
        Why :func:`~tvm_edge.frontend.onnx_import.import_onnx` refused the model.

    Raises
    ------
    UnsupportedOperatorError
        `error`: all operators can be imported, or it cannot be told which cannot.
    InvalidModelError, InputError
    """
    original, notes, dims = prepare(proto, given)
    fix_lengths(original.graph, {name: dim.typical or 0 for name, dim in dims.items()})
    notes += weight_notes(original)
    folded_proto = fold_constants(original)
    nodes, folded = source_nodes(original, folded_proto, {})
    # Functions of the model are nodes only after folding, and constants only before.
    missing = {**unsupported_nodes(original), **unsupported_nodes(folded_proto)}
    unsupported = [UnsupportedInfo(t, tuple(n), _MISSING) for t, n in sorted(missing.items())]
    refused = _refused_forms(folded_proto, skip=set(missing))
    for (op_type, reason), names in refused.items():
        unsupported.append(UnsupportedInfo(op_type, tuple(names), reason))
    if not missing and _verdict(folded_proto) is None:
        raise error  # it imports: the failure is elsewhere
    if not unsupported:
        if not error.operators:
            raise error
        # Only in its place in the graph is it refused, and the importer does not say which node.
        unsupported = [
            UnsupportedInfo(t, tuple(n.name for n in nodes if n.op_type == t), str(error))
            for t in error.operators
        ]
    return Survey(name, nodes, folded, tuple(unsupported), notes)


def _refused_forms(proto: onnx.ModelProto, skip: set[str]) -> dict[tuple[str, str], list[str]]:
    """Return node names by operator and reason, of operators that refuse these nodes."""
    tensors = tensor_infos(proto)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    verdicts: dict[bytes, tuple[str, str] | None] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    for node in proto.graph.node:
        if node.op_type in skip or node.domain not in ("", "ai.onnx"):
            continue
        alone = _alone(proto, node, tensors, constants)
        if alone is None:
            continue
        key = alone.SerializeToString(deterministic=True)
        if key not in verdicts:
            verdicts[key] = _verdict(alone)
        verdict = verdicts[key]
        if verdict is not None:
            refused.setdefault(verdict, []).append(node.name)
    return refused


def _alone(
    proto: onnx.ModelProto,
    node: onnx.NodeProto,
    tensors: Mapping[str, TensorInfo],
    constants: Mapping[str, onnx.TensorProto],
) -> onnx.ModelProto | None:
    """Make a model of one node; ``None`` where a type or shape is only known in the run."""
    import onnx

    alone = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    graph = alone.graph
    graph.name = "node"
    graph.node.append(node)
    graph.node[0].name = ""
    for name in dict.fromkeys(reads(node)):
        info = tensors.get(name)
        if name in constants:
            graph.initializer.append(constants[name])
        elif info is None or info.shape is None or not info.dtype:
            return None
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(name, info.dtype, info.shape))
    for name in filter(None, node.output):
        info = tensors.get(name)
        if info is None or not info.dtype:
            return None
        graph.output.append(onnx.helper.make_tensor_value_info(name, info.dtype, info.shape))
    return alone


def _verdict(proto: onnx.ModelProto) -> tuple[str, str] | None:
    """Return operator and reason if the importer refuses a model; rename its nodes."""
    try:
        import_graph(proto, input_specs(proto, {}))
    except UnsupportedOperatorError as err:
        return (*err.operators[:1], proto.graph.node[0].op_type)[0], str(err)
    except InvalidModelError:
        return None  # something else is wrong: not for this list
    return None
