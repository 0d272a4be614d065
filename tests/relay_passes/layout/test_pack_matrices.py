"""Constant matrices are packed where they are read several times, or in many panels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.schedules.harness import Graph


@pytest.mark.parametrize(
    ("rows", "columns", "packed"),
    [
        ((1,), 75, False),
        ((2,), 75, False),
        ((3,), 75, True),
        ((2, 7), 75, True),
        ((301,), 75, True),
        ((1,), 601, True),
        ((2, 1), 640, True),
    ],
)
def test_a_matrix_of_several_rows_or_many_panels_is_packed(
    rows: tuple[int, ...], columns: int, packed: bool
) -> None:
    graph = Graph()
    matrix = np.random.default_rng(0).normal(size=(130, columns))
    product = graph.op("MatMul", graph.input(*rows, 130), graph.constant(matrix))
    graph.output(graph.op("Relu", graph.op("Add", product, graph.constant(matrix[0]))))
    model = graph.model()
    compiled = tvm_edge.compile(model, "llvm", num_threads=2)
    assert any("dense_panels" in kernel.name for kernel in compiled.report.kernels) == packed
    assert {kernel.origin for kernel in compiled.report.kernels} == {"heuristic"}
    for name, expected in reference(model, graph.values).items():
        assert relative_error(compiled.run(graph.values)[name], expected) < 1e-5


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("columns", [16, 17, 75, 96])
@pytest.mark.parametrize("shape", [("r", 40), (1, "r", 40), ("n", "r", 40)], ids=str)
def test_a_matrix_for_an_open_number_of_rows(shape: tuple[int | str, ...], columns: int) -> None:
    """Whole tiles, small ones, and the columns that do not fill a vector."""
    rng = np.random.default_rng(0)
    weights, bias = rng.random((40, columns), "float32"), rng.random(columns, "float32")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["s"]),
            helper.make_node("Sigmoid", ["s"], ["y"]),
        ],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvm_edge.compile(model, "llvm")
    assert any("dense_panels" in kernel.name for kernel in compiled.report.kernels)
    for rows in (1, 2, 3, 5, 8, 9, 23, 64):
        batch = [2 if length == "n" else 1 for length in shape[:-2]]
        data = rng.standard_normal((*batch, rows, 40)).astype("float32")
        (expected,) = reference(model, {"x": data}).values()
        assert relative_error(compiled.run({"x": data})["y"], expected) < 1e-5


def test_a_matrix_that_is_an_input_stays() -> None:
    graph = Graph()
    graph.output(graph.op("MatMul", graph.input(8, 40), graph.input(40, 33)))
    compiled = tvm_edge.compile(graph.model(), "llvm")
    assert not any("dense_panels" in kernel.name for kernel in compiled.report.kernels)
