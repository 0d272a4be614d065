"""Models of one operator, or of a chain that becomes one kernel, at shapes of networks of today."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Case", "Nodes", "model", "uniform"]

Case = Callable[[], onnx.ModelProto]
"""Makes the model of a case; its inputs are drawn from the standard normal distribution."""

Nodes = Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]]
"""Operator, inputs, outputs, attributes."""


def model(
    nodes: Nodes,
    inputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    """A model of float32 whose one output is ``y``."""
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes],
        "kernel",
        [_value(name, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def uniform(*shape: int) -> np.ndarray:
    """Weights from -0.05 to 0.05, the same in each process."""
    random = np.random.default_rng(sum(shape))
    return random.uniform(-0.05, 0.05, shape).astype(np.float32)


def _value(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
