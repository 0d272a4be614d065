"""Tensors without elements as inputs and results, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.marks import needs_opencl
from tests.onnx_models import make_model, reference

node = helper.make_node


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, "float32")


def ints(*values: Any) -> np.ndarray:
    return np.asarray(values, "int64")


def branch(kind: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(kind, TensorProto.FLOAT, [0, 4])
    return helper.make_graph([node(kind, ["x"], [kind])], kind, [], [result])


NO_INDEX = np.zeros(0, "int64")
ROWS = {"x": f32(0, 4)}

# Nodes, inputs, constants; outputs are y and i.
CASES: dict[
    str, tuple[Sequence[onnx.NodeProto], Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
] = {
    "Concat": ([node("Concat", ["x", "w"], ["y"], axis=0)], {**ROWS, "w": f32(3, 4)}, {}),
    "Concat of rows of nothing": (
        [node("Concat", ["x", "w"], ["y"], axis=-1)],
        {**ROWS, "w": f32(0, 2)},
        {},
    ),
    "Gather": ([node("Gather", ["x", "i_"], ["y"], axis=1)], ROWS, {"i_": ints(0, 2)}),
    "Gather without indices": (
        [node("Gather", ["x", "i_"], ["y"], axis=0)],
        {"x": f32(5, 4), "i_": NO_INDEX},
        {},
    ),
    "GatherND": (
        [node("GatherND", ["x", "i_"], ["y"])],
        {"x": f32(3, 4), "i_": np.zeros((0, 2), "int64")},
        {},
    ),
    "Reshape": ([node("Reshape", ["x", "s"], ["y"])], ROWS, {"s": ints(0, 2, 2)}),
    "Reshape to another order": (
        [node("Reshape", ["x", "s"], ["y"], allowzero=1)],
        ROWS,
        {"s": ints(3, 0)},
    ),
    "Transpose": ([node("Transpose", ["x"], ["y"])], ROWS, {}),
    "elementwise": (
        [node("Relu", ["x"], ["a"]), node("Add", ["a", "w"], ["y"])],
        ROWS,
        {"w": f32(4)},
    ),
    "broadcast": ([node("Mul", ["x", "w"], ["y"])], {**ROWS, "w": f32(1, 4)}, {}),
    "MatMul without terms": (
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": f32(3, 0), "w": f32(0, 5)},
        {},
    ),
    "Gemm without terms": (
        [node("Gemm", ["x", "w", "b"], ["y"])],
        {"x": f32(2, 0), "w": f32(0, 5)},
        {"b": f32(5)},
    ),
    "MatMul of no rows": ([node("MatMul", ["x", "w"], ["y"])], ROWS, {"w": f32(4, 5)}),
    "Conv of no image": (
        [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        {"x": f32(0, 3, 8, 8)},
        {"w": f32(4, 3, 3, 3)},
    ),
    "MaxPool": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        {"x": f32(0, 3, 8, 8)},
        {},
    ),
    "Resize": (
        [node("Resize", ["x", "", "s"], ["y"], mode="linear")],
        {"x": f32(0, 3, 4, 4)},
        {"s": np.asarray([1, 1, 2, 2], "float32")},
    ),
    "ReduceSum": ([node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], ROWS, {"a": ints(0)}),
    "ReduceMax of rows": ([node("ReduceMax", ["x"], ["y"], axes=[1])], ROWS, {}),
    "Softmax": ([node("Softmax", ["x"], ["y"], axis=-1)], {"x": f32(4, 0)}, {}),
    "TopK of none": (
        [node("TopK", ["x", "k"], ["y", "i"])],
        {"x": f32(3, 4)},
        {"k": ints(0)},
    ),
    "TopK of no rows": ([node("TopK", ["x", "k"], ["y", "i"])], ROWS, {"k": ints(2)}),
    "NonMaxSuppression": (
        [node("NonMaxSuppression", ["x", "s", "k"], ["i"])],
        {"x": f32(1, 0, 4), "s": f32(1, 2, 0)},
        {"k": ints(5)},
    ),
    "NonZero": ([node("NonZero", ["x"], ["i"])], ROWS, {}),
    "Slice the other way round": (
        [node("Slice", ["x", "s", "e", "a", "t"], ["y"])],
        {"x": f32(5, 4)},
        {"s": ints(1), "e": ints(3), "a": ints(0), "t": ints(-1)},
    ),
    "Slice, and what follows": (
        [node("Slice", ["x", "s", "s"], ["v"]), node("Relu", ["v"], ["y"])],
        {"x": f32(5, 4)},
        {"s": ints(3)},
    ),
    "Pad": ([node("Pad", ["x", "p"], ["y"])], ROWS, {"p": ints(1, 0, 2, 1)}),
    "Expand": ([node("Expand", ["x", "s"], ["y"])], {"x": f32(1, 4)}, {"s": ints(0, 4)}),
    "Tile": ([node("Tile", ["x", "s"], ["y"])], {"x": f32(2, 4)}, {"s": ints(0, 3)}),
    "Split": (
        [node("Split", ["x", "p"], ["y", "v"], axis=0)],
        {"x": f32(5, 4)},
        {"p": ints(0, 5)},
    ),
    "ScatterND": (
        [node("ScatterND", ["x", "i_", "u"], ["y"])],
        {"x": f32(3, 4), "i_": np.zeros((0, 1), "int64"), "u": f32(0, 4)},
        {},
    ),
    "RoiAlign": (
        [node("RoiAlign", ["x", "r", "i_"], ["y"], output_height=2, output_width=2)],
        {"x": f32(1, 3, 4, 4), "r": f32(0, 4), "i_": NO_INDEX},
        {},
    ),
    "If": (
        [node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))],
        {**ROWS, "c": np.asarray(True)},
        {},
    ),
    "a head of no boxes": (
        [
            node("Gather", ["x", "i_"], ["b"], axis=0),
            node("MatMul", ["b", "w"], ["m"]),
            node("Softmax", ["m"], ["s"]),
            node("ReduceMax", ["s"], ["r"], axes=[1], keepdims=0),
            node("Concat", ["r", "e"], ["y"], axis=0),
        ],
        {"x": f32(5, 4), "i_": NO_INDEX},
        {"w": f32(4, 3), "e": f32(2)},
    ),
}


def agrees(name: str, target: str) -> None:
    nodes, inputs, constants = CASES[name]
    outputs = [each for n in nodes for each in n.output if each in ("y", "i")]
    kinds = {key: helper.np_dtype_to_tensor_dtype(v.dtype) for key, v in inputs.items()}
    shapes = {key: value.shape for key, value in inputs.items()}
    model = make_model(nodes, shapes, outputs, constants, dtypes={**kinds, "i": TensorProto.INT64})
    # A length of 0 in a file is one that an exporter did not know, unless it is said again.
    empty = {key: shape for key, shape in shapes.items() if 0 in shape}
    found = tvm_edge.compile(model, target, input_shapes=empty).run(inputs)
    for key, value in reference(model, inputs).items():
        assert found[key].dtype == value.dtype
        assert found[key].shape == value.shape
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize("name", CASES)
def test_without_elements(name: str) -> None:
    agrees(name, "llvm")


@needs_opencl
@pytest.mark.parametrize(
    "name", ["MatMul without terms", "Pad", "Concat", "ScatterND", "a head of no boxes"]
)
def test_without_elements_on_a_gpu(name: str) -> None:
    agrees(name, "opencl")
