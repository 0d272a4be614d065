"""A network that takes a picture and does nothing with it."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tests.onnx_models import make_model


def network(
    height: int, width: int, *, last: bool = False, dtype: int = TensorProto.FLOAT, opset: int = 18
) -> onnx.ModelProto:
    """A network that returns its input."""
    shape = (1, height, width, 3) if last else (1, 3, height, width)
    nodes = [helper.make_node("Identity", ["data"], ["y"], name="same")]
    return make_model(
        nodes, {"data": shape}, ["y"], dtypes={"data": dtype, "y": dtype}, opset=opset
    )
