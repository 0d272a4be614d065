"""Models and artifacts that the runtime's tests share."""

from __future__ import annotations

import pytest

import tvm_edge
from tests.runtime.arrays import operator
from tests.runtime.frames import there_and_back
from tests.runtime.support import wide_conv


@pytest.fixture(scope="session")
def compiled_wide() -> tvm_edge.CompiledModel:
    """A model whose kernel runs on two threads."""
    return tvm_edge.compile(wide_conv(), "llvm", num_threads=2)


@pytest.fixture(scope="module")
def mixed(gpu: str) -> tvm_edge.CompiledModel:
    """A model on the GPU, the CPU and the GPU again."""
    return tvm_edge.compile(there_and_back(), gpu, fallback=["Tanh"], num_threads=1)


@pytest.fixture(scope="module")
def on_cpu() -> tvm_edge.CompiledModel:
    """The same on the CPU alone."""
    return tvm_edge.compile(there_and_back(), "llvm", num_threads=1)


@pytest.fixture(scope="module")
def doubled() -> tvm_edge.CompiledModel:
    """``y = x + x``."""
    return operator("Add")
