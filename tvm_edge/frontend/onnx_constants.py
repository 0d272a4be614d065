"""Fold the constants of a graph, and write out its loops and functions."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.errors import InvalidModelError, one_line
from tvm_edge.frontend.onnx_costs import TensorInfo, tensor_infos
from tvm_edge.frontend.onnx_functions import expand_functions
from tvm_edge.ops.movement.converters import split_lengths

if TYPE_CHECKING:
    import onnx
    import onnx_ir

__all__ = ["fold_constants"]

_LOG = logging.getLogger("tvm_edge.frontend")

# Elements of a folded tensor: ConstantOfShape and Expand can name any size.
_FOLD_LIMIT = 1 << 24

# Elements of a ConstantOfShape that may be a shape, an index or a step of arithmetic on them.
_SMALL = 1 << 12

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


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep a logger from warning: onnxscript's does of each operator with several results."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _should_fold(node: onnx_ir.Node) -> bool | None:
    """Fold a ConstantOfShape that can be a shape or an index; onnxscript folds none."""
    import onnx_ir

    if node.domain not in ("", "ai.onnx") or node.op_type != "ConstantOfShape":
        return None
    shape = onnx_ir.convenience.get_const_tensor(node.inputs[0]) if node.inputs[0] else None
    if shape is None:
        return None
    return math.prod(int(length) for length in shape.numpy().reshape(-1)) <= _SMALL


def _fold_splits(model: onnx_ir.Model) -> bool:
    """Evaluate each Split of a constant, which onnxscript leaves as it has several results."""
    import onnx_ir

    from tvm_edge.frontend.onnx_loops import insert_constant

    folded = False
    for node in list(model.graph):
        if node.domain not in ("", "ai.onnx") or node.op_type != "Split":
            continue
        constants = [
            onnx_ir.convenience.get_const_tensor(value)
            for value in node.inputs
            if value is not None
        ]
        if any(tensor is None or tensor.size > _FOLD_LIMIT for tensor in constants):
            continue
        data, *lengths = (tensor.numpy() for tensor in constants if tensor is not None)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        axis = attributes.get("axis", 0)
        parts = split_lengths(
            data.shape[axis],
            lengths[0].tolist() if lengths else attributes.get("split"),
            attributes.get("num_outputs", len(node.outputs)),
        )
        pieces = np.split(data, np.cumsum(parts)[:-1], axis)
        for output, piece in zip(node.outputs, pieces, strict=True):
            made = insert_constant(node, piece)
            onnx_ir.convenience.replace_all_uses_with(output, made, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        folded = True
    return folded


def _folded(model: onnx_ir.Model) -> onnx.ModelProto:
    import onnx_ir
    import onnxscript.optimizer

    from tvm_edge.frontend.onnx_loops import unroll_loops

    for _ in range(_MOST_ROUNDS):
        with _silent("onnxscript.optimizer"):
            onnxscript.optimizer.fold_constants(
                model,
                onnx_shape_inference=True,
                output_size_limit=_FOLD_LIMIT,
                should_fold=_should_fold,
            )
        onnxscript.optimizer.remove_unused_nodes(model)
        folded = _fold_splits(model)
        if not unroll_loops(model) and not folded:
            break
    return onnx_ir.serde.serialize_model(model)
