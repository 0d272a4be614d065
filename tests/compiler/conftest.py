"""Models that several files look at."""

from __future__ import annotations

import onnx
import pytest

import tvm_edge
from tests.compiler.several_models import pose
from tests.onnx_models import conv_relu
from tvm_edge import zoo


@pytest.fixture(scope="package")
def detector() -> onnx.ModelProto:
    """A reduced SSD: convolutions, views, constant operators, results of unknown length."""
    return zoo.build("ssd_mobilenet_v1", image_size=96, width=0.25)


@pytest.fixture(scope="package")
def models() -> dict[str, onnx.ModelProto]:
    return {"detector": conv_relu(), "pose": pose()}


@pytest.fixture(scope="package")
def both(models: dict[str, onnx.ModelProto]) -> tvm_edge.CompiledModel:
    return tvm_edge.compile(models, "llvm")
