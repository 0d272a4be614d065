"""Tensors of open shape share the parts of an arena, which runs of other shapes use again."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm_ffi
from onnx import ModelProto, helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference

_SHAPES = [(1, 8, 40, 40), (2, 8, 24, 56), (1, 8, 39, 17), (3, 8, 5, 64), (1, 8, 1, 1)]


def chain() -> ModelProto:
    """Convolutions in a row, a branch that is alive beside them, and two results."""
    names = ["a", "b", "c", "d"]
    nodes = []
    last = "x"
    for name in names:
        strides = [2, 2] if name == "c" else [1, 1]
        nodes.append(
            helper.make_node("Conv", [last, f"w_{name}"], [name], pads=[1] * 4, strides=strides)
        )
        last = name
    nodes += [
        helper.make_node("Add", ["b", "x"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Mul", ["d", "f"], ["y"]),
        helper.make_node("Relu", ["b"], ["z"]),
    ]
    weights = {f"w_{name}": random_input((8, 8, 3, 3), i) for i, name in enumerate(names)}
    return make_model(nodes, {"x": ("n", 8, "h", "w")}, ["y", "z"], weights)


@pytest.fixture(scope="module")
def model() -> tuple[ModelProto, tvm_edge.CompiledModel]:
    made = chain()
    return made, tvm_edge.compile(made, "llvm", num_threads=2)


def test_every_shape_has_the_results_of_onnx_runtime(
    model: tuple[ModelProto, tvm_edge.CompiledModel],
) -> None:
    made, compiled = model
    for seed, shape in enumerate(_SHAPES):
        inputs = {"x": random_input(shape, seed)}
        found, expected = compiled.run(inputs), reference(made, inputs)
        for name in ("y", "z"):
            error = np.abs(found[name] - expected[name]).max()
            assert error < 1e-5 * np.abs(expected[name]).max()


def test_results_are_not_in_the_arena(
    model: tuple[ModelProto, tvm_edge.CompiledModel],
) -> None:
    _, compiled = model
    first = compiled.run({"x": random_input((1, 8, 40, 40), 1)})
    kept = {name: value.copy() for name, value in first.items()}
    for shape in _SHAPES:
        compiled.run({"x": random_input(shape, 2)})
    for name, value in kept.items():
        np.testing.assert_array_equal(first[name], value)


def test_runs_beside_each_other_have_arenas_of_their_own(
    model: tuple[ModelProto, tvm_edge.CompiledModel],
) -> None:
    _, compiled = model
    inputs = [{"x": random_input(shape, seed)} for seed, shape in enumerate(_SHAPES * 8)]
    alone = [compiled.run(each) for each in inputs]
    others = [tvm_edge.compile(chain(), "llvm", num_threads=1) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(m.run, each) for each in inputs for m in (compiled, *others)]
        found = [run.result() for run in runs]
    for number, expected in enumerate(alone):
        for result in found[3 * number : 3 * number + 3]:
            np.testing.assert_array_equal(result["z"], expected["z"])


def test_a_smaller_shape_takes_no_memory_of_its_own() -> None:
    """Sixteen widths, each seen for the first time, after a run of a larger one."""
    made = make_model(
        [
            helper.make_node("Tile", ["x", "often"], ["t"]),
            helper.make_node("Relu", ["t"], ["r"]),
            helper.make_node("ReduceSum", ["r", "axes"], ["y"], keepdims=0),
        ],
        {"x": (1, "w")},
        ["y"],
        {"often": np.int64([1000, 1]), "axes": np.int64([0])},
    )
    compiled = tvm_edge.compile(made, "llvm", num_threads=1)
    widest = np.ones((1, 2000), "float32")
    compiled.run({"x": widest})
    compiled.run({"x": widest})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for width in range(1000, 1960, 60):
        compiled.run({"x": np.ones((1, width), "float32")})
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 2000  # of 16 * 1,465: a tile is 4 to 8 MB


def _parts(*sizes: int) -> list[tvm_ffi.Tensor]:
    return list(tvm_ffi.get_global_func("vm.builtin.tvm_edge.arena_parts")(tvm_ffi.Shape(sizes)))


def test_parts_are_apart_and_aligned() -> None:
    parts = [np.from_dlpack(part) for part in _parts(100, 0, 1, 5000)]
    assert [part.shape for part in parts] == [(100,), (0,), (1,), (5000,)]
    starts = [part.ctypes.data for part in parts]
    assert all(start % 64 == 0 for start in starts)
    assert starts[2] - starts[0] >= 100
    assert starts[3] - starts[2] >= 64


def test_a_block_grows_and_is_used_again() -> None:
    tvm_ffi.get_global_func("tvm_edge.release_arenas")()
    small = np.from_dlpack(_parts(4096)[0]).ctypes.data
    assert np.from_dlpack(_parts(64)[0]).ctypes.data == small
    large = np.from_dlpack(_parts(1 << 26)[0]).ctypes.data
    assert np.from_dlpack(_parts(4096)[0]).ctypes.data == large


@pytest.mark.parametrize("sizes", [(1 << 62,), (1 << 61, 1 << 61, 1 << 61), (-1,), (1 << 47,)])
def test_more_than_there_is(sizes: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="bad_alloc"):
        _parts(*sizes)
    assert len(_parts(64)) == 1  # and the next run has an arena again
