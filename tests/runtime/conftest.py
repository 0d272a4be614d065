"""Models and artifacts that the runtime's tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import random_input
from tests.runtime.support import wide_conv


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """An input of the small model."""
    return random_input((1, 3, 16, 16))


@pytest.fixture(scope="session")
def artifact(
    compiled_small: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The small model, exported. Not to be changed: copy it first."""
    return compiled_small.export(tmp_path_factory.mktemp("artifact") / "small.tvme")


@pytest.fixture(scope="session")
def compiled_wide() -> tvm_edge.CompiledModel:
    """A model whose kernel runs on two threads."""
    return tvm_edge.compile(wide_conv(), "llvm", num_threads=2)
