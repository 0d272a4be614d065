"""Recurrent layers as one kernel of a CPU and step by step, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.marks import in_full
from tests.onnx_models import make_model, reference
from tvm_edge.frontend import load_model
from tvm_edge.ops.recurrence import RECURRENCE
from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call
from tvm_edge.relay_passes.simplify.unroll_recurrences import UnrollRecurrences

STEPS, FEATURES = 7, 5
LAYERS = [
    ("LSTM", 20, 1, {}),
    ("LSTM", 16, 2, {"direction": "bidirectional"}),
    ("GRU", 20, 2, {"linear_before_reset": 1, "direction": "bidirectional"}),
    ("GRU", 35, 1, {"direction": "reverse"}),
    ("RNN", 33, 1, {}),
    ("LSTM", 185, 1, {"input_forget": 1}),  # cores divide the units of one sequence
]


def network(batch: Any, steps: Any = STEPS, layers: Sequence[Any] = LAYERS) -> onnx.ModelProto:
    """Layers beside each other, of one sequence and of the lengths of its batch's members."""
    random = np.random.default_rng(3)
    nodes, weights = [], {}
    for number, (kind, hidden, directions, attributes) in enumerate(layers):
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * hidden
        for name, shape in {
            f"w{number}": (directions, gates, FEATURES),
            f"r{number}": (directions, gates, hidden),
            f"b{number}": (directions, 2 * gates),
        }.items():
            scale = shape[-1] ** -0.5  # states do not run to their bounds
            weights[name] = random.uniform(-scale, scale, shape).astype("float32")
        operands = ["x", *(f"{name}{number}" for name in "wrb"), "lengths"]
        results = [f"y{number}", f"last{number}"]
        nodes.append(helper.make_node(kind, operands, results, hidden_size=hidden, **attributes))
    outputs = [name for node in nodes for name in node.output]
    inputs = {"x": (steps, batch, FEATURES), "lengths": (batch,)}
    kinds = {"lengths": TensorProto.INT32}
    return make_model(nodes, inputs, outputs, weights, dtypes=kinds)


def inputs_of(batch: int, steps: int = STEPS) -> dict[str, np.ndarray]:
    random = np.random.default_rng()
    return {
        "x": random.standard_normal((steps, batch, FEATURES)).astype("float32"),
        "lengths": random.integers(1, steps + 1, batch).astype("int32"),
    }


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("batch", [5, *in_full(1)])
def test_one_kernel_runs_a_layer(batch: int) -> None:
    """A core has four sequences of a batch of five at a time, and then one."""
    model, inputs = network(batch), inputs_of(batch)
    compiled = tvm_edge.compile(model, "llvm", num_threads=2, tuning_logs=False)
    check(compiled.run(inputs), reference(model, inputs))
    kernels = [kernel.name for kernel in compiled.report.kernels]
    assert sum("recurrence" in name for name in kernels) == len(LAYERS)


def test_lengths_of_the_run() -> None:
    model = network("n", "t")
    compiled = tvm_edge.compile(model, "llvm", num_threads=2, tuning_logs=False)
    for batch, steps in ((1, 1), (6, 9)):
        inputs = inputs_of(batch, steps)
        check(compiled.run(inputs), reference(model, inputs))


def test_step_by_step_for_gpus() -> None:
    """The pass of other devices, compiled for a CPU."""
    model, inputs = network(2, 2, LAYERS[3:4]), inputs_of(2, 2)
    module = UnrollRecurrences()(load_model(model).module)
    assert not any(is_call(each.value, RECURRENCE) for each in bindings_of(module["main"]))
    given = dict(zip(("input0", "input1"), inputs.values(), strict=True))
    found = tvm_edge.compile(module, "llvm", tuning_logs=False).run(given)
    expected = reference(model, inputs)
    check(dict(zip(expected, found.values(), strict=True)), expected)
