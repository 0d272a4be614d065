"""Models whose results depend on indices and divisors from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.onnx_models import make_model

OPERATORS = (
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
    "MaxUnpool",
)
FAR = (2**40, -(2**63), 10**8, -6, 5)


def indexing_model(op: str) -> Any:
    """An operator that reads or writes where its input ``i`` says."""
    shapes: dict[str, tuple[int, ...]] = {
        "Gather": (3,),
        "GatherElements": (4, 5),
        "GatherND": (2, 2),
        "ScatterElements": (4, 5),
        "ScatterND": (1, 1),
        "MaxUnpool": (1, 1, 2, 2),
    }
    inputs: dict[str, tuple[int, ...]] = {"x": (4, 5), "i": shapes[op]}
    names, attributes = ["x", "i"], {}
    if op == "ScatterElements":
        names.append("x")
        attributes["reduction"] = "add"
    elif op == "ScatterND":
        names.append("u")
        inputs["u"] = (1, 5)
    elif op == "MaxUnpool":
        inputs["x"] = shapes[op]
        attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    node = helper.make_node(op, names, ["y"], **attributes)
    return make_model([node], inputs, ["y"], dtypes={"i": TensorProto.INT64}, opset=18)


def division_model(op: str, fmod: int, dtype: str, columns: int) -> Any:
    """Integers by integers, broadcast."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes = {"fmod": fmod} if op == "Mod" else {}
    return make_model(
        [helper.make_node(op, ["a", "b"], ["y"], **attributes)],
        {"a": (3, 1), "b": (columns,)},
        ["y"],
        dtypes=dict.fromkeys(("a", "b", "y"), kind),
    )
