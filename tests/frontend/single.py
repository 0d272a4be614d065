"""Models, those of one operator above all, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, reference

__all__ = ["agree", "close", "single"]


def agree(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    """Our outputs equal ONNX Runtime's to the last bit."""
    ours = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype
        np.testing.assert_array_equal(ours[name], expected)


def single(
    node: onnx.NodeProto,
    inputs: dict[str, np.ndarray],
    constants: dict[str, np.ndarray] | None = None,
    *,
    outputs: dict[str, int] | None = None,
    opset: int = 19,
) -> onnx.ModelProto:
    """A model of one operator; outputs without a type have the first input's."""
    dtypes = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items()}
    first = next(iter(dtypes.values()))
    return make_model(
        [node],
        {name: value.shape for name, value in inputs.items()},
        [name for name in node.output if name],
        constants,
        dtypes={**{name: first for name in node.output}, **dtypes, **(outputs or {})},
        opset=opset,
    )


def close(
    node: onnx.NodeProto,
    inputs: dict[str, np.ndarray],
    constants: dict[str, np.ndarray] | None = None,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    **options: Any,
) -> None:
    """Our outputs are ONNX Runtime's, within some last bits of functions and sums."""
    model = single(node, inputs, constants, **options)
    ours = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype and ours[name].shape == expected.shape
        np.testing.assert_allclose(ours[name], expected, rtol=rtol, atol=atol)
