"""Small ONNX models for tests."""

from __future__ import annotations

import tempfile
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


def optimized(model: onnx.ModelProto, level: str) -> onnx.ModelProto:
    """The model as a session of ONNX Runtime saves it at one of its levels of optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        source = model.SerializeToString()
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def random_input(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Seeded normal float32 values."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype("float32")


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest expected value."""
    scale = float(np.abs(expected).max()) if expected.size else 1.0
    return float(np.abs(actual - expected).max()) / (scale or 1.0) if expected.size else 0.0


def unsupported_model() -> onnx.ModelProto:
    """Two operators of a foreign domain and a form of NMS that is not implemented, among others."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("Mystery", ["a"], ["b"], name="first", domain="com.example"),
        helper.make_node("Relu", ["a"], ["c"], name="relu"),
        helper.make_node("Mystery", ["c"], ["d"], name="second", domain="com.example"),
        helper.make_node("Exp", ["w"], ["e"], name="constant"),
        helper.make_node("Conv", ["x", "e"], ["f"], name="other"),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["kept"], name="nms"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "test",
        [
            value("x", TensorProto.FLOAT, [1, 3, 8, 8]),
            value("boxes", TensorProto.FLOAT, [1, 4, 4]),
            value("scores", TensorProto.FLOAT, [1, 1, 4]),
            value("most", TensorProto.INT64, [1]),
        ],
        [
            value("b", TensorProto.FLOAT, [1, 4, 6, 6]),
            value("d", TensorProto.FLOAT, [1, 4, 6, 6]),
            value("f", TensorProto.FLOAT, [1, 4, 6, 6]),
            value("kept", TensorProto.INT64, ["n", 3]),
        ],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3), "float32"), "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def choosing() -> onnx.ModelProto:
    """One of two results of an exponential, and what is behind them."""

    def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
        # An item of a tuple has another name of its own, which the compiler forgets.
        result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, (4, 8))
        return helper.make_graph(nodes, nodes[-1].op_type, [], [result])

    then = branch(
        helper.make_node("Unique", ["e"], ["values"]),
        helper.make_node("ReduceMax", ["values"], ["largest"], keepdims=0),
        helper.make_node("Div", ["e", "largest"], ["then"]),
    )
    otherwise = branch(
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("TopK", ["r", "k"], ["otherwise", "indices"], axis=1),
    )
    return make_model(
        [
            helper.make_node("Exp", ["data"], ["e"], name="exp"),
            helper.make_node(
                "If", ["which"], ["c"], name="choice", then_branch=then, else_branch=otherwise
            ),
            helper.make_node("Neg", ["c"], ["y"], name="neg"),
        ],
        {"data": (4, 8), "which": ()},
        ["y"],
        {"k": np.array([8])},
        dtypes={"which": TensorProto.BOOL},
    )
