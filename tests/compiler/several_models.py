"""A model to go beside another, and what both compute together and alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

import tvm_edge
from tests.onnx_models import random_input, reference, relative_error
from tests.relay_passes.concatenations import conv
from tests.schedules.harness import Graph

Values = dict[str, np.ndarray]


def pose() -> onnx.ModelProto:
    """Two branches, two outputs, an image of odd size; tensors are called as in `conv_relu`."""
    graph = Graph(3)
    data = conv(graph, graph.input(1, 8, 9, 7), 8, 16)
    graph.output(conv(graph, data, 16, 12, 1))
    graph.output(graph.op("Softmax", conv(graph, data, 16, 10), axis=1))
    return graph.model()


def inputs_of(models: Mapping[str, onnx.ModelProto], seed: int = 0) -> Values:
    values = {}
    for name, model in models.items():
        constants = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name not in constants:
                shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
                seed += 1
                values[f"{name}/{value.name}"] = random_input(shape, seed)
    return values


def expected_of(models: Mapping[str, onnx.ModelProto], values: Values) -> Values:
    found = {}
    for name, model in models.items():
        prefix = f"{name}/"
        own = {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
        found |= {prefix + tensor: out for tensor, out in reference(model, own).items()}
    return found


def assert_close(actual: Mapping[str, np.ndarray], expected: Values) -> None:
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert relative_error(actual[name], value) < 1e-5, name


def check(
    compiled: tvm_edge.CompiledModel, models: Mapping[str, onnx.ModelProto], seeds: Sequence[int]
) -> None:
    """All together and each alone agree with ONNX Runtime."""
    for seed in seeds:
        values = inputs_of(models, 10 * seed)
        expected = expected_of(models, values)
        assert_close(compiled.run(values), expected)
        for name in models:
            prefix = f"{name}/"
            given = {n: v for n, v in values.items() if n.startswith(prefix)}
            alone = {n: v for n, v in expected.items() if n.startswith(prefix)}
            assert_close(compiled.run(given, models=[name]), alone)
