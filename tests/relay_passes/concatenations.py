"""Graphs that concatenate, and which of their kernels write in place."""

from __future__ import annotations

import numpy as np
import onnx

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.schedules.harness import Graph


def compiled(graph: Graph, target: str = "llvm") -> tvm_edge.CompiledModel:
    """The model, whose outputs agree with ONNX Runtime's in three runs, fresh memory or not."""
    model = graph.model()
    # Kernels are told apart by their names.
    result = tvm_edge.compile(model, target, fallback="none", parallel_fusion=False)
    for scale in (1.0, -0.5, 2.0):
        values = {
            name: np.asarray(value * scale, value.dtype) for name, value in graph.values.items()
        }
        actual = result.run(values)
        for name, expected in reference(model, values).items():
            assert relative_error(actual[name], expected) < 1e-5, onnx.printer.to_text(model.graph)
    return result


def conv(graph: Graph, data: str, channels: int, filters: int, size: int = 3) -> str:
    weights = np.random.default_rng(filters).normal(size=(filters, channels, size, size))
    name = graph.op(
        "Conv", data, graph.constant(weights / (size * channels**0.5)), pads=[size // 2] * 4
    )
    return graph.op("Relu", name)


def names(model: tvm_edge.CompiledModel) -> list[str]:
    return [kernel.name for kernel in model.report.kernels]


def in_place(model: tvm_edge.CompiledModel) -> int:
    return sum(name.endswith("_in_place") for name in names(model))


def fire(graph: Graph) -> None:
    """SqueezeNet: two branches, concatenated, read by a convolution."""
    squeezed = conv(graph, graph.input(1, 32, 13, 11), 32, 16, 1)
    both = [conv(graph, squeezed, 16, 32, size) for size in (1, 3)]
    graph.output(conv(graph, graph.op("Concat", *both, axis=1), 64, 32))


def dense_block(graph: Graph) -> None:
    """DenseNet: each layer's features are read by all later ones."""
    features = conv(graph, graph.input(1, 16, 9, 9), 16, 32)
    for layer in range(3):
        channels = 32 + 16 * layer
        features = graph.op("Concat", features, conv(graph, features, channels, 16), axis=1)
    graph.output(conv(graph, features, 80, 16, 1))


def inception(graph: Graph) -> None:
    """A concatenation of concatenations and a pool, the inner one read elsewhere too."""
    data = conv(graph, graph.input(1, 16, 10, 10), 16, 32)
    inner = graph.op("Concat", conv(graph, data, 32, 16), conv(graph, data, 32, 32, 1), axis=1)
    pool = graph.op("MaxPool", data, kernel_shape=[3, 3], pads=[1] * 4)
    outer = graph.op("Concat", pool, inner, axis=1)
    graph.output(conv(graph, outer, 80, 16))
    graph.output(conv(graph, inner, 48, 16))
