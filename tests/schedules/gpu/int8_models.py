"""Convolutions of 8-bit numbers with awkward shapes, for kernels of GPUs."""

from __future__ import annotations

from tests.quantized_models import AWKWARD, QuantizedGraph

__all__ = ["SHAPES", "model_of"]

SHAPES = {
    **AWKWARD,
    "few filters": ((1, 8, 6, 9), (4, 8, 3, 3), {}),
    "odd channels": ((1, 7, 9, 8), (21, 7, 3, 3), {"pads": [1, 0, 1, 2]}),
    "odd groups": ((1, 18, 7, 7), (9, 6, 3, 3), {"pads": [1] * 4, "group": 3}),
    "two filters a channel": ((1, 6, 8, 8), (12, 1, 3, 3), {"pads": [1] * 4, "group": 6}),
    "one wide pixel": ((1, 96, 1, 1), (40, 96, 1, 1), {}),
    "many pixels": ((2, 20, 24, 20), (72, 20, 1, 1), {}),
}


def model_of(names: list[str], dtype: str) -> QuantizedGraph:
    """A convolution of each shape, some with a ReLU after it."""
    graph = QuantizedGraph(seed=len(names), dtype=dtype)
    for number, name in enumerate(names):
        image, filters, attributes = SHAPES[name]
        result = graph.conv(
            graph.input(*image), filters, name=name, per_channel=number % 2 == 0, **attributes
        )
        graph.quantized(graph.op("Relu", result) if number % 3 == 0 else result, 0.04)
    return graph
