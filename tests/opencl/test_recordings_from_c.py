"""Recorded launches of models that C runs: replayed, given up with a message, by threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
import tvm_edge.opencl
from tests.native.c_api import CModel, Failed, Library
from tests.onnx_models import make_model, random_input
from tests.opencl.conftest import clear_shim
from tests.opencl.support import MASKED, OUT_OF_HOST_MEMORY, Shim, Worker, worker

SHAPE = (1, 8, 12, 12)
LAYERS = 5
MEMORY = 4  # TVM_EDGE_OUT_OF_MEMORY
INVALID_VALUE = -30

pytestmark = pytest.mark.skipif(MASKED, reason="of OpenCL 3.0 and extensions")


def convolutions(*shape: int | str) -> onnx.ModelProto:
    """A chain of them, whose first and last read and write what is not the model's own."""
    nodes, weights, value = [], {}, "data"
    for index in range(LAYERS):
        weights[f"w{index}"] = random_input((8, 8, 3, 3), index) / 8
        nodes.append(helper.make_node("Conv", [value, f"w{index}"], [f"c{index}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        value = f"r{index}"
    return make_model(nodes, {"data": shape}, [value], weights)


@pytest.fixture(scope="module")
def fixed(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of fixed shape."""
    if missing := tvm_edge.opencl.command_buffers()["missing"]:
        pytest.skip(missing)
    return exported(convolutions(*SHAPE), tmp_path_factory.mktemp("recordings"))


def exported(model: onnx.ModelProto, folder: Path) -> Path:
    return tvm_edge.compile(model, "opencl", fallback="none").export(folder / "recorded.tvme")


@pytest.fixture(scope="module")
def shared(on_shim: dict[str, object]) -> Iterator[Worker]:
    with worker(on_shim) as started:
        yield started


@pytest.fixture
def process(shared: Worker) -> Iterator[Worker]:
    yield shared
    shared(clear_shim)


def same_as_python(path: Path, shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """Run each shape; what the driver was given in the last of the runs."""
    python, model = tvm_edge.load(path), CModel(path)
    (output,) = (spec.name for spec in python.outputs)
    for seed, shape in enumerate(shapes):
        x = {"data": random_input(shape, seed)}
        expected = python.run(x)[output]
        before = {name: Shim.here()[name] for name in ("replays", "launches")}
        np.testing.assert_array_equal(model.run(x, [output])[output], expected)
        last = {name: Shim.here()[name] - count for name, count in before.items()}
    return last


def test_runs_replay_what_the_first_recorded(process: Worker, fixed: Path) -> None:
    last = process(same_as_python, fixed, [SHAPE] * 4)
    assert last["replays"] >= 1 and last["launches"] < LAYERS


@pytest.mark.full  # tests/runtime/test_shape_recordings.py runs the same code by Python
def test_each_shape_has_its_recording(process: Worker, device: Any, tmp_path: Path) -> None:
    if missing := tvm_edge.opencl.command_buffers()["missing"]:
        pytest.skip(missing)
    path = exported(convolutions(1, 8, "h", "w"), tmp_path)
    small, large = (1, 8, 9, 5), (1, 8, 12, 17)
    last = process(same_as_python, path, [small, small, large, large, small, large, small])
    assert last["replays"] >= 1 and last["launches"] < LAYERS


def gives_up(path: Path, functions: list[str]) -> list[str]:
    """Recordings that fail: results are right, and the log of the process says so once."""
    said: list[str] = []
    taking = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    log = taking(lambda _, level, message: said.append(f"{level.decode()}: {message.decode()}"))
    expected = tvm_edge.load(path)
    x = {"data": random_input(SHAPE)}
    (output,) = (spec.name for spec in expected.outputs)
    value = expected.run(x)[output]
    Library().functions.tvm_edge_set_log(log, None)
    try:
        for function in functions:
            model = CModel(path)
            Shim.here().fail(function, INVALID_VALUE)
            for _ in range(3):
                np.testing.assert_array_equal(model.run(x, [output])[output], value)
    finally:
        Library().functions.tvm_edge_set_log(None, None)
    return said


def test_a_driver_that_fails_to_record(process: Worker, fixed: Path) -> None:
    functions = ["clFinalizeCommandBufferKHR", "clCommandNDRangeKernelKHR"]
    (message,) = process(gives_up, fixed, functions)
    assert message.startswith("warning: kernels are launched one by one because recording them")
    assert "CL_INVALID_VALUE" in message and message.endswith("results are right")


def runs_out_of_memory(path: Path) -> tuple[int, str]:
    """A replay that fails half way is not run again by itself; the next run is right."""
    python, model = tvm_edge.load(path), CModel(path)
    x = {"data": random_input(SHAPE)}
    (output,) = (spec.name for spec in python.outputs)
    expected = python.run(x)[output]
    for _ in range(2):
        model.run(x, [output])
    Shim.here().fail("clEnqueueCommandBufferKHR", OUT_OF_HOST_MEMORY, times=-1)
    with pytest.raises(Failed) as caught:
        model.run(x, [output])
    Shim.here().clear()
    np.testing.assert_array_equal(model.run(x, [output])[output], expected)
    return caught.value.status, str(caught.value)


def test_a_replay_without_memory(process: Worker, fixed: Path) -> None:
    status, message = process(runs_out_of_memory, fixed)
    assert status == MEMORY and "recorded launches" in message


def by_threads(path: Path) -> None:
    python, model = tvm_edge.load(path), CModel(path)
    (output,) = (spec.name for spec in python.outputs)
    inputs = [random_input(SHAPE, seed) for seed in range(4)]
    expected = [python.run({"data": x})[output] for x in inputs]

    def runs(index: int) -> bool:
        found = [model.run({"data": inputs[index]}, [output])[output] for _ in range(8)]
        return all(np.array_equal(each, expected[index]) for each in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(runs, range(4)))


def test_threads(process: Worker, fixed: Path) -> None:
    process(by_threads, fixed)
