"""Symbolic shapes: a batch keeps the template, any other axis at least the right result."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from tvm import tirx

from tests.marks import in_full
from tests.schedules.harness import SPECS, Graph, check, loop_kinds, rules
from tvm_edge.hardware import DeviceSpec


@pytest.mark.parametrize("spec", [SPECS[0], *in_full(*SPECS[1:])], ids=lambda spec: spec.name)
def test_symbolic_batch_keeps_the_template(spec: DeviceSpec) -> None:
    graph = Graph()

    def conv(channels: int, size: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        return graph.op(
            "Conv",
            graph.input(3, channels, size, size, symbolic="n"),
            graph.input(16, channels // group, kernel, kernel),
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )

    for result in (
        conv(8, 14, 3),
        conv(8, 17, 3),
        conv(8, 15, 3, stride=2),
        conv(8, 14, 1),
        conv(8, 14, 1, stride=2),
        conv(80, 1, 1),
        conv(16, 15, 3, stride=2, group=16),
    ):
        graph.output(graph.op("Relu", result))
    data = graph.input(3, 8, 14, 14, symbolic="n")
    graph.output(graph.op("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    graph.output(graph.op("GlobalAveragePool", data))
    rows = graph.input(3, 20, symbolic="n")
    graph.output(graph.op("Gemm", rows, graph.input(20, 30), graph.input(30)))
    kernels = check(graph, spec)
    assert rules(kernels) == ["conv2d"] * 6 + ["dense", "depthwise", "pool", "reduce"]
    for kernel in kernels:
        assert tirx.ForKind.VECTORIZED in loop_kinds(kernel.scheduled.func), kernel.name


def test_symbolic_elementwise() -> None:
    graph = Graph()
    for shape, symbolic in (((37, 64), "a"), ((64, 37), "?b"), ((3700,), "c"), ((37, 3), "d")):
        graph.output(graph.op("Relu", graph.input(*shape, symbolic=symbolic)))
    pair = graph.input(3, 8, symbolic="n"), graph.input(4, 8, symbolic="m")
    graph.output(graph.op("Concat", *pair, axis=0))
    indices = graph.input(11, dtype="int64", symbolic="k")
    graph.output(graph.op("Gather", graph.input(30, 8, symbolic="e"), indices, axis=0))
    graph.output(graph.op("Transpose", graph.input(3, 8, 5, symbolic="n"), perm=[2, 0, 1]))
    for kernel in check(graph):
        assert kernel.scheduled.rule == "elementwise"


def test_symbolic_reductions() -> None:
    graph = Graph()
    for shape, symbolic in (((37, 10), "a"), ((37, 1000), "b"), ((10, 37), "?c")):
        graph.output(graph.op("Softmax", graph.input(*shape, symbolic=symbolic), axis=1))
    graph.output(graph.op("ReduceMean", graph.input(3, 8, 14, symbolic="n"), axes=[0]))
    largest = graph.op("ArgMax", graph.input(3, 8, 50, symbolic="n"), axis=1)
    graph.output(largest, TensorProto.INT64)
    graph.output(graph.op("MatMul", graph.input(5, 37, 20, symbolic="?dk"), graph.input(5, 20, 12)))
    check(graph)


def test_kernels_of_a_symbolic_batch_take_any_batch() -> None:
    for batch in (1, 2, 5):
        graph = Graph()
        data = graph.given(np.ones((batch, 8, 9, 9), "float32"), ["n", 8, 9, 9])
        graph.output(graph.op("Conv", data, graph.input(4, 8, 3, 3)))
        check(graph)
