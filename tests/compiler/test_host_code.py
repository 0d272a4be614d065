"""How far LLVM optimises the code of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model


@pytest.fixture
def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="product"),
        helper.make_node("Softmax", ["t"], ["y"], name="softmax"),
    ]
    weights = np.random.default_rng(0).standard_normal((32, 16), np.float32)
    return make_model(nodes, {"x": (4, 32)}, ["y"], {"w": weights})


@pytest.fixture
def levels(
    monkeypatch: pytest.MonkeyPatch, optimised: None, no_kernel_cache: None
) -> dict[str, int | None]:
    """LLVM's level for each function that code is generated for; ``None`` is its default."""
    found: dict[str, int | None] = {}
    original = tvm.tirx.build

    def noted(mod: tvm.IRModule, target: tvm.target.Target, **options: Any) -> Any:
        host = target.host or target
        level = host.attrs.get("opt-level")
        found.update((str(gvar.name_hint), level) for gvar in mod.get_global_vars())
        return original(mod, target=target, **options)

    monkeypatch.setattr(tvm.tirx, "build", noted)
    return found


def test_code_that_launches_kernels_is_optimised_for_less(
    model: onnx.ModelProto, levels: dict[str, int | None]
) -> None:
    compiled = tvm_edge.compile(model, "mali-t860", fallback="none")
    kernels = {kernel.name for kernel in compiled.report.kernels}
    assert kernels and {levels[name] for name in kernels} == {1}
    # Nothing of what the model says that it is for changes.
    assert "opt-level" not in tvm.target.Target(compiled._info.target["config"]).host.attrs


def test_kernels_of_the_host_are_optimised_for_all(
    model: onnx.ModelProto, levels: dict[str, int | None]
) -> None:
    compiled = tvm_edge.compile(model, "mali-t860", fallback=["softmax"])
    assert len(compiled.report.partitions) == 2
    assert {kernel.device for kernel in compiled.report.kernels} == {"llvm", "opencl"}
    for kernel in compiled.report.kernels:
        assert levels[kernel.name] == (None if kernel.device == "llvm" else 1)


def test_kernels_of_a_cpu_are_optimised_and_what_calculates_lengths_is_less(
    model: onnx.ModelProto, levels: dict[str, int | None]
) -> None:
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": ("rows", 32)})
    kernels = {kernel.name for kernel in compiled.report.kernels}
    assert kernels and {levels[name] for name in kernels} == {None}
    lengths = set(levels) - kernels - {"nothing"}
    assert lengths and {levels[name] for name in lengths} == {1}
