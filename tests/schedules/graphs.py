"""A network with a layer of each kind."""

from __future__ import annotations

from tests.schedules.harness import Graph


def network() -> Graph:
    """A stem, a residual block, a depthwise block and a head."""
    graph = Graph()

    def conv(data: str, inputs: int, outputs: int, kernel: int, stride: int, group: int = 1) -> str:
        return graph.op(
            "Conv",
            data,
            graph.input(outputs, inputs // group, kernel, kernel),
            graph.input(outputs),
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )

    stem = graph.op("Relu", conv(graph.input(1, 3, 64, 64), 3, 32, 7, 2))
    pooled = graph.op("MaxPool", stem, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inner = graph.op("Relu", conv(graph.op("Relu", conv(pooled, 32, 16, 1, 1)), 16, 16, 3, 1))
    block = graph.op("Relu", graph.op("Add", conv(inner, 16, 32, 1, 1), pooled))
    mobile = conv(graph.op("Relu", conv(block, 32, 32, 3, 2, group=32)), 32, 64, 1, 1)
    features = graph.op("Flatten", graph.op("GlobalAveragePool", mobile))
    scores = graph.op("Gemm", features, graph.input(64, 1000), graph.input(1000))
    graph.output(graph.op("Softmax", scores, axis=1))
    return graph
