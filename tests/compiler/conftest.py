"""A model that several files look at."""

from __future__ import annotations

import onnx
import pytest

from tvm_edge import zoo


@pytest.fixture(scope="package")
def detector() -> onnx.ModelProto:
    """A reduced SSD: convolutions, views, constant operators, results of unknown length."""
    return zoo.build("ssd_mobilenet_v1", image_size=96, width=0.25)
