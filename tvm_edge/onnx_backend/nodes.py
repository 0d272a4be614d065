"""A model of a single operator, for ``run_node``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tvm_edge.errors import InputError, InvalidModelError

__all__ = ["model_of"]


def model_of(
    node: onnx.NodeProto,
    inputs: Any,
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    opset: int,
) -> onnx.ModelProto:
    """A model of one operator, typed by `inputs`."""
    names = list(dict.fromkeys(name for name in node.input if name))
    outputs = [name for name in node.output if name]
    arrays = inputs
    if not isinstance(inputs, Mapping):
        arrays = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if len(arrays) != len(names):
            raise InputError(
                f"run_node() got {len(arrays)} arrays, and the inputs of {node.op_type} are "
                f"{', '.join(map(repr, names)) or 'none'}; pass one array for each",
                name="inputs",
                expected=str(len(names)),
                got=str(len(arrays)),
            )
        arrays = dict(zip(names, arrays, strict=True))
    try:
        values = [_value(name, np.asarray(arrays[name])) for name in names if name in arrays]
        graph = onnx.helper.make_graph(
            [node],
            node.name or node.op_type,
            values,
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(info[0])), info[1]
                )
                for name, info in zip(outputs, outputs_info, strict=True)
            ]
            if outputs_info is not None
            else [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        if node.domain:
            model.opset_import.add(domain=node.domain, version=1)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    # onnx: a type that it does not have, an operator that it does not know.
    except (ValueError, TypeError, KeyError, onnx.shape_inference.InferenceError) as err:
        raise InvalidModelError(
            f"{node.op_type} does not fit its inputs: {' '.join(str(err).split())[:300]}; "
            "check the node, opset_version= and outputs_info="
        ) from err


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, array.shape)
