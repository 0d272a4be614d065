"""Operators behind one whose number of results only the run tells stay on the GPU."""

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
_VIEWS = ("Squeeze", "Reshape", "Constant", "Shape")
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


def assert_placed(report: tvm_edge.CompileReport, elsewhere: dict[str, str], device: str) -> None:
    """Every operator but views is on `device`, or on that which `elsewhere` has for its type."""
    found = {p.op_type: p.device for p in report.placements if p.op_type not in _VIEWS}
    assert found == {op_type: elsewhere.get(op_type, device) for op_type in found}
    assert all(kernel.operators for kernel in report.kernels)
    named = "named in fallback="
    assert {p.op_type for p in report.placements if p.reason == named} == set(elsewhere)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", _BEHIND)
def test_on_the_gpu(name: str, gpu: str) -> None:
    compiled = tvm_edge.compile(model(name), gpu, fallback="none")
    assert_placed(compiled.report, {}, gpu)
    for keep in ([0, 1, 0, 0, 1, 1, 0, 0, 1], [1] * 9, [0] * 9):
        inputs = {"data": random_input((9, 16), 5), "keep": np.float32(keep)}
        (actual,), (expected,) = (
            compiled.run(inputs).values(),
            reference(model(name), inputs).values(),
        )
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["small_gpu", "large_gpu"])
@pytest.mark.parametrize("last", ["product", "softmax"])
def test_lengths_that_no_operand_tells(
    last: str, kind: str, gpu: str, request: pytest.FixtureRequest
) -> None:
    """The first rows of those found: their kernels take the number by value, beside tensors."""
    request.getfixturevalue(kind)
    output, nodes = _BEHIND[last]
    after = helper.make_node(nodes[0].op_type, ["first_rows", *nodes[0].input[1:]], ["z"])
    made = model(last)
    cut = helper.make_node("Slice", ["rows", "zero", "four"], ["first_rows"])
    made.graph.node.extend([cut, after])
    known = {tensor.name for tensor in made.graph.initializer}
    for name in {"zero", "four", *after.input} & {*_CONSTANTS} - known:
        made.graph.initializer.append(onnx.numpy_helper.from_array(_CONSTANTS[name], name))
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    compiled = tvm_edge.compile(made, gpu, fallback="none")
    for keep in ([0, 1, 0, 0, 1, 1, 0, 0, 1], [1] * 9, [1] + [0] * 8):
        inputs = {"data": random_input((9, 16), 5), "keep": np.float32(keep)}
        found, expected = compiled.run(inputs), reference(made, inputs)
        for name in (output, "z"):
            assert found[name].shape == expected[name].shape
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("where", ["finds", "reads", "behind"])
@pytest.mark.parametrize("name", ["product", "softmax", "concat"])
def test_on_either_side_of_a_boundary(name: str, where: str, gpu: str) -> None:
    """Tensors of unknown length cross both ways, empty ones too."""
    _, nodes = _BEHIND[name]
    on_cpu = {"finds": "NonZero", "reads": "Gather", "behind": nodes[0].op_type}[where]
    compiled = tvm_edge.compile(model(name), gpu, fallback=[on_cpu])
    report = compiled.report
    assert {device for device, _ in report.partitions} == {gpu, "llvm"}
    assert_placed(report, {on_cpu: "llvm"}, gpu)
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
    assert_placed(compiled.report, dict.fromkeys(on_cpu, "llvm"), gpu)
    inputs = {"data": random_input((9, 16), 6), "keep": np.zeros(5, "float32")}
    actual, expected = compiled.run(inputs), reference(computed, inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5)


@pytest.mark.parametrize("on_cpu", ["NonMaxSuppression", "Slice", "Neg"])
def test_suppression_on_either_side_of_a_boundary(on_cpu: str, gpu: str) -> None:
    """Results are of unknown length, and each operator says where it ran."""
    limits = {"most": np.array([3]), "overlap": np.float32([0.5]), "least": np.float32([0.1])}
    constants = {name: np.array([i]) for i, name in enumerate(["zero", "one", "two", "three"])}
    names = ["boxes", "scores", *limits]
    found = make_model(
        [
            helper.make_node("NonMaxSuppression", names, ["found"]),
            helper.make_node("Slice", ["found", "two", "three", "one"], ["box"]),
            helper.make_node("Neg", ["box"], ["y"]),
        ],
        {"boxes": (1, 9, 4), "scores": (1, 2, 9)},
        ["y"],
        {**limits, **{name: constants[name] for name in ("one", "two", "three")}},
        dtypes={"y": TensorProto.INT64},
    )
    compiled = tvm_edge.compile(found, gpu, fallback=[on_cpu])
    assert_placed(compiled.report, {on_cpu: "llvm"}, gpu)
    inputs = {"boxes": random_input((1, 9, 4), 7), "scores": random_input((1, 2, 9), 8)}
    np.testing.assert_array_equal(compiled.run(inputs)["y"], reference(found, inputs)["y"])


@pytest.mark.parametrize("fallback", ["list", ["NonZero"], ["Size"]], ids=str)
def test_how_many_there_are(fallback: str | list[str], gpu: str) -> None:
    """A kernel of lengths alone has no tensor to say its device: it is the GPU's, always."""
    counting = make_model(
        [
            helper.make_node("NonZero", ["keep"], ["found"]),
            helper.make_node("Size", ["found"], ["many"]),
            helper.make_node("Add", ["many", "one"], ["y"]),
        ],
        {"keep": (9,)},
        ["y"],
        {"one": np.array([1])},
        dtypes={"y": TensorProto.INT64},
    )
    compiled = tvm_edge.compile(counting, gpu, fallback=fallback)
    placed = {p.op_type: p.device for p in compiled.report.placements}
    assert (placed["Size"], placed["Add"]) == ("", gpu)  # the host knows the size
    for many in (0, 4, 9):
        inputs = {"keep": np.float32(np.arange(9) < many)}
        assert compiled.run(inputs)["y"] == many + 1


def test_tensors_that_cross_have_the_name_of_their_operator() -> None:
    """Fields of a tuple are its operator's, not of the one that reads them."""
    taken = make_model(
        [
            helper.make_node("TopK", ["data", "k"], ["values", "indices"], name="best", axis=1),
            helper.make_node("Neg", ["values"], ["y"], name="tail"),
        ],
        {"data": (9, 16)},
        ["y"],
        {"k": np.array([3])},
    )
    report = tvm_edge.analyze(taken, "mali-t860", fallback=["TopK"])
    assert [c["tensor"] for c in report.copies if c["destination"] == "opencl"] == ["best"]
    assert {p.operator: p.reason for p in report.placements} == {
        "best": "named in fallback=",
        "tail": "the target is this device",
    }
