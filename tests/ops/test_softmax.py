"""Softmax and its logarithm on a CPU, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, reference

# Whole pieces of some vectors, a vector and less, rows side by side of less than two vectors and
# of more, tiles of columns with a rest, one step, many.
SHAPES = [
    ((3, 197), 1),
    ((2, 3, 49), -1),
    ((1, 1000), -1),
    ((5, 7), 1),
    ((4, 1), 1),
    ((2, 30, 4), 1),
    ((3, 7, 20), 1),
    ((2, 21, 13, 17), 1),
    ((19, 65, 65), 0),
]


def _network(shapes: list[tuple[tuple[Any, ...], int]]) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, [f"x{i}"], [f"{op}{i}"], axis=axis)
        for i, (_, axis) in enumerate(shapes)
        for op in ("Softmax", "LogSoftmax")
    ]
    inputs = {f"x{i}": shape for i, (shape, _) in enumerate(shapes)}
    return make_model(nodes, inputs, [node.output[0] for node in nodes])


def _check(model: tvm_edge.CompiledModel, inputs: dict[str, np.ndarray], axes: list[int]) -> None:
    found = model.run(inputs)
    for i, axis in enumerate(axes):
        x = inputs[f"x{i}"].astype("float64")
        shifted = x - x.max(axis, keepdims=True)
        logarithm = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
        np.testing.assert_allclose(found[f"Softmax{i}"], np.exp(logarithm), rtol=2e-6, atol=1e-12)
        np.testing.assert_allclose(found[f"LogSoftmax{i}"], logarithm, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("target", ["llvm", {"kind": "llvm", "mcpu": "haswell"}], ids=str)
def test_rows_of_any_length(target: Any) -> None:
    random = np.random.default_rng()
    inputs = {
        f"x{i}": (4 * random.standard_normal(shape)).astype("float32")
        for i, (shape, _) in enumerate(SHAPES)
    }
    model = tvm_edge.compile(_network(SHAPES), target, tuning_logs=False)
    _check(model, inputs, [axis for _, axis in SHAPES])


def test_rows_of_open_lengths() -> None:
    open_shapes = [(("n", "m"), 1), (("m", "n", 3), 1), (("m", 5, "n"), 1)]
    model = tvm_edge.compile(_network(open_shapes), "llvm", tuning_logs=False)
    random = np.random.default_rng()
    for n, m in ((1, 1), (87, 5), (3, 203)):
        sizes = {"n": n, "m": m}
        inputs = {
            f"x{i}": random.standard_normal([sizes.get(d, d) for d in shape]).astype("float32")
            for i, (shape, _) in enumerate(open_shapes)
        }
        _check(model, inputs, [axis for _, axis in open_shapes])


def test_infinities_and_not_a_number() -> None:
    """A row without a finite largest element has no softmax, as in ONNX Runtime."""
    x = np.zeros((6, 40), "float32")
    x[0], x[1, 3], x[2, 5], x[3, 1:] = -np.inf, np.inf, np.nan, -np.inf
    x[4], x[5, ::2] = 1e38, -1e38
    network = _network([(x.shape, 1), (x.T.shape, 0)])
    inputs = {"x0": x, "x1": np.ascontiguousarray(x.T)}
    found = tvm_edge.compile(network, "llvm", tuning_logs=False).run(inputs)
    for name, expected in reference(network, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name)
