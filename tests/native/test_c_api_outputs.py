"""Results in memory of the caller's: kernels write them there, or they are copied."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto, helper

import tvm_edge
from tests.native.c_api import CModel, Failed, RunOptions, Tensor, aligned, tensor_of
from tests.onnx_models import conv_relu, make_model, random_input

SHAPE = (4, 16)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An input that is a result, a result that is read, and one twice."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("Softmax", ["positive"], ["shares"]),
        helper.make_node("Identity", ["shares"], ["again"]),
        helper.make_node("Identity", ["x"], ["same"]),
    ]
    outputs = ["positive", "shares", "again", "same"]
    model = make_model(nodes, {"x": SHAPE}, outputs)
    folder = tmp_path_factory.mktemp("outputs")
    return tvm_edge.compile(model, "llvm").export(folder / "steps.tvme")


@pytest.mark.parametrize("beside", [0, 4])
def test_results_that_are_read_twice_or_inputs(steps: Path, beside: int) -> None:
    python, model = tvm_edge.load(steps), CModel(steps)
    room = {spec.name: aligned(SHAPE, beside=beside) for spec in python.outputs}
    for seed in range(3):
        x = {"x": random_input(SHAPE, seed)}
        expected = python.run(x)
        model.run_into(x, room)
        for name, value in expected.items():
            np.testing.assert_array_equal(room[name], value)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_memory_is_taken_for_a_result_that_lies_there(tmp_path: Path) -> None:
    """40 MiB, which were allocated and copied: more than the C library keeps for itself."""
    shape = (10, 1 << 20)
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, ["y"])
    path = tvm_edge.compile(model, "llvm", num_threads=1).export(tmp_path / "wide.tvme")
    loaded, x = CModel(path), {"x": aligned(shape)}
    x["x"][:] = random_input(shape)
    clear = tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")
    taken: dict[int, list[int]] = {}
    for beside in (0, 4):
        room = aligned(shape, beside=beside)
        taken[beside] = []
        for _ in range(3):  # what ran before in this process may give memory back meanwhile
            room[:] = 0  # its pages are there
            clear()
            before = resident()
            loaded.run_into(x, {"y": room})
            taken[beside].append(resident() - before)
        np.testing.assert_array_equal(room, np.maximum(x["x"], 0))
    assert min(taken[0]) < 4 << 20 < 36 << 20 < max(taken[4])


def test_memory_that_overlaps(tmp_path: Path) -> None:
    """With an input that kernels still read, or with another result: both are right."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["y"], axis=0),
        helper.make_node("Mul", ["x", "y"], ["z"]),
    ]
    model = make_model(nodes, {"x": SHAPE}, ["y", "z"])
    path = tvm_edge.compile(model, "llvm").export(tmp_path / "model.tvme")
    python, loaded = tvm_edge.load(path), CModel(path)
    x = aligned(SHAPE)
    x[:] = random_input(SHAPE)
    expected = python.run({"x": x.copy()})
    z = aligned(SHAPE)
    loaded.run_into({"x": x}, {"y": x, "z": z})
    np.testing.assert_array_equal(x, expected["y"])
    np.testing.assert_array_equal(z, expected["z"])
    x[:] = random_input(SHAPE)
    loaded.run_into({"x": x}, {"y": z, "z": z})  # the last one wins
    np.testing.assert_array_equal(z, expected["z"])


def test_open_shapes_and_results_of_unknown_size(tmp_path: Path) -> None:
    """Room for the largest; how much of it there is, the run says."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    kinds = {"places": TensorProto.INT64}
    model = make_model(nodes, {"x": ("n",)}, ["places", "y"], dtypes=kinds)
    path = tvm_edge.compile(model, "llvm").export(tmp_path / "model.tvme")
    loaded, one, two = CModel(path), c_size_t(1), c_size_t(2)
    places, y = aligned((1, 64), "int64"), aligned((64,))
    for x in (np.array([0, 3, 0, 5, 0.0], "float32"), np.zeros(1, "float32"), random_input((64,))):
        room = (Tensor * 2)(tensor_of("places", places), tensor_of("y", y))
        given = tensor_of("x", x)
        loaded.library.call("run", loaded.handle, None, byref(given), one, room, two)
        expected = np.flatnonzero(x)
        assert [*room[0].shape[:2]] == [1, len(expected)] and room[1].shape[0] == len(x)
        np.testing.assert_array_equal(places.ravel()[: len(expected)], expected)
        np.testing.assert_array_equal(y[: len(x)], np.maximum(x, 0))
    room = (Tensor * 2)(tensor_of("places", places[:, :1]), tensor_of("y", y))
    given = tensor_of("x", np.ones(2, "float32"))
    with pytest.raises(Failed, match="'places' has 16 bytes, and the memory for it 8"):
        loaded.library.call("run", loaded.handle, None, byref(given), one, room, two)


def test_some_models_of_several(tmp_path: Path) -> None:
    """Each runs by a function of its own, whose results begin at none again."""
    models = {name: conv_relu(seed) for seed, name in enumerate("abc")}
    path = tvm_edge.compile(models, "llvm").export(tmp_path / "three.tvme")
    python, loaded = tvm_edge.load(path), CModel(path)
    x = {f"{name}/data": random_input((1, 3, 16, 16), seed) for seed, name in enumerate("abc")}
    expected = python.run(x)
    room = {name: aligned(value.shape) for name, value in expected.items()}
    loaded.run_into(x, room)
    for name, value in expected.items():
        np.testing.assert_array_equal(room[name], value)
        room[name][:] = 0
    some = ("c", "a")
    given = (Tensor * 2)(*(tensor_of(f"{name}/data", x[f"{name}/data"]) for name in some))
    wanted = (Tensor * 2)(*(tensor_of(f"{name}/pooled", room[f"{name}/pooled"]) for name in some))
    names = (c_char_p * 2)(*(name.encode() for name in some))
    options = RunOptions(ctypes.sizeof(RunOptions), names, 2, 0)
    two = c_size_t(2)
    loaded.library.call("run", loaded.handle, byref(options), given, two, wanted, two)
    for name in some:
        np.testing.assert_array_equal(room[f"{name}/pooled"], expected[f"{name}/pooled"])
    assert not room["b/pooled"].any()


def test_a_run_in_the_background(artifact: Path) -> None:
    loaded, one = CModel(artifact), c_size_t(1)
    x = random_input((1, 3, 16, 16))
    expected = tvm_edge.load(artifact).run({"data": x})["pooled"]
    room, handle = aligned(expected.shape), c_void_p()
    output = tensor_of("pooled", room)
    loaded.library.call(
        *("run_async", loaded.handle, None, byref(tensor_of("data", x)), one),
        *(byref(output), one, one, byref(handle)),
    )
    loaded.library.call("wait", handle)
    np.testing.assert_array_equal(room, expected)


def test_a_run_that_fails_leaves_the_next_one_right(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["data"], ["y"]),
        helper.make_node("Reshape", ["data", "shape"], ["z"]),
    ]
    dtypes = {"shape": TensorProto.INT64}
    model = make_model(nodes, {"data": (2, 6), "shape": (2,)}, ["y", "z"], dtypes=dtypes)
    path = tvm_edge.compile(model, "llvm").export(tmp_path / "model.tvme")
    loaded = CModel(path)
    x = {"data": random_input((2, 6)), "shape": np.array([5, 3])}
    room = {"y": aligned((2, 6)), "z": aligned((3, 4))}
    with pytest.raises(Failed, match="check the values"):
        loaded.run_into(x, room)
    x["shape"] = np.array([3, 4])
    found = loaded.run(x, ["y"])["y"]  # not in the memory of the run that failed
    room["y"][:] = 7
    np.testing.assert_array_equal(found, np.maximum(x["data"], 0))
    loaded.run_into(x, room)
    np.testing.assert_array_equal(room["y"], np.maximum(x["data"], 0))
    np.testing.assert_array_equal(room["z"], x["data"].reshape(3, 4))
