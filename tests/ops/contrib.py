"""Models of one operator of ONNX Runtime's own domain, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tvm_edge
from tests.onnx_models import reference

RANDOM = np.random.default_rng(7)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * scale).astype("float32")


def whole(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def int32(*values: Any) -> np.ndarray:
    return np.asarray(values[0] if len(values) == 1 else values, "int32")


def f32(value: Any) -> np.ndarray:
    return np.asarray(value, "float32")


@dataclass(frozen=True)
class Case:
    """A node: operands in order, ``None`` for one left out, and where the constants begin."""

    kind: str
    operands: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    given: Sequence[int] = (0,)
    outputs: Sequence[int] = (1,)
    opset: int = 17

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        names = ["" if value is None else f"i{i}" for i, value in enumerate(self.operands)]
        values = {n: v for n, v in zip(names, self.operands, strict=True) if v is not None}
        inputs = {f"i{i}": values[f"i{i}"] for i in self.given}
        results = [f"y{i}" if wanted else "" for i, wanted in enumerate(self.outputs)]
        node = helper.make_node(
            self.kind, names, results, domain="com.microsoft", **self.attributes
        )
        return contrib([node], inputs, values, results, self.opset), inputs


def contrib(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    results: Sequence[str],
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose outputs have the types and shapes that ONNX Runtime gives them."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in results if name],
        [numpy_helper.from_array(v, n) for n, v in values.items() if n not in inputs],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    made = reference(model, inputs)
    for output in model.graph.output:
        value = made[output.name]
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind(value.dtype), value.shape))
    return model


def same(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    *,
    rtol: float = 1e-5,
    atol: float = 2e-6,
) -> None:
    """Our outputs are ONNX Runtime's: integers within one unit, others within the tolerance."""
    ours = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype and ours[name].shape == expected.shape, name
        if expected.dtype.kind in "iu":
            difference = np.abs(ours[name].astype("int64") - expected.astype("int64"))
            assert difference.max() <= 1 and np.mean(difference > 0) <= 0.05, difference.max()
            continue
        np.testing.assert_allclose(ours[name], expected, rtol=rtol, atol=atol, err_msg=name)


X = normal(2, 5, 12)
D = 12
