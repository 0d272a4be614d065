"""Constant matrices are packed where they are read a few times."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.schedules.harness import Graph


@pytest.mark.parametrize(
    "rows, packed", [((1,), False), ((4,), False), ((5,), True), ((2, 7), True), ((64,), False)]
)
def test_a_matrix_that_is_read_a_few_times_is_packed(rows: tuple[int, ...], packed: bool) -> None:
    graph = Graph()
    matrix = np.random.default_rng(0).normal(size=(130, 75))
    product = graph.op("MatMul", graph.input(*rows, 130), graph.constant(matrix))
    graph.output(graph.op("Relu", graph.op("Add", product, graph.constant(matrix[0, :75]))))
    model = graph.model()
    compiled = tvm_edge.compile(model, "llvm")
    assert any("dense_panels" in kernel.name for kernel in compiled.report.kernels) == packed
    assert {kernel.origin for kernel in compiled.report.kernels} == {"heuristic"}
    for name, expected in reference(model, graph.values).items():
        assert relative_error(compiled.run(graph.values)[name], expected) < 1e-5


def test_a_matrix_that_is_an_input_stays() -> None:
    graph = Graph()
    graph.output(graph.op("MatMul", graph.input(8, 40), graph.input(40, 33)))
    compiled = tvm_edge.compile(graph.model(), "llvm")
    assert not any("dense_panels" in kernel.name for kernel in compiled.report.kernels)
