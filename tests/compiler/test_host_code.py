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
from tvm_edge.compiler import build


@pytest.fixture
def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="product"),
        helper.make_node("Softmax", ["t"], ["y"], name="softmax"),
    ]
    weights = np.random.default_rng(0).standard_normal((32, 16), np.float32)
    return make_model(nodes, {"x": (4, 32)}, ["y"], {"w": weights})


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[tvm.target.Target]:
    """What code was built for."""
    original, found = build.relax.build, []

    def noted(mod: tvm.IRModule, target: tvm.target.Target, **options: Any) -> Any:
        found.append(target)
        return original(mod, target, **options)

    monkeypatch.setattr(build.relax, "build", noted)
    return found


def test_code_that_launches_kernels_is_optimised_for_less(
    model: onnx.ModelProto, targets: list[tvm.target.Target]
) -> None:
    compiled = tvm_edge.compile(model, "mali-t860", fallback="none")
    (target,) = targets
    assert int(target.host.attrs["opt-level"]) == 1
    # Nothing else of it changes, and nothing of what the model says that it is for.
    before = tvm.target.Target(compiled._info.target["config"])
    changed = tvm.target.Target({**before.host.export(), "opt-level": 1})
    assert str(target.host) == str(changed)
    assert "opt-level" not in before.host.attrs


@pytest.mark.parametrize(
    ("target", "fallback"), [("llvm", "none"), ("mali-t860", ["softmax"])], ids=["CPU", "both"]
)
def test_kernels_of_the_host_are_optimised_for_all(
    model: onnx.ModelProto,
    targets: list[tvm.target.Target],
    target: str,
    fallback: str | list[str],
) -> None:
    compiled = tvm_edge.compile(model, target, fallback=fallback)
    assert len(compiled.report.partitions) == (1 if target == "llvm" else 2)
    (built,) = targets
    host = built.host or built
    assert "opt-level" not in host.attrs
