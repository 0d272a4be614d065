"""What is behind an operator whose number of results is only known in the run stays on the GPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference

_GATHER = helper.make_node("Gather", ["data", "which"], ["rows"], axis=0)
_BEHIND = {
    "gather": ("rows", []),
    "product": ("y", [helper.make_node("MatMul", ["rows", "weights"], ["y"])]),
    "softmax": ("y", [helper.make_node("Softmax", ["rows"], ["y"], axis=1)]),
    "sum of all rows": ("y", [helper.make_node("ReduceSum", ["rows", "first"], ["y"], keepdims=0)]),
    "concat": ("y", [helper.make_node("Concat", ["rows", "tail"], ["y"], axis=0)]),
    "transpose": ("y", [helper.make_node("Transpose", ["rows"], ["y"], perm=[1, 0])]),
    "regions": (
        "y",
        [
            helper.make_node("Slice", ["rows", "zero", "four", "second"], ["boxes"]),
            helper.make_node(
                "RoiAlign", ["map", "boxes", "which"], ["y"], output_height=2, output_width=3
            ),
        ],
    ),
    "convolution": (
        "y",
        [
            helper.make_node("Reshape", ["rows", "image"], ["images"]),
            helper.make_node("Conv", ["images", "filters"], ["y"], pads=[1, 1, 1, 1]),
        ],
    ),
}
_CONSTANTS = {
    "weights": random_input((16, 70), 1),
    "first": np.array([0]),
    "second": np.array([1]),
    "zero": np.array([0]),
    "four": np.array([4]),
    "tail": random_input((2, 16), 2),
    "map": random_input((9, 3, 8, 8), 3),
    "image": np.array([-1, 1, 4, 4]),
    "filters": random_input((5, 1, 3, 3), 4),
}


def model(name: str) -> onnx.ModelProto:
    """Rows of `data` where `keep` is not zero, and an operator that takes them."""
    output, nodes = _BEHIND[name]
    read = {tensor for node in nodes for tensor in node.input}
    found = [
        helper.make_node("NonZero", ["keep"], ["found"]),
        helper.make_node("Squeeze", ["found", "axis"], ["which"]),
    ]
    constants = {key: value for key, value in _CONSTANTS.items() if key in read}
    return make_model(
        [*found, _GATHER, *nodes],
        {"data": (9, 16), "keep": (9,)},
        [output],
        {**constants, "axis": np.array([0])},
        dtypes={output: TensorProto.FLOAT},
    )


@pytest.mark.parametrize("name", _BEHIND)
def test_on_the_gpu(name: str, gpu: str) -> None:
    compiled = tvm_edge.compile(model(name), gpu, fallback="none")
    assert {p.device for p in compiled.report.placements} <= {gpu, ""}
    for keep in ([0, 1, 0, 0, 1, 1, 0, 0, 1], [1] * 9, [0] * 9):
        inputs = {"data": random_input((9, 16), 5), "keep": np.float32(keep)}
        (actual,), (expected,) = (
            compiled.run(inputs).values(),
            reference(model(name), inputs).values(),
        )
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["finds", "reads", "behind"])
@pytest.mark.parametrize("name", ["product", "softmax", "concat"])
def test_on_either_side_of_a_boundary(name: str, where: str, gpu: str) -> None:
    """Tensors of unknown length cross both ways, empty ones too."""
    _, nodes = _BEHIND[name]
    on_cpu = {"finds": "NonZero", "reads": "Gather", "behind": nodes[0].op_type}[where]
    compiled = tvm_edge.compile(model(name), gpu, fallback=[on_cpu])
    report = compiled.report
    assert {device for device, _ in report.partitions} == {gpu, "llvm"}
    ways = {(copy["source"], copy["destination"]) for copy in report.copies if not copy["bytes"]}
    expected_ways = {"finds": {("llvm", gpu)}, "reads": {(gpu, "llvm"), ("llvm", gpu)}}
    assert ways == expected_ways.get(where, {(gpu, "llvm")})
    for keep in ([0, 1, 0, 0, 1, 1, 0, 0, 1], [1] * 9, [0] * 9):
        inputs = {"data": random_input((9, 16), 5), "keep": np.float32(keep)}
        (actual,) = compiled.run(inputs).values()
        (expected,) = reference(model(name), inputs).values()
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("on_cpu", [["TopK"], ["Neg"], ["Relu", "Neg"]], ids="-".join)
def test_top_k_with_a_computed_k(on_cpu: list[str], gpu: str) -> None:
    computed = make_model(
        [
            helper.make_node("Relu", ["data"], ["r"]),
            helper.make_node("Shape", ["keep"], ["k"]),
            helper.make_node("TopK", ["r", "k"], ["values", "indices"], axis=1),
            helper.make_node("Neg", ["values"], ["y"]),
        ],
        {"data": (9, 16), "keep": (5,)},
        ["y", "indices"],
        dtypes={"indices": TensorProto.INT64},
    )
    compiled = tvm_edge.compile(computed, gpu, fallback=on_cpu)
    placed = {p.op_type: p.device for p in compiled.report.placements if p.device}
    assert {kind for kind, device in placed.items() if device == "llvm"} == set(on_cpu)
    inputs = {"data": random_input((9, 16), 6), "keep": np.zeros(5, "float32")}
    actual, expected = compiled.run(inputs), reference(computed, inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5)
