"""Frames on their way through a model, by the C API."""

from __future__ import annotations

from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.native.c_api import CModel, CStream, Failed, Library
from tests.onnx_models import random_input
from tests.runtime.frames import there_and_back

INPUT, HANDLE = 1, 5


@pytest.fixture(scope="module")
def mixed(gpu: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on the GPU, the CPU and the GPU again."""
    model = tvm_edge.compile(there_and_back(), gpu, fallback=["Tanh"], num_threads=1)
    assert len(model.report.partitions) > 1
    return model.export(tmp_path_factory.mktemp("streams") / "mixed.tvme")


def frames(path: Path, count: int) -> list[dict[str, np.ndarray]]:
    (spec,) = tvm_edge.load(path).inputs
    return [{spec.name: random_input(spec.typical_shape, seed)} for seed in range(count)]


@pytest.mark.parametrize("depth", [1, 3])
def test_results_come_in_order(artifact: Path, depth: int) -> None:
    in_order(artifact, depth)


@pytest.mark.parametrize("depth", [1, 3])
def test_devices_work_on_different_frames(mixed: Path, depth: int) -> None:
    in_order(mixed, depth)


def in_order(path: Path, depth: int) -> None:
    """Check that results are those of run; inputs are the caller's again after the push."""
    python, model = tvm_edge.load(path), CModel(path)
    names = [spec.name for spec in python.outputs]
    given = frames(path, 7)
    expected = [python.run(frame) for frame in given]
    stream = CStream(model, depth)
    model.free()  # the stream keeps it
    found = []
    for frame in given:
        if len(stream) == depth:
            found.append(stream.pop(names))
        copy = {name: value.copy() for name, value in frame.items()}
        stream.push(copy)
        for value in copy.values():
            value[:] = np.nan
    while len(stream):
        found.append(stream.pop(names))
    stream.end()
    for each, wanted in zip(found, expected, strict=True):
        for name in names:
            np.testing.assert_array_equal(each[name], wanted[name])


def test_what_a_stream_refuses(artifact: Path) -> None:
    model, x = CModel(artifact), {"data": random_input((1, 3, 16, 16))}
    with pytest.raises(Failed, match="depth is 0"):
        CStream(model, 0)
    stream = CStream(model, 2)
    with pytest.raises(Failed, match="no frame is on its way"):
        stream.pop(["pooled"])
    with pytest.raises(Failed, match="has the shape") as caught:
        stream.push({"data": np.zeros((1, 3, 16, 17), "float32")})
    assert caught.value.status == INPUT and len(stream) == 0
    stream.push(x)
    stream.push(x)
    with pytest.raises(Failed, match="2 frames are on their way, and depth is 2"):
        stream.push(x)
    with pytest.raises(Failed, match="no output 'poled'"):
        stream.pop(["poled"])
    assert len(stream) == 2  # the frame is still there
    expected = tvm_edge.load(artifact).run(x)["pooled"]
    np.testing.assert_array_equal(stream.pop(["pooled"])["pooled"], expected)
    stream.end()  # with a frame that nobody took
    for call, arguments in (("stream_end", ()), ("stream_pending", (byref(c_size_t()),))):
        for handle in (stream.handle, c_void_p(12345)):
            with pytest.raises(Failed, match="stream is no handle, or was freed") as caught:
                Library().call(call, handle, *arguments)
            assert caught.value.status == HANDLE


def test_a_frame_that_fails_is_over(tmp_path: Path) -> None:
    """Those after it go on."""
    from onnx import TensorProto, helper

    from tests.onnx_models import make_model

    model = make_model(
        [helper.make_node("Reshape", ["data", "shape"], ["y"])],
        {"data": (2, 6), "shape": (2,)},
        ["y"],
        dtypes={"shape": TensorProto.INT64},
    )
    loaded = CModel(tvm_edge.compile(model, "llvm").export(tmp_path / "model.tvme"))
    stream, data = CStream(loaded, 3), random_input((2, 6))
    for shape in ([3, 4], [5, 3], [12, 1]):
        stream.push({"data": data, "shape": np.array(shape)})
    assert stream.pop(["y"])["y"].shape == (3, 4)
    with pytest.raises(Failed, match="check the values"):
        stream.pop(["y"])
    np.testing.assert_array_equal(stream.pop(["y"])["y"], data.reshape(12, 1))
    stream.end()
