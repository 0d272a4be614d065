"""Networks in int8 for the tuner, plain and with float32 between."""

from __future__ import annotations

import numpy as np

from tests.onnx_models import reference
from tests.quantized_models import QuantizedGraph
from tvm_edge.runtime import CompiledModel


def network(*, mixed: bool = False) -> QuantizedGraph:
    """Two dense convolutions of bytes, one of them padded, and one of windows.

    `mixed` has convolutions of float32 between them, a sum, a pool and a concatenation.
    """
    graph = QuantizedGraph(3)
    data = graph.input(1, 3, 14, 13)
    data = graph.quantized(graph.conv(data, (32, 3, 3, 3), pads=[1] * 4, name="first"), 0.04)
    if mixed:
        data = graph.quantized(graph.op("Relu", float_conv(graph, data, 32, "left")), 0.02, 0)
    deep = graph.conv(data, (32, 1, 3, 3), scale=0.04, group=32, pads=[1] * 4, name="window")
    deep = graph.quantized(deep, 0.04)
    if mixed:
        right = float_conv(graph, data, 32, "right")
        summed = graph.quantized(graph.op("Add", deep, right), 0.05)
        pooled = graph.op("MaxPool", summed, kernel_shape=[3, 3], pads=[1] * 4)
        deep = graph.quantized(graph.op("Concat", pooled, deep, axis=1), 0.05)
        graph.output(float_conv(graph, deep, 64, "end"))
    channels = 64 if mixed else 32
    last = graph.conv(deep, (48, channels, 1, 1), scale=0.05, name="last")
    graph.quantized(last, 0.06)
    return graph


def float_conv(graph: QuantizedGraph, data: str, channels: int, name: str) -> str:
    """A convolution whose weights are not quantised."""
    weights = graph.random.normal(0, (9 * channels) ** -0.5, (32, channels, 3, 3))
    return graph.op("Conv", data, graph.constant(weights, "float32"), name=name, pads=[1] * 4)


PLAIN, MIXED = network(), network(mixed=True)


PLAIN_MODEL, MIXED_MODEL = PLAIN.model(), MIXED.model()


def check_mixed(compiled: CompiledModel) -> None:
    """Few numbers are other than ONNX Runtime's, and none by much."""
    actual = compiled.run(MIXED.values)
    for name, expected in reference(MIXED_MODEL, MIXED.values).items():
        apart = np.abs(np.subtract(actual[name], expected, dtype="float64"))
        is_real = expected.dtype.kind == "f"
        assert apart.max() <= (0.1 if is_real else 4), name
        assert np.mean(apart > (1e-3 if is_real else 0)) <= 0.02, name
