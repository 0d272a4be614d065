"""Fold the constants of a graph, and write out its loops and functions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tvm_edge.errors import InvalidModelError, one_line
from tvm_edge.frontend.onnx_costs import TensorInfo, tensor_infos
from tvm_edge.frontend.onnx_functions import expand_functions

if TYPE_CHECKING:
    import onnx
    import onnx_ir

__all__ = ["fold_constants"]

_LOG = logging.getLogger("tvm_edge.frontend")

# Elements of a folded tensor: ConstantOfShape and Expand can name any size.
_FOLD_LIMIT = 1 << 24

# Loops inside loops.
_MOST_ROUNDS = 4


def fold_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Expand functions, evaluate nodes that do not depend on the inputs, and unroll loops.

    Shapes are inferred on the way, so that what is calculated from a shape is a constant too.
    Folding here needs milliseconds. TVM's FoldConstant compiles a kernel per operator and needs
    11 s for ResNet50's batch normalisations.

    Raises
    ------
    InvalidModelError
        The functions cannot be expanded.
    """
    import onnx_ir
    import onnxscript.optimizer

    _keep_overflows(proto)
    # onnxscript and what it computes with raise whatever a damaged field happens to cause.
    try:
        model = onnx_ir.serde.deserialize_model(proto)
        if model.functions:
            onnxscript.optimizer.inline(model)
            proto = expand_functions(onnx_ir.serde.serialize_model(model))
            model = onnx_ir.serde.deserialize_model(proto)
    except InvalidModelError:
        raise
    except Exception as err:
        raise InvalidModelError(
            f"the functions of the model cannot be expanded ({type(err).__name__}: "
            f"{one_line(err)}); export it again without functions"
        ) from err
    try:
        return _folded(model)
    except Exception as err:
        # TVM folds them later, a kernel each.
        _LOG.warning(
            "constants are not folded before import, which slows compilation (%s: %s)",
            type(err).__name__,
            one_line(err),
        )
        return proto


def _keep_overflows(proto: onnx.ModelProto) -> None:
    """Put a Cast for every CastLike that does not saturate, which onnxscript would forget."""
    import onnx.helper

    tensors: dict[str, TensorInfo] = {}
    for node in proto.graph.node:
        if node.op_type != "CastLike" or all(a.name != "saturate" or a.i for a in node.attribute):
            continue
        tensors = tensors or tensor_infos(proto)
        like = tensors.get(node.input[1])
        if like is not None and like.dtype:
            node.op_type = "Cast"
            node.attribute.append(onnx.helper.make_attribute("to", like.dtype))
            del node.input[1]


def _folded(model: onnx_ir.Model) -> onnx.ModelProto:
    import onnx_ir
    import onnxscript.optimizer

    from tvm_edge.frontend.onnx_loops import unroll_loops

    for _ in range(_MOST_ROUNDS):
        onnxscript.optimizer.fold_constants(
            model, onnx_shape_inference=True, output_size_limit=_FOLD_LIMIT
        )
        onnxscript.optimizer.remove_unused_nodes(model)
        if not unroll_loops(model):
            break
    return onnx_ir.serde.serialize_model(model)
