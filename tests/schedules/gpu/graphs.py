"""Graphs of one or two operators for GPU kernels."""

from __future__ import annotations

from typing import Any

from tests.schedules.harness import Graph


def conv(
    *data: int, outputs: int, kernel: tuple[int, ...], epilogue: bool = True, **attributes: Any
) -> Graph:
    """A convolution, with a bias and a ReLU unless told otherwise."""
    graph = Graph()
    group = attributes.get("group", 1)
    weight = graph.input(outputs, data[1] // group, *kernel)
    bias = [graph.input(outputs)] if epilogue else []
    result = graph.op("Conv", graph.input(*data), weight, *bias, **attributes)
    graph.output(graph.op("Relu", result) if epilogue else result)
    return graph


def matrices(*shapes: tuple[int, ...]) -> Graph:
    graph = Graph()
    graph.output(graph.op("MatMul", *(graph.input(*shape) for shape in shapes)))
    return graph


def residual() -> Graph:
    """An epilogue reads an image and, for each column, a vector."""
    graph = Graph()
    data, weight = graph.input(1, 16, 8, 12), graph.input(24, 16, 3, 3)
    made = graph.op("Conv", data, weight, graph.input(24), pads=[1] * 4)
    made = graph.op("Add", made, graph.input(1, 24, 8, 12))
    graph.output(graph.op("Relu", graph.op("Mul", made, graph.input(12))))
    return graph
