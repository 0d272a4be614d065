"""Graphs of independent kernels, and the groups that are merged of them."""

from __future__ import annotations

import numpy as np
import onnx

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.relay_passes.concatenations import conv
from tests.schedules.harness import Graph


def compiled(graph: Graph, target: str, mode: str | bool = True) -> tvm_edge.CompiledModel:
    """The model, whose outputs agree with ONNX Runtime's in two runs, fresh memory or not.

    And on a CPU, bit for bit, with those without merged kernels.
    """
    model = graph.model()
    result = tvm_edge.compile(model, target, fallback="none", parallel_fusion=mode)
    apart = None
    if target == "llvm":
        apart = tvm_edge.compile(model, target, parallel_fusion=False)
    for scale in (1.0, -0.5):
        values = {n: np.asarray(v * scale, v.dtype) for n, v in graph.values.items()}
        actual = result.run(values)
        for name, expected in reference(model, values).items():
            assert relative_error(actual[name], expected) < 1e-5, onnx.printer.to_text(model.graph)
        for name, same in (apart.run(values) if apart else {}).items():
            assert np.array_equal(actual[name], same)
    return result


def groups(model: tvm_edge.CompiledModel) -> list[set[str]]:
    """The operators of each merged kernel, which is one launch of the report too."""
    taken = [group for group in model.report.fusion_groups if group["taken"]]
    found = [set(group["operators"]) for group in taken]
    merged = [set(k.operators) for k in model.report.kernels if k.rule.startswith("parallel: ")]
    assert sorted(map(sorted, found)) == sorted(map(sorted, merged))
    assert all(len(group["kernels"]) > 1 for group in taken)
    return found


def two_networks(graph: Graph) -> None:
    """Nothing in common."""
    for _ in range(2):
        data = conv(graph, graph.input(1, 8, 9, 7), 8, 16)
        graph.output(conv(graph, graph.op("GlobalAveragePool", data), 16, 10, 1))


def shared_and_in_place(graph: Graph) -> None:
    """One input of all branches, residuals that are overwritten, an operator of two results."""
    data = conv(graph, graph.input(1, 16, 8, 8), 16, 16)
    ends = []
    for size in (1, 3):
        branch = conv(graph, data, 16, 16, size)
        inner = conv(graph, branch, 16, 16, 1)
        ends.append(graph.op("Relu", graph.op("Add", inner, branch)))
    left, right = graph.ops("Split", 2, ends[0], axis=1)
    graph.output(graph.op("Mul", left, right))
    values = graph.ops("TopK", 2, graph.op("Flatten", ends[1]), graph.constant(np.array([5])))
    graph.output(graph.op("Exp", values[0]))
    graph.output(values[1], onnx.TensorProto.INT64)
    graph.output(conv(graph, data, 16, 8))
