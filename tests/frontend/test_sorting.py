"""What sorts refuse at the boundary, and what they make of the edges of their domain."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

import tvm_edge
from tests.onnx_models import reference
from tests.schedules.harness import Graph
from tvm_edge import ops
from tvm_edge.runtime.inputs import random_inputs


def segments(offsets: np.ndarray | None = None) -> tvm.IRModule:
    """A segmented argsort of 60 numbers, with offsets for four segments or constant ones."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((60,), "float32"))
    given = relax.Var("offsets", relax.TensorType((5,), "int32"))
    params = [data, given] if offsets is None else [data]
    cut = given if offsets is None else relax.const(offsets, "int32")
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(ops.segmented_argsort(data, cut)))
        builder.emit_func_output(result)
    return builder.get()


def top_k(k: int) -> onnx.ModelProto:
    graph = Graph()
    values, indices = graph.ops("TopK", 2, graph.input(2, 7), graph.constant([k]))
    graph.output(values)
    graph.output(indices, TensorProto.INT64)
    return graph.model()


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ([0, 5, 4, 7, 9], "number 2, 4, is less than the 5 before it"),
        ([0, 1, 2, 3, 61], "number 4, 61, lies outside of the 60 elements"),
        ([-1, 0, 0, 0, 0], "number 0, -1, lies outside"),
    ],
)
def test_offsets_are_checked_at_the_call(offsets: list[int], problem: str) -> None:
    model = tvm_edge.compile(segments(), "llvm")
    inputs = {"data": np.zeros(60, "float32"), "offsets": np.array(offsets, "int32")}
    with pytest.raises(tvm_edge.InputError, match=problem) as caught:
        model.run(inputs)
    assert caught.value.name == "offsets"
    with pytest.raises(tvm_edge.InvalidModelError, match=problem):
        tvm_edge.compile(segments(np.array(offsets, "int32")), "llvm")


def test_offsets_are_checked_after_a_trip_through_a_file(tmp_path) -> None:
    tvm_edge.compile(segments(), "llvm").export(tmp_path / "sort.tvme")
    model = tvm_edge.load(tmp_path / "sort.tvme")
    wrong = np.array([0, 9, 3, 3, 3], "int32")
    with pytest.raises(tvm_edge.InputError, match="is less than"):
        model.run({"data": np.zeros(60, "float32"), "offsets": wrong})
    data = np.random.default_rng(0).integers(0, 5, 60).astype("float32")
    offsets = np.array([2, 9, 9, 40, 60], "int32")
    expected = np.arange(60)
    for start, stop in itertools.pairwise(offsets):
        expected[start:stop] = start + np.argsort(data[start:stop], kind="stable")
    found = model.run({"data": data, "offsets": offsets})["output_0"]
    np.testing.assert_array_equal(found, expected)


def test_benchmarks_get_offsets_that_fit() -> None:
    model = tvm_edge.compile(segments(), "llvm")
    offsets = random_inputs(model.inputs)["offsets"]
    assert offsets[0] == 0 and offsets[-1] == 60 and (np.diff(offsets) > 0).all()
    assert model.benchmark(repeat=2).end_to_end.median > 0


def test_more_elements_than_there_are() -> None:
    model = top_k(7)
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.array([8]), model.graph.initializer[0].name)
    )
    with pytest.raises(tvm_edge.InvalidModelError):
        tvm_edge.compile(model, "llvm")


def test_more_elements_than_there_are_in_relax() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, 7), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.topk(data, 8, ret_type="values")))
        builder.emit_func_output(result)
    with pytest.raises(tvm_edge.InvalidModelError, match="the first 8 of 7 elements"):
        tvm_edge.compile(builder.get(), "llvm")


def test_more_elements_than_there_turn_out_to_be() -> None:
    graph = Graph()
    found = graph.op("NonZero", graph.input(3, 4))
    _, indices = graph.ops("TopK", 2, found, graph.constant([5]))
    graph.output(indices, TensorProto.INT64)
    model = tvm_edge.compile(graph.model(), "llvm")
    (name,) = (spec.name for spec in model.inputs)
    assert model.run({name: np.ones((3, 4), "float32")})
    few = np.zeros((3, 4), "float32")
    few[0, :3] = 1
    with pytest.raises(tvm_edge.InputError, match="asks for the first 5, and there are fewer"):
        model.run({name: few})


@pytest.mark.parametrize("k", [0, 1, 7])
def test_none_one_and_all(k: int) -> None:
    model = top_k(k)
    inputs = {"in0": np.random.default_rng(k).integers(0, 4, (2, 7)).astype("float32")}
    found = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == expected.dtype


def test_a_type_without_an_order() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, 7), "bfloat16"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.sort(data)))
        builder.emit_func_output(result)
    with pytest.raises(tvm_edge.UnsupportedOperatorError, match=r"relax\.sort of bfloat16"):
        tvm_edge.compile(builder.get(), "llvm")


def test_no_such_axis() -> None:
    graph = Graph()
    graph.output(graph.op("CumSum", graph.input(2, 3), graph.constant(2)))
    with pytest.raises(tvm_edge.InvalidModelError, match="names the axis 2"):
        tvm_edge.compile(graph.model(), "llvm")


def test_no_such_operator() -> None:
    with pytest.raises(ValueError, match="'median' is none of add, multiply"):
        ops.scan(relax.Var("x", relax.TensorType((4,), "float32")), operator="median")


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("in_order", [0, 1])
def test_distinct_elements(dtype: str, in_order: int) -> None:
    graph = Graph()
    values = np.random.default_rng(1).integers(0, 9, (4, 5, 6)).astype(dtype)
    found = graph.ops("Unique", 4, graph.given(values), sorted=in_order)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for name, element in zip(found, (kind, *[TensorProto.INT64] * 3), strict=True):
        graph.output(name, element)
    model = graph.model()
    compiled = tvm_edge.compile(model, "llvm")
    assert {k.origin for k in compiled.report.kernels} == {"heuristic"}
    results = compiled.run(graph.values)
    flat = values.reshape(-1)
    distinct, first, inverse, counts = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True
    )
    if not in_order:
        order = np.argsort(first)
        distinct, first, counts = distinct[order], first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    for name, expected in zip(found, (distinct, first, inverse, counts), strict=True):
        np.testing.assert_array_equal(results[name], expected)


def test_nan_is_one_element() -> None:
    graph = Graph()
    values = np.float32([1, np.nan, -0.0, 0, np.nan, 1])
    graph.output(graph.op("Unique", graph.given(values)))
    (found,) = tvm_edge.compile(graph.model(), "llvm").run(graph.values).values()
    np.testing.assert_array_equal(found, np.float32([0, 1, np.nan]))
