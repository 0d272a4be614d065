"""A model whose weights are streamed from its artifact, and what copies its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

from tests.onnx_models import make_model
from tvm_edge.compiler.driver import compile_with

LAYERS, WIDTH = 3, 2048
WEIGHTS_MIB = LAYERS * WIDTH * WIDTH * 4 / 2**20  # 48
WINDOW_MIB = 4


@pytest.fixture(scope="module")
def deep() -> onnx.ModelProto:
    """Three dense layers with 16 MiB of weights each."""
    random = np.random.default_rng(0)
    tensors = ["x", *(f"t{i}" for i in range(1, LAYERS)), "y"]
    nodes = [
        helper.make_node("MatMul", [tensors[i], f"w{i}"], [tensors[i + 1]], name=f"fc{i}")
        for i in range(LAYERS)
    ]
    weights = {f"w{i}": random.standard_normal((WIDTH, WIDTH), np.float32) for i in range(LAYERS)}
    return make_model(nodes, {"x": (1, WIDTH)}, ["y"], weights)


@pytest.fixture(scope="module")
def streamed(deep: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model in parts, by target. Not to be changed: copy it first."""
    folder, paths = tmp_path_factory.mktemp("streamed"), {}
    for target in ("llvm", "opencl", *(["cuda"] if tvm.cuda().exist else [])):
        model = compile_with(
            deep, target, {}, fallback="none", weight_window=WINDOW_MIB << 20, num_threads=1
        )
        assert [split.parts for split in model.report.splits] == [8] * LAYERS
        paths[target] = model.export(folder / f"{target}.tvme")
    return paths


@pytest.fixture
def x() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).standard_normal((1, WIDTH)).astype("float32")}


@pytest.fixture(params=["llvm", "opencl", "opencl with memory of its own", "cuda"])
def target(request: pytest.FixtureRequest) -> str:
    """Target of a streamed model: some map the parts of weights, others copy them."""
    name: str = request.param
    if name == "cuda" and not tvm.cuda().exist:
        pytest.skip("no CUDA device")
    if name.endswith("own"):
        request.getfixturevalue("own_memory")
    return name.split()[0]
