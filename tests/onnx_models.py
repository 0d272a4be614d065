"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.float_operators import in_float

OPSET = 17


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, ...]],
    outputs: Sequence[str],
    initializers: Mapping[str, np.ndarray] | None = None,
    *,
    dtypes: Mapping[str, int] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A model of `nodes`; tensors are float32 unless `dtypes` says otherwise."""
    kinds = dtypes or {}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
            for name, shape in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None)
            for name in outputs
        ],
        [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    # Output shapes are optional in ONNX's IR but not in its checker.
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(inferred)
    return inferred


def ladder(
    steps: int,
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], str]:
    """Nodes, weights and the last tensor of `steps` of Conv (``c<i>``), Tanh (``t<i>``), Add of the
    step before (``a<i>``) and Sigmoid (``s<i>``): tensors that several read, some much later.
    """
    random = np.random.default_rng(0)
    nodes, weights, value, old = [], {}, "data", "data"
    for index in range(steps):
        filters = random.standard_normal((8, 8, 3, 3)) / 8
        weights[f"w{index}"] = filters.astype("float32")
        nodes += [
            helper.make_node("Conv", [value, f"w{index}"], [f"c{index}"], pads=[1] * 4),
            helper.make_node("Tanh", [f"c{index}"], [f"t{index}"]),
            helper.make_node("Add", [f"t{index}", old], [f"a{index}"]),
            helper.make_node("Sigmoid", [f"a{index}"], [f"s{index}"]),
        ]
        value, old = f"s{index}", f"t{index}"
    return nodes, weights, value


def conv_relu(seed: int = 0, *, batch: Any = 1) -> onnx.ModelProto:
    """``relu(conv(data, weight) + bias)`` → global average pool, 3×16×16 in, 8×1×1 out."""
    generator = np.random.default_rng(seed)
    return make_model(
        [
            helper.make_node(
                "Conv", ["data", "weight", "bias"], ["conv_out"], name="conv", pads=[1, 1, 1, 1]
            ),
            helper.make_node("Relu", ["conv_out"], ["relu_out"], name="relu"),
            helper.make_node("GlobalAveragePool", ["relu_out"], ["pooled"], name="pool"),
        ],
        {"data": (batch, 3, 16, 16)},
        ["pooled"],
        {
            "weight": generator.standard_normal((8, 3, 3, 3)).astype("float32"),
            "bias": generator.standard_normal(8).astype("float32"),
        },
    )


def session(model: onnx.ModelProto | Path, *, threads: int = 1) -> onnxruntime.InferenceSession:
    """Open a model in ONNX Runtime as the reference: node by node, on any CPU alike.

    Its optimisations choose kernels by the CPU, and some round in other places than the model says.
    A file is opened as it is, for weights that lie beside it.

    Parameters
    ----------
    threads : int
        More than one spin beside the next test.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # an exception says as much
    source = model if isinstance(model, Path) else in_float(model).SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def reference(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ONNX Runtime's outputs, by name."""
    opened = session(model)
    names = [output.name for output in opened.get_outputs()]
    return dict(zip(names, opened.run(names, dict(inputs)), strict=True))


def random_input(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Seeded normal float32 values."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype("float32")


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest expected value."""
    scale = float(np.abs(expected).max()) if expected.size else 1.0
    return float(np.abs(actual - expected).max()) / (scale or 1.0) if expected.size else 0.0
