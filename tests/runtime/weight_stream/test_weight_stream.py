"""Weights streamed from the artifact: their values, and what may happen to the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvm_edge
from tests.global_functions import overridden
from tests.onnx_models import reference, relative_error
from tests.runtime.support import at_once
from tests.runtime.weight_stream.conftest import WIDTH
from tvm_edge import ArtifactError
from tvm_edge.runtime.entry import NEXT_PART, UPLOAD_PART


def test_values_from_the_file(
    deep: onnx.ModelProto, streamed: dict[str, Path], x: dict[str, np.ndarray], target: str
) -> None:
    model = tvm_edge.load(streamed[target])
    for seed in range(2):
        values = {"x": x["x"] + np.float32(seed)}
        assert relative_error(model.run(values)["y"], reference(deep, values)["y"]) < 1e-4


def copy_of(path: Path, folder: Path) -> Path:
    target = folder / "copy.tvme"
    target.write_bytes(path.read_bytes())
    return target


def test_a_file_that_is_cut_between_runs(
    streamed: dict[str, Path], x: dict[str, np.ndarray], tmp_path: Path, target: str
) -> None:
    path = copy_of(streamed[target], tmp_path)
    content, times = path.read_bytes(), path.stat()
    model = tvm_edge.load(path)
    expected = model.run(x)["y"]
    os.truncate(path, len(content) // 2)
    with pytest.raises(ArtifactError, match=r"was cut .* export it again") as caught:
        model.run(x)
    assert str(path) in str(caught.value)
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    np.testing.assert_array_equal(model.run(x)["y"], expected)


def test_a_file_that_is_cut_in_a_run(
    streamed: dict[str, Path],
    x: dict[str, np.ndarray],
    tmp_path: Path,
    target: str,
) -> None:
    """The run fails, and the next one is right again when the file is."""
    path = copy_of(streamed[target], tmp_path)
    content, times = path.read_bytes(), path.stat()
    calls: list[int] = []

    def cut_at_third(original: Any) -> Any:
        def cut(*arguments: Any) -> Any:
            calls.append(len(calls))
            if armed and len(calls) == 3:
                if target != "llvm":
                    tvm.device(target, 0).sync()  # nothing reads what is mapped just now
                os.truncate(path, 1 << 20)
            return original(*arguments)

        return cut

    armed = False
    with overridden(NEXT_PART if target == "llvm" else UPLOAD_PART, cut_at_third):
        model = tvm_edge.load(path)
        expected = model.run(x)["y"]
        calls.clear()
        armed = True
        with pytest.raises(ArtifactError, match="was cut"):
            model.run(x)
        armed = False
    assert 3 <= len(calls) <= 5  # a GPU has one part by then, and is getting another
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for _ in range(2):
        np.testing.assert_array_equal(model.run(x)["y"], expected)


def test_a_file_that_is_gone(
    streamed: dict[str, Path], x: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Its pages stay as long as somebody has it open."""
    path = copy_of(streamed["llvm"], tmp_path)
    model = tvm_edge.load(path)
    path.unlink()
    np.testing.assert_array_equal(model.run(x)["y"], tvm_edge.load(streamed["llvm"]).run(x)["y"])


def test_mapped_weights_of_a_file_that_is_cut(
    artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    """Also those that are not streamed."""
    path = copy_of(artifact, tmp_path)
    model = tvm_edge.load(path)
    model.run({"data": image})
    os.truncate(path, 4096)
    with pytest.raises(ArtifactError, match="was cut"):
        model.run({"data": image})


def test_threads(streamed: dict[str, Path], target: str) -> None:
    """Two models of one file, and two threads on each."""
    models = [tvm_edge.load(streamed[target], num_threads=1) for _ in range(2)]
    random = np.random.default_rng(5)
    inputs = [random.standard_normal((1, WIDTH)).astype("float32") for _ in range(4)]
    expected = [models[0].run({"x": each})["y"] for each in inputs]

    def runs(index: int) -> bool:
        model = models[index % 2]
        found = [model.run({"x": inputs[index]})["y"] for _ in range(4)]
        return all(np.array_equal(each, expected[index]) for each in found)

    assert all(at_once(*(lambda i=i: runs(i) for i in range(len(inputs)))))


def test_frames_of_a_stream(streamed: dict[str, Path], target: str) -> None:
    model = tvm_edge.load(streamed[target], num_threads=1)
    random = np.random.default_rng(6)
    frames = [{"x": random.standard_normal((1, WIDTH)).astype("float32")} for _ in range(4)]
    with model.stream(frames, depth=3) as stream:
        found = [each["y"] for each in stream]
    for frame, each in zip(frames, found, strict=True):
        np.testing.assert_array_equal(each, model.run(frame)["y"])


def test_a_loaded_model_exports_again(streamed: dict[str, Path], tmp_path: Path) -> None:
    for path in streamed.values():
        again = tvm_edge.load(path).export(tmp_path / "again.tvme")
        assert again.read_bytes() == path.read_bytes()


def test_profile(streamed: dict[str, Path]) -> None:
    """Each part is a launch."""
    for path in streamed.values():
        model = tvm_edge.load(path)
        assert [row.name for row in model.profile(repeat=1).kernels] == [
            kernel.name for kernel in model.report.kernels
        ]
