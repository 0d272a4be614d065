"""What every test may use."""

from __future__ import annotations

import os

import onnx
import pytest
import tvm

import tvm_edge
from tests.onnx_models import conv_relu

# pocl takes twenty times as long to hand a program out as to build it; the tests of the cache name
# a folder of their own.
os.environ.setdefault("TVM_EDGE_OPENCL_CACHE", "0")


@pytest.fixture(scope="session")
def small_model() -> onnx.ModelProto:
    """A convolution, a ReLU and a pool with random weights."""
    return conv_relu()


@pytest.fixture(scope="session")
def compiled_small(small_model: onnx.ModelProto) -> tvm_edge.CompiledModel:
    """`small_model` compiled for this machine."""
    return tvm_edge.compile(small_model, "llvm")


@pytest.fixture(scope="session", params=["opencl", "cuda"])
def gpu(request: pytest.FixtureRequest) -> str:
    """A kind of GPU of this machine; skips where there is none."""
    kind = str(request.param)
    if not tvm.runtime.enabled(kind) or not tvm.device(kind, 0).exist:
        pytest.skip(f"no {kind} device on this machine")
    return kind
