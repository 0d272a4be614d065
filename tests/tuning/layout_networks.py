"""Networks for the graph tuner, and layouts of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from tests.onnx_models import reference
from tests.schedules.blocked_harness import Conv
from tests.schedules.harness import Graph, assert_close
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph, LayoutPlan
from tvm_edge.relay_passes.solvers.layout_problem import LayoutProblem
from tvm_edge.runtime import CompiledModel
from tvm_edge.tuning.layout_costs import layout_problem, plan_of, transform_kinds, ways
from tvm_edge.tuning.transform_times import estimate_transforms
from tvm_edge.tuning.tunable import layout_graph_of

CPU = resolve_target("llvm")
ONE = {"kernel": (1, 1), "pads": (0, 0, 0, 0)}


def network(*, split: bool = True) -> Graph:
    """Convolutions, a residual sum, pools, a concatenation, a gate, two results; moved channels."""
    graph = Graph()
    data = Conv(channels=3, filters=32, image=(14, 12), strides=(2, 2)).build(graph, "stem")
    width = 48 if split else 64  # fills blocks or not
    left = Conv(channels=32, filters=width).build(graph, "left", data)
    right = Conv(channels=32, filters=width, epilogue="silu", **ONE).build(graph, "right", data)
    data = graph.op("Add", left, right)
    graph.output(data)
    pooled = graph.op("MaxPool", data, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    window = Conv(channels=width, filters=width, groups=width, epilogue="clip")
    data = graph.op("Concat", pooled, window.build(graph, "window", data), axis=1)
    data = Conv(channels=2 * width, filters=64, epilogue="bias").build(graph, "joined", data)
    mean = graph.op("GlobalAveragePool", data)
    gate = Conv(channels=64, filters=64, epilogue="sigmoid", image=(1, 1), **ONE)
    data = graph.op("Mul", data, gate.build(graph, "gate", mean))
    parts = [data, data]
    if split:
        parts = graph.ops("Split", 2, data, graph.constant(np.array([32, 32])), axis=1)
    ends = [
        Conv(channels=32 if split else 64, filters=32, **ONE).build(graph, f"end{i}", part)
        for i, part in enumerate(parts)
    ]
    graph.output(graph.op("Softmax", graph.op("Concat", *ends, axis=1), axis=1))
    return graph


def check_outputs(compiled: CompiledModel, graph: Graph, model: onnx.ModelProto) -> None:
    actual = compiled.run(graph.values)
    for name, expected in reference(model, graph.values).items():
        assert_close(actual[name], expected, name)


def mixed_layouts(
    model: onnx.ModelProto, seed: int, folder: Path
) -> tuple[LayoutGraph, LayoutProblem, tuple[int, ...], LayoutPlan]:
    """The best layouts by random costs of operators."""
    found, _ = layout_graph_of(model, CPU)
    options, _ = ways(found.convolutions.values(), CPU, folder)
    problem = layout_problem(found, options, estimate_transforms(transform_kinds(found), CPU.spec))
    random = np.random.default_rng(seed)
    costs = tuple(tuple(random.random(len(n.layouts)) * 1e-4) for n in problem.nodes)
    layouts = replace(problem, seconds=costs).solve().layouts
    assert len(set(layouts)) > 2, "layouts are mixed"
    return found, problem, layouts, plan_of(found, layouts, options)


def small_model() -> tuple[Graph, onnx.ModelProto]:
    graph = Graph()
    data = Conv(channels=64, filters=64, image=(28, 28)).build(graph, "first")
    data = Conv(channels=64, filters=64, **ONE).build(graph, "second", data)
    graph.output(data)
    return graph, graph.model()


SMALL, SMALL_MODEL = small_model()
