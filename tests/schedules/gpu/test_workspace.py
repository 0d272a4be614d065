"""What the launches of a kernel hand to each other is allocated by its caller."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.onnx_models import make_model, reference, relative_error
from tests.schedules.gpu.harness import gpu_kernels
from tvm_edge.schedules.base import workspace_of


def softmax(rows: int, columns: int) -> onnx.ModelProto:
    """Between two nodes, so that its launches are recorded with others."""
    return make_model(
        [
            onnx.helper.make_node("Tanh", ["data"], ["bounded"]),
            onnx.helper.make_node("Softmax", ["bounded"], ["shares"], axis=2),
            onnx.helper.make_node("CumSum", ["shares", "axis"], ["sums"]),
        ],
        {"data": (1, rows, columns)},
        ["sums"],
        {"axis": np.array(2)},
    )


@pytest.mark.parametrize("columns", [7, 300])
def test_no_kernel_allocates(columns: int) -> None:
    """In global memory; the arrays of work-items and work-groups are theirs."""
    sizes = {}
    for kernel in gpu_kernels(softmax(40, columns)):
        func = kernel.scheduled.func
        if func.attrs.get("tirx.is_scheduled", False):
            continue
        assert {b.scope() for b in func.body.block.alloc_buffers} <= {"local", "shared"}
        sizes[kernel.name] = [prod(int(d) for d in b.shape) for b in workspace_of(func)]
    (of_softmax,) = (size for name, size in sizes.items() if "softmax" in name)
    assert set(of_softmax) <= {40, 40 * columns} and of_softmax


def test_it_is_recorded_with_the_kernels_around_it(gpu: str) -> None:
    """Where the driver records; a warning would say that it could not, and fail this test."""
    model = softmax(40, 7)
    data = np.random.default_rng(0).standard_normal((1, 40, 7)).astype("float32")
    compiled = tvm_edge.compile(model, gpu, fallback="none")
    for _ in range(3):  # recorded in the first
        actual = compiled.run({"data": data})["sums"]
        assert relative_error(actual, reference(model, {"data": data})["sums"]) <= 1e-5
    assert compiled.report.memory is not None
