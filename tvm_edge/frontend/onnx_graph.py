"""Convert a prepared ONNX graph to Relax; translate the importer's errors."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence

import onnx
import tvm
from tvm import relax

from tvm_edge.errors import InvalidModelError, UnsupportedOperatorError
from tvm_edge.frontend.onnx_functions import standard_version
from tvm_edge.frontend.onnx_importer import Importer, is_not_implemented, reason_of
from tvm_edge.frontend.result_names import name_results, with_dataflow
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.report import TensorSpec

__all__ = ["import_graph"]

_LOG = logging.getLogger("tvm_edge.frontend")


def import_graph(
    proto: onnx.ModelProto, inputs: Sequence[TensorSpec]
) -> tuple[tvm.IRModule, tuple[str, ...]]:
    """Convert a prepared graph; the variable of a node's result is located at the node.

    Parameters
    ----------
    proto : onnx.ModelProto
    inputs : sequence of TensorSpec
        Its inputs; open dimensions of one name are one length.

    Returns
    -------
    tvm.IRModule
    tuple of str
        What the user should know: branches that a run cannot take.

    Raises
    ------
    UnsupportedOperatorError, InvalidModelError
    """
    printed = io.StringIO()
    importer = None
    try:
        # The importer prints the failing operator with all its weights, and warns about names it
        # changes; the error below says the same in one line.
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            importer = Importer(proto, inputs)
            module = importer.from_onnx(proto.graph, standard_version(proto))
    # A converter refuses a model by whatever exception comes up inside it: ValueError,
    # AssertionError, KeyError, TVM's InternalError.
    except Exception as err:
        _LOG.debug("TVM's importer printed: %s", printed.getvalue())
        reason = reason_of(err)
        operator, node = importer.converting if importer is not None else ("", "")
        if importer is not None and operator:
            importer.bb._end_block()  # which it warns of when it is dropped
        if is_not_implemented(err):
            raise UnsupportedOperatorError(
                f"this form of the operator {operator} has no implementation (node {node!r}): "
                f"{reason}; rewrite the model without it, or report it",
                [operator],
            ) from err
        what = f"the operator {operator} of the node {node!r}" if operator else "the graph"
        raise InvalidModelError(
            f"{what} does not fit its inputs: {reason}; export the model again, and report it "
            "if ONNX Runtime runs this file"
        ) from err
    named = name_results(module, importer.results)
    if any(isinstance(binding.value, relax.If) for binding in bindings_of(named["main"])):
        # TVM puts no dataflow around an If; without one nothing is fused.
        named = with_dataflow(named)
    return named, tuple(importer.notes)
