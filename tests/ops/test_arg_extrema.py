"""Indices of extrema are NumPy's, whatever the type, on every device."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_edge


@pytest.fixture(params=["llvm", "opencl"])
def target(request: pytest.FixtureRequest) -> str:
    if request.param == "opencl":
        request.getfixturevalue("on_opencl")
    return str(request.param)


def indices(x: np.ndarray, target: str) -> dict[str, np.ndarray]:
    """Indices over both axes; those of the last extremum end in ``last``."""
    nodes, results = [], []
    for op in ("ArgMax", "ArgMin"):
        for axis in (0, 1):
            for last in (0, 1):
                name = f"{op}{axis}{'last' if last else ''}"
                options = {"axis": axis, "select_last_index": last, "keepdims": 0}
                nodes.append(helper.make_node(op, ["x"], [name], **options))
                results.append(helper.make_tensor_value_info(name, TensorProto.INT64, None))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", kind, x.shape)]
    graph = helper.make_graph(nodes, "test", inputs, results)
    opsets = [helper.make_opsetid("", 14)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return tvm_edge.compile(model, target).run({"x": x})


def check(x: np.ndarray, target: str) -> None:
    for name, actual in indices(x, target).items():
        find = np.argmax if "Max" in name else np.argmin
        axis = int(name[6])
        expected = find(x, axis)
        if "last" in name:
            expected = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
        np.testing.assert_array_equal(actual, expected, name)


def test_the_first_nan_wins(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((37, 21)).astype("float32")
    x[3, 4], x[9, 4], x[3, 17] = np.nan, np.nan, -np.nan
    x[4], x[:, 6], x[20], x[21, 3] = -np.inf, np.inf, np.nan, np.inf
    x[30] = 0
    x[30, ::2] = -0.0
    check(x, target)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int64"])
def test_the_least_of_a_type_has_an_index(dtype: str, target: str) -> None:
    """TVM's kernels return -1 of a line that has nothing else."""
    if dtype == "float64" and target == "opencl":
        pytest.skip("devices need not know it")
    kind = np.dtype(dtype)
    limits = (-np.inf, np.inf) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    x = np.random.default_rng(0).integers(0, 3, (33, 18)).astype(kind)
    x[1], x[2], x[:, 3], x[:, 4] = *limits, *limits
    check(x, target)
