"""Typical lengths of open dimensions."""

from __future__ import annotations

import pytest
from tvm import tirx

from tests.schedules.harness import Graph
from tvm_edge.compiler import compilation, passes
from tvm_edge.compiler.options import Options
from tvm_edge.report import Dim
from tvm_edge.schedules.typical import UNKNOWN, typical, typical_lengths

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int32")


@pytest.mark.parametrize(
    "expr, value",
    [
        (5, 5),
        (N, 7),
        (tirx.floordiv(N + 1, 2) * 3, 12),
        (M, UNKNOWN),
        (N * tirx.Cast("int64", M), 7 * UNKNOWN),
        (tirx.max(N - 9, tirx.const(0, "int64")), 1),  # no length is less
    ],
)
def test_an_expression_at_its_typical_lengths(expr: tirx.Expr, value: int) -> None:
    with typical_lengths({"n": 7}):
        assert typical(expr) == value


def test_nothing_is_left_of_lengths_afterwards() -> None:
    with typical_lengths({"n": 7}), typical_lengths({"m": 3}):
        assert (typical(N), typical(M)) == (UNKNOWN, 3)
    assert typical(N) == UNKNOWN


def test_passes_see_the_lengths_of_the_inputs() -> None:
    graph = Graph()
    graph.output(graph.op("Relu", graph.input(3, 8, symbolic="nm")))
    shapes = {"a/in0": (Dim("n", typical=20), "m"), "b/in0": (4, "w")}
    models = {"a": graph.model(), "b": graph.model()}
    begun = compilation.begin(models, "llvm", Options(input_shapes=shapes))
    seen = []

    def look(compilation: compilation.Compilation) -> compilation.Compilation:
        seen.extend(typical(tirx.Var(name, "int64")) for name in ("n", "m", "w"))
        return compilation

    passes.Pipeline((passes.CompilerPass("lower", "look", look),)).run(begun)
    assert seen == [20, 256, 256]
