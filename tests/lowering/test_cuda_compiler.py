"""CUDA code is made without a GPU; what is missing for it is named."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import onnx
import pytest
import tvm

import tvm_edge
from tvm_edge.lowering import cuda_compiler as cuda

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


@needs_nvcc
def test_compiles_without_a_gpu(small_model: onnx.ModelProto) -> None:
    compiled = tvm_edge.compile(small_model, {"kind": "cuda", "arch": "sm_87"})
    assert compiled.report.target.startswith("cuda")
    assert {kernel.device for kernel in compiled.report.kernels} == {"cuda"}
    if not tvm.runtime.enabled("cuda") or not tvm.cuda(0).exist:
        with pytest.raises(tvm_edge.DeviceUnavailableError, match="tvm-edge doctor"):
            compiled.warmup()


@needs_nvcc
def test_without_a_driver_an_artifact_has_source_alone(
    small_model: onnx.ModelProto, tmp_path: Path
) -> None:
    compiled = tvm_edge.compile(small_model, {"kind": "cuda", "arch": "sm_87"})
    if cuda.makes_machine_code():
        compiled.export(tmp_path / "board.tvme")  # and no warning, which would be an error
        return
    with pytest.warns(tvm_edge.TvmEdgeWarning, match="as source code.*libcuda.*needs nvcc"):
        path = compiled.export(tmp_path / "board.tvme")
    library = zipfile.ZipFile(path).read("library.so")
    assert b"__global__" in library and b"\x7fELF" not in library[4:]


@pytest.mark.parametrize(("board", "arch"), [("jetson-nano", "sm_53"), ("jetson-tk1", "sm_32")])
def test_an_architecture_that_cuda_13_dropped(
    board: str, arch: str, small_model: onnx.ModelProto
) -> None:
    with pytest.raises(tvm_edge.DeviceUnavailableError, match=rf"{arch}.*sm_75.*analyze"):
        tvm_edge.compile(small_model, board)
    assert tvm_edge.analyze(small_model, board).kernels


def test_without_a_toolkit_the_package_is_named(
    small_model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda.shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(tvm_edge.MissingDependencyError, match="pip install cuda-bindings") as error:
        tvm_edge.compile(small_model, "jetson-orin-nano", host="llvm")
    assert error.value.exit_code == 5


@needs_nvcc
def test_the_environment_is_as_before() -> None:
    before = dict(os.environ)
    with cuda.cuda_compiler("sm_87"):
        assert os.environ["TVM_CUDA_NVCC_NO_FAST_MATH"] == "1"
    assert dict(os.environ) == before
