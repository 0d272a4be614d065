"""Steps of optimisers of ``ai.onnx.preview.training``, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_edge

DOMAIN = "ai.onnx.preview.training"
Arrays = list[np.ndarray]


def adagrad(
    rate: float,
    updates: int,
    tensors: Arrays,
    *,
    decay_factor: float = 0.0,
    norm_coefficient: float = 0.0,
    epsilon: float = 1e-6,
) -> Arrays:
    x, gradient, squares = tensors
    gradient = norm_coefficient * x + gradient
    squares = squares + gradient**2
    rate = rate / (1 + updates * decay_factor)
    return [x - rate * gradient / (np.sqrt(squares) + epsilon), squares]


def adam(
    rate: float,
    updates: int,
    tensors: Arrays,
    *,
    alpha: float = 0.9,
    beta: float = 0.999,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    epsilon: float = 1e-6,
) -> Arrays:
    x, gradient, mean, squares = tensors
    gradient = norm_coefficient * x + gradient
    mean = alpha * mean + (1 - alpha) * gradient
    squares = beta * squares + (1 - beta) * gradient**2
    if updates > 0:
        rate *= np.sqrt(1 - beta**updates) / (1 - alpha**updates)
    x = x - rate * mean / (np.sqrt(squares) + epsilon)
    return [(1 - norm_coefficient_post) * x, mean, squares]


def momentum(
    rate: float,
    updates: int,
    tensors: Arrays,
    *,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> Arrays:
    x, gradient, velocity = tensors
    gradient = norm_coefficient * x + gradient
    velocity = alpha * velocity + (beta if updates > 0 else 1.0) * gradient
    direction = gradient + alpha * velocity if mode == "nesterov" else velocity
    return [x - rate * direction, velocity]


STEPS = {"Adagrad": (adagrad, 3), "Adam": (adam, 4), "Momentum": (momentum, 3)}
STANDARD = {"alpha": 0.9, "beta": 0.3, "mode": "standard", "norm_coefficient": 0.01}
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("Adagrad", 0, {}),
    ("Adagrad", 3, {"decay_factor": 0.2, "norm_coefficient": 0.05, "epsilon": 1e-4}),
    ("Adam", 0, {}),
    ("Adam", 1, {"norm_coefficient": 0.02}),
    ("Adam", 7, {"alpha": 0.8, "beta": 0.95, "norm_coefficient_post": 0.1, "epsilon": 1e-3}),
    ("Momentum", 0, STANDARD),
    ("Momentum", 5, STANDARD),
    ("Momentum", 5, {**STANDARD, "mode": "nesterov"}),
]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("operator", "updates", "attributes"), CASES)
def test_a_step_of_two_tensors(
    operator: str, updates: int, attributes: dict[str, Any], target: str
) -> None:
    """Of a scalar and of a matrix of odd lengths: each by itself, results sorted by kind."""
    step, parts = STEPS[operator]
    random = np.random.default_rng(updates)
    shapes = [(), (3, 7)]
    # The last of a tensor's parts are sums of squares.
    own = [[np.asarray(random.standard_normal(s), "float32") for _ in range(parts)] for s in shapes]
    for tensors in own:
        tensors[-1] = np.asarray(np.abs(tensors[-1]))
    names = [f"{i}_{part}" for part in range(parts) for i in range(2)]
    made = [f"{name}_new" for name in names if not name.endswith("_1")]
    inputs = {f"{i}_{part}": own[i][part] for part in range(parts) for i in range(2)}
    node = helper.make_node(operator, ["r", "t", *names], made, domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "step",
        [
            helper.make_tensor_value_info("r", TensorProto.FLOAT, ()),
            helper.make_tensor_value_info("t", TensorProto.INT64, ()),
            *(helper.make_tensor_value_info(n, 1, inputs[n].shape) for n in names),
        ],
        [helper.make_tensor_value_info(n, 1, shapes[int(n[0])]) for n in made],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, 1)], ir_version=8)
    rate = np.asarray(0.1, "float32")
    given = {"r": rate, "t": np.asarray(updates, "int64"), **inputs}
    found = tvm_edge.compile(model, target).run(given)
    for i, tensors in enumerate(own):
        wide = [tensor.astype("float64") for tensor in tensors]
        expected = step(0.1, updates, wide, **attributes)
        kept = [part for part in range(parts) if part != 1]
        for part, value in zip(kept, expected, strict=True):
            np.testing.assert_allclose(found[f"{i}_{part}_new"], value, rtol=1e-4, atol=1e-5)
