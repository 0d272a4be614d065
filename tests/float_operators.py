"""Integer operators of a model written as float ones, which ONNX Runtime computes alike everywhere.

Its integer kernels depend on the CPU: products of int8 saturate in 16 bits where AVX2 has no dot
products, and the session option against it (``session.x64quantprecision``) makes weights uint8 on
other CPUs, for which there is no kernel beside activations of int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

__all__ = ["in_float"]

_QUANTIZED: dict[str, tuple[str, Sequence[int], int, int | None]] = {
    "QLinearConv": ("Conv", (0, 3), 6, 8),
    "QLinearMatMul": ("MatMul", (0, 3), 6, None),
    "QGemm": ("Gemm", (0, 3), 7, 6),
    "QLinearAdd": ("Add", (0, 3), 6, None),
    "QLinearMul": ("Mul", (0, 3), 6, None),
    "QLinearConcat": ("Concat", (), 0, None),
    "QLinearAveragePool": ("AveragePool", (0,), 3, None),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3, None),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3, None),
    "QLinearSigmoid": ("Sigmoid", (0,), 3, None),
}
"""Float operator, and the places of its operands, of the result's scale and of the bias.

An operand is three inputs: the tensor, its scale and its zero point.
"""


class _Nodes(list[onnx.NodeProto]):
    """Nodes that take the place of one, whose output names theirs."""

    def __init__(self, replaced: onnx.NodeProto) -> None:
        self._replaced = replaced

    def op(self, kind: str, *inputs: str, last: bool = False, **attributes: Any) -> str:
        """Add a node and return its output, the replaced node's for the `last` one."""
        output = self._replaced.output[0]
        made = output if last else f"{output}/{len(self)}"
        self.append(helper.make_node(kind, list(inputs), [made], name=made, **attributes))
        return made

    def same(self, kind: str, *inputs: str) -> str:
        """Add a node with the replaced node's attributes."""
        made = self.op(kind, *inputs)
        own = (a for a in self._replaced.attribute if a.name != "channels_last")
        self[-1].attribute.extend(own)
        return made


def in_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose integer convolutions, products and QLinear operators are float ones.

    Quantised operators become float32 ones between DequantizeLinear and QuantizeLinear. Sums of
    ConvInteger are exact below 2**24, those of MatMulInteger always.
    """
    made = onnx.ModelProto.FromString(model.SerializeToString())
    del made.graph.node[:]
    for node in model.graph.node:
        made.graph.node.extend(_replacement(node))
    return made


def _replacement(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if node.op_type == "ConvInteger":
        return _integer(node, "Conv", TensorProto.FLOAT)
    if node.op_type == "MatMulInteger":
        return _integer(node, "MatMul", TensorProto.DOUBLE)
    return _quantized(node) if node.op_type in _QUANTIZED else [node]


def _integer(node: onnx.NodeProto, kind: str, dtype: int) -> list[onnx.NodeProto]:
    nodes = _Nodes(node)
    operands = []
    for tensor, zero in zip(node.input[:2], [*node.input[2:], "", ""], strict=False):
        real = nodes.op("Cast", tensor, to=dtype)
        operands.append(nodes.op("Sub", real, nodes.op("Cast", zero, to=dtype)) if zero else real)
    nodes.op("Cast", nodes.same(kind, *operands), last=True, to=TensorProto.INT32)
    return nodes


def _quantized(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    kind, operands, result, bias = _QUANTIZED[node.op_type]
    nodes, inputs = _Nodes(node), node.input
    if kind == "Concat":
        operands = range(2, len(inputs), 3)
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    axis = 0 if kind == "Conv" or transposed else 1  # of a scale of each output channel
    reals = [nodes.op("DequantizeLinear", *inputs[i : i + 3], axis=axis) for i in operands]
    if bias is not None and inputs[bias : bias + 1] not in ([], [""]):
        scale = nodes.op("Mul", inputs[1], inputs[4])
        reals.append(nodes.op("DequantizeLinear", inputs[bias], scale, axis=0))
    nodes.op("QuantizeLinear", nodes.same(kind, *reals), *inputs[result : result + 2], last=True)
    return nodes
