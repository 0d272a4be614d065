"""A file of weights that somebody cuts while a kernel reads it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, reference, relative_error
from tvm_edge import ArtifactError
from tvm_edge.compiler.driver import compile_with

WIDTH = 1024


@pytest.fixture(scope="module")
def dense() -> onnx.ModelProto:
    """Two dense layers with 4 MiB of weights each."""
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((WIDTH, WIDTH), np.float32) for i in range(2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["t"]),
        helper.make_node("MatMul", ["t", "w1"], ["y"]),
    ]
    return make_model(nodes, {"x": (1, WIDTH)}, ["y"], weights)


@pytest.mark.parametrize("weights", ["whole", "in parts"])
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_a_file_that_is_cut_under_a_kernel(
    dense: onnx.ModelProto,
    tmp_path: Path,
    target: str,
    weights: str,
) -> None:
    """That run fails, and so does every other of this model; one that is loaded anew is right."""
    window = {"weight_window": 1 << 20} if weights == "in parts" else {}
    path = tmp_path / "model.tvme"
    compile_with(dense, target, {}, fallback="none", num_threads=1, **window).export(path)
    content = path.read_bytes()
    x = {"x": np.random.default_rng(3).standard_normal((1, WIDTH)).astype("float32")}
    model = tvm_edge.load(path)
    assert bool(model.report.splits) == (weights == "in parts")
    expected = model.run(x)["y"]

    cut = False

    def cut_under_it(_kernel: str, before: bool) -> None:
        nonlocal cut
        if before and not cut:
            os.truncate(path, 1 << 16)
            cut = True

    with pytest.raises(ArtifactError, match="was cut from"):
        model._session.run_instrumented(model._every, [x["x"]], cut_under_it)
    assert cut
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="load it anew"):
        model.run(x)
    again = tvm_edge.load(path).run(x)["y"]
    np.testing.assert_array_equal(again, expected)
    assert relative_error(again, reference(dense, x)["y"]) < 1e-4


def test_a_run_that_returned_has_read_its_weights(dense: onnx.ModelProto, tmp_path: Path) -> None:
    """Also on a device whose kernels run on, as what they make of zeros nobody would notice."""
    path = tmp_path / "model.tvme"
    tvm_edge.compile(dense, "opencl", fallback="none", num_threads=1).export(path)
    content = path.read_bytes()
    x = {"x": np.random.default_rng(3).standard_normal((1, WIDTH)).astype("float32")}
    for _ in range(3):
        path.write_bytes(content)
        model = tvm_edge.load(path)
        expected = model.run(x)["y"]
        tensor = model.run(x, device_outputs=True)["y"]
        os.truncate(path, 1 << 16)
        np.testing.assert_array_equal(tensor.numpy(), expected)
