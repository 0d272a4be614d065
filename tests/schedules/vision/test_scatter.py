"""Scatters agree with ONNX Runtime, and where indices repeat updates come in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax, tirx

import tvm_edge
from tests.onnx_models import make_model, reference
from tests.schedules.vision.harness import assert_same_bits, run_operator

each_target = pytest.mark.parametrize("target", ["llvm", "opencl"], indirect=True)

REDUCE = {
    "update": lambda _, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": lambda old, new: new if old < new else old,
    "min": lambda old, new: new if new < old else old,
}


def inside(index: Any, length: int) -> Any:
    """Negative indices count from the end; those outside take the nearest place."""
    return np.clip(int(index) + (length if index < 0 else 0), 0, length - 1)


def scatter_elements(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, reduction: str
) -> np.ndarray:
    """ONNX's definition, update after update."""
    result = data.copy()
    for place in np.ndindex(indices.shape):
        to = list(place)
        to[axis] = int(inside(indices[place], data.shape[axis]))
        result[tuple(to)] = REDUCE[reduction](result[tuple(to)], updates[place])
    return result


def scatter_nd(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str
) -> np.ndarray:
    """ONNX's definition, update after update."""
    result = data.copy()
    for place in np.ndindex(indices.shape[:-1]):
        to = tuple(int(inside(i, n)) for i, n in zip(indices[place], data.shape, strict=False))
        rest = data.shape[indices.shape[-1] :]
        for inner in np.ndindex(rest):
            at = (*to, *inner)
            result[at] = REDUCE[reduction](result[at], updates[(*place, *inner)])
    return result


def tensors(
    seed: int, data: tuple[int, ...], updates: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers: their sums and products are exact in any order, and still differ."""
    random = np.random.default_rng(seed)
    return tuple(random.integers(1, 4, shape).astype("float32") for shape in (data, updates))


ELEMENTS = {
    "along the first axis": ((7, 5), (3, 5), 0),
    "smaller on another axis": ((4, 6, 5), (3, 9, 2), 1),
    "a vector": ((50,), (400,), 0),
    "one element": ((1,), (1,), -1),
    "rows of two cores": ((30, 40), (29, 400), -1),
}


def combinations(cases: dict[str, Any]) -> Any:
    """Every reduction of every case on a CPU, and one of each on a GPU."""
    every = list(REDUCE)
    found = [(case, reduction, "llvm") for case in cases for reduction in every]
    on_gpu = [case for case in cases if "cores" not in case]
    found += [(case, every[i % 5], "opencl") for i, case in enumerate(on_gpu)]
    return pytest.mark.parametrize(("case", "reduction", "target"), found, indirect=["target"])


@pytest.mark.diagonals(4)
@combinations(ELEMENTS)
def test_elements(target: str, case: str, reduction: str) -> None:
    shape, at, axis = ELEMENTS[case]
    data, updates = tensors(0, shape, at)
    length = shape[axis]
    indices = np.random.default_rng(1).integers(-length, length, at)
    (actual,) = run_operator(
        target,
        lambda x, i, u: relax.op.scatter_elements(x, i, u, axis=axis, reduction=reduction),
        *(data, indices, updates),
    )
    expected = scatter_elements(data, indices, updates, axis % len(shape), reduction)
    np.testing.assert_array_equal(actual, expected)


SLICES = {
    "rows": ((9, 40), (6, 1)),
    "elements": ((3, 4, 5), (2, 30, 3)),
    "many rows": ((50, 3), (1500, 1)),
    "wide rows": ((3, 5000), (4, 1)),
    "rows of two cores": ((300, 12), (500, 1)),
    "a vector": ((9001,), (7, 1)),
}


@pytest.mark.diagonals(4)
@combinations(SLICES)
def test_slices(target: str, case: str, reduction: str) -> None:
    shape, tuples = SLICES[case]
    *rows, width = tuples
    data, updates = tensors(2, shape, (*rows, *shape[width:]))
    random = np.random.default_rng(3)
    indices = random.integers([-n for n in shape[:width]], shape[:width], tuples)
    (actual,) = run_operator(
        target, lambda x, i, u: relax.op.scatter_nd(x, i, u, reduction), data, indices, updates
    )
    np.testing.assert_array_equal(actual, scatter_nd(data, indices, updates, reduction))


@each_target
@pytest.mark.parametrize("reduction", ["update", "add"])
def test_constant_indices(target: str, reduction: str) -> None:
    """As models have them that were exported from assignments to slices."""
    data, updates = tensors(4, (4, 6, 5), (30, 5))
    indices = np.random.default_rng(5).integers(-4, 4, (30, 2)).astype("int64")
    (actual,) = run_operator(
        target,
        lambda x, u: relax.op.scatter_nd(x, relax.const(indices), u, reduction),
        *(data, updates),
    )
    np.testing.assert_array_equal(actual, scatter_nd(data, indices, updates, reduction))
    along = np.random.default_rng(6).integers(-4, 4, (9, 2, 5)).astype("int32")
    more = tensors(7, (), along.shape)[1]
    (actual,) = run_operator(
        target,
        lambda x, u: relax.op.scatter_elements(x, relax.const(along), u, 0, reduction),
        *(data, more),
    )
    np.testing.assert_array_equal(actual, scatter_elements(data, along, more, 0, reduction))


@each_target
def test_additions_come_in_the_order_of_the_updates(target: str) -> None:
    """The same bits in every run and on every device: rounding depends on the order."""
    random = np.random.default_rng(8)
    data, updates = random.standard_normal(9), random.standard_normal(3000)
    data, updates = data.astype("float32"), updates.astype("float32")
    indices = random.integers(0, 9, 3000)
    (actual,) = run_operator(
        target, lambda x, i, u: relax.op.scatter_elements(x, i, u, 0, "add"), data, indices, updates
    )
    assert_same_bits(actual, scatter_elements(data, indices, updates, 0, "add"))


@each_target
def test_indices_out_of_range_take_the_nearest_place(target: str) -> None:
    data, updates = tensors(9, (4, 5), (6, 5))
    indices = np.array([[-(2**63)], [2**63 - 1], [4], [-5], [2**31], [1]])
    (actual,) = run_operator(
        target, lambda x, i, u: relax.op.scatter_nd(x, i, u, "add"), data, indices, updates
    )
    np.testing.assert_array_equal(actual, scatter_nd(data, indices, updates, "add"))


ALL = ["none", "add", "mul", "max", "min"]
# What ONNX Runtime has for a type.
TYPES = {dtype: ALL for dtype in ("float64", "int8", "uint8", "int32", "int64")}
TYPES |= {"float16": ["none"], "bool": ["none", "add", "mul"]}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("dtype", list(TYPES))
def test_onnx(op: str, dtype: str) -> None:
    """Integers wrap around; for bools addition is "or" and multiplication "and"."""
    random = np.random.default_rng(10)
    shapes: dict[str, tuple[int, ...]] = {"x": (12, 3), "i": (40, 1), "u": (40, 3)}
    if op == "ScatterElements":
        shapes["i"] = (40, 3)
    names = [f"y{i}" for i in range(len(TYPES[dtype]))]
    nodes = [
        helper.make_node(op, ["x", "i", "u"], [name], reduction=reduction)
        for name, reduction in zip(names, TYPES[dtype], strict=True)
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    dtypes = {"i": TensorProto.INT64, **dict.fromkeys(["x", "u", *names], kind)}
    model = make_model(nodes, shapes, names, dtypes=dtypes, opset=18)
    feeds = {"i": random.integers(-12, 12, shapes["i"])}
    for name in ("x", "u"):
        feeds[name] = random.integers(0, 2 if dtype == "bool" else 3, shapes[name]).astype(dtype)
    expected = reference(model, feeds)
    actual = tvm_edge.compile(model, "llvm").run(feeds)
    for name in names:
        np.testing.assert_array_equal(actual[name], expected[name])


@pytest.mark.diagonals(2)
@each_target
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_numbers_that_are_none(target: str, reduction: str) -> None:
    """NaN in the data stays, as an update it counts for nothing; infinities are numbers."""
    data = np.array([np.nan, 1, -np.inf, np.inf, 2], "float32")
    updates = np.array([3, np.nan, 4, np.nan, np.inf, -np.inf], "float32")
    indices = np.array([0, 1, 2, 3, 4, 4])
    (actual,) = run_operator(
        target,
        lambda x, i, u: relax.op.scatter_elements(x, i, u, 0, reduction),
        *(data, indices, updates),
    )
    np.testing.assert_array_equal(actual, scatter_elements(data, indices, updates, 0, reduction))


def test_places_that_were_searched() -> None:
    """As many updates as were found in the run."""

    def build(x: relax.Var) -> relax.Expr:
        builder = relax.BlockBuilder.current()
        many = tirx.Var("many", "int64")
        found = builder.emit(relax.op.nonzero(x))
        found = builder.match_cast(found, relax.TensorType([2, many], "int64"))
        rows = builder.emit(relax.op.permute_dims(found))
        ones = builder.emit(relax.op.full((many,), relax.const(1.0, "float32")))
        return relax.op.scatter_nd(x, rows, ones, "add")

    data = (np.random.default_rng(11).random((6, 40)) < 0.5).astype("float32")
    (actual,) = run_operator("llvm", build, data)
    np.testing.assert_array_equal(actual, 2 * data)


def test_constant_data_on_the_cpu_beside_a_gpu(gpu: str) -> None:
    """The kernel is for the device of the updates: the data says nothing of where it runs."""
    nodes = [
        helper.make_node("Relu", ["u"], ["v"]),
        helper.make_node("ScatterND", ["x", "i", "v"], ["w"], reduction="add"),
        helper.make_node("Neg", ["w"], ["y"]),
    ]
    x = np.arange(15, dtype="float32").reshape(5, 3)
    kinds = {"i": TensorProto.INT64}
    model = make_model(nodes, {"i": (7, 1), "u": (7, 3)}, ["y"], {"x": x}, dtypes=kinds, opset=18)
    random = np.random.default_rng(12)
    feeds = {"i": random.integers(0, 5, (7, 1)), "u": random.random((7, 3)).astype("float32")}
    compiled = tvm_edge.compile(model, gpu, fallback=["ScatterND"])
    placed = {p.op_type: p.device for p in compiled.report.placements}
    assert placed["ScatterND"] == "llvm"
    assert placed["Neg"] == gpu
    expected = reference(model, feeds)["y"]
    np.testing.assert_allclose(compiled.run(feeds)["y"], expected, rtol=1e-6)
