"""Inputs that are read where they are, wherever that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, reference, relative_error


def off_by(array: np.ndarray, offset: int) -> np.ndarray:
    """The array, so many bytes behind a multiple of 64."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    begin = -raw.ctypes.data % 64 + offset
    moved = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def was_copied(model: tvm_edge.CompiledModel) -> bool:
    """Whether a run brought an input to memory of ours."""
    return model._session.inputs_staged > 0


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


CONV = ([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], normal(8, 3, 3, 3))
BLOCKED = ([helper.make_node("Conv", ["x", "w"], ["y"])], normal(32, 32, 1, 1))
MATMUL = ([helper.make_node("MatMul", ["x", "w"], ["y"])], normal(48, 40))
ADD = ([helper.make_node("Add", ["x", "w"], ["y"])], normal(33))
READ_TWICE = (
    [
        helper.make_node("Relu", ["x"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["u"]),
        helper.make_node("Add", ["u", "x"], ["y"]),
    ],
    normal(48, 48),
)
VIEWED = (
    [helper.make_node("Flatten", ["x"], ["v"]), helper.make_node("Add", ["v", "w"], ["y"])],
    normal(33),
)


@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (CONV, (1, 3, 14, 14)),
        (BLOCKED, (1, 32, 9, 9)),
        (MATMUL, (5, 48)),
        (ADD, (7, 33)),
        (READ_TWICE, (5, 48)),
        (VIEWED, (2, 3, 11)),
    ],
    ids=["conv", "blocked", "matmul", "add", "read twice", "viewed"],
)
@pytest.mark.usefixtures("optimised")
def test_they_are_not_copied(
    graph: tuple[list[onnx.NodeProto], np.ndarray], shape: tuple[int, ...]
) -> None:
    nodes, weights = graph
    proto = make_model(nodes, {"x": shape}, ["y"], {"w": weights})
    model = tvm_edge.compile(proto, "llvm")
    x = normal(*shape)
    expected = reference(proto, {"x": x})["y"]
    for offset in range(0, 64, 4):
        assert relative_error(model.run({"x": off_by(x, offset)})["y"], expected) < 1e-5
    assert not was_copied(model)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "int64", "float64"])
@pytest.mark.usefixtures("optimised")
def test_elements_of_any_size(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    model = tvm_edge.compile(make_model(nodes, {"x": (300,)}, ["y"], dtypes={"x": kind}), "llvm")
    x = np.arange(300).astype(dtype)
    for offset in range(0, 64, x.itemsize):
        np.testing.assert_array_equal(model.run({"x": off_by(x, offset)})["y"], x.astype("f4"))
    assert not was_copied(model)


@pytest.mark.usefixtures("optimised")
def test_elements_that_are_not_whole_are_copied() -> None:
    nodes, weights = ADD
    model = tvm_edge.compile(make_model(nodes, {"x": (7, 33)}, ["y"], {"w": weights}), "llvm")
    x = normal(7, 33)
    np.testing.assert_array_equal(model.run({"x": off_by(x, 2)})["y"], x + weights)
    assert was_copied(model)


@pytest.mark.parametrize("last", [["Identity"], ["Reshape", "Identity"]], ids="+".join)
@pytest.mark.usefixtures("optimised")
def test_what_the_model_returns_is_copied(last: list[str]) -> None:
    """It is the caller's then, whatever becomes of the input."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    if "Reshape" in last:
        nodes += [helper.make_node("Reshape", ["x", "shape"], ["v"])]
    nodes += [helper.make_node("Identity", ["v" if "Reshape" in last else "x"], ["z"])]
    proto = make_model(nodes, {"x": (2, 48)}, ["y", "z"], {"shape": np.array([96], np.int64)})
    model = tvm_edge.compile(proto, "llvm")
    x = normal(2, 48)
    given = off_by(x, 4)
    found = model.run({"x": given})
    for name, expected in reference(proto, {"x": x}).items():
        np.testing.assert_array_equal(found[name], expected)
        assert not np.shares_memory(found[name], given)
    assert was_copied(model)


@pytest.mark.usefixtures("optimised")
def test_several_models_and_one_of_them(tmp_path: Path) -> None:
    """One's input is read anywhere, the other's is not."""
    nodes, weights = MATMUL
    plain = make_model(nodes, {"x": (5, 48)}, ["y"], {"w": weights})
    returned = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    other = make_model(returned, {"x": (5, 48)}, ["y", "z"])
    both = tvm_edge.compile({"a": other, "b": plain}, "llvm")
    both.export(tmp_path / "both.tvme")
    model = tvm_edge.load(tmp_path / "both.tvme")
    assert model._session.inputs_anywhere == {1}
    x = off_by(normal(5, 48), 4)
    assert x.ctypes.data % 64
    found = model.run({"a/x": x, "b/x": x})
    np.testing.assert_array_equal(found["a/y"], np.maximum(x, 0))
    assert relative_error(found["b/y"], x @ weights) < 1e-5
    alone = tvm_edge.load(tmp_path / "both.tvme")
    assert relative_error(alone.run({"b/x": x}, models=["b"])["b/y"], x @ weights) < 1e-5
    assert not was_copied(alone)
