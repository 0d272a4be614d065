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
    if node.op_type in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
        return _product(node)
    if node.op_type == "DynamicQuantizeLSTM":
        return _lstm(node)
    if node.op_type == "QAttention":
        return _attention(node)
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
    last = any(a.name == "channels_last" and a.i for a in node.attribute)
    if last:
        reals[0] = nodes.op("Transpose", reals[0], perm=[0, 3, 1, 2])
    made = nodes.same(kind, *reals)
    if last:
        made = nodes.op("Transpose", made, perm=[0, 2, 3, 1])
    nodes.op("QuantizeLinear", made, *inputs[result : result + 2], last=True)
    return nodes


def _product(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Products of quantised matrices, exact in double, with their scales and bias."""
    nodes = _Nodes(node)
    if node.op_type == "MatMulIntegerToFloat":
        a, b, a_scale, b_scale, a_zero, b_zero, bias = _operands(node, 7)
    else:
        x, b, b_scale, b_zero, bias = _operands(node, 5)
        name = node.output[0]
        a, a_scale, a_zero = f"{name}/a", f"{name}/scale", f"{name}/zero"
        nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [a, a_scale, a_zero]))
    double = TensorProto.DOUBLE
    reals = []
    for value, zero in ((a, a_zero), (b, b_zero)):
        real = nodes.op("Cast", value, to=double)
        reals.append(nodes.op("Sub", real, nodes.op("Cast", zero, to=double)) if zero else real)
    scale = nodes.op("Cast", nodes.op("Mul", a_scale, b_scale), to=double)
    made = nodes.op("Mul", nodes.op("MatMul", *reals), scale)
    if bias:
        made = nodes.op("Add", made, nodes.op("Cast", bias, to=double))
    nodes.op("Cast", made, last=True, to=TensorProto.FLOAT)
    return nodes


def _operands(node: onnx.NodeProto, count: int) -> list[str]:
    return [*node.input, *[""] * (count - len(node.input))]


def _lstm(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """An LSTM with dequantised weights, of a model of opset 13 or newer."""
    nodes, inputs = _Nodes(node), _operands(node, 12)
    both = any(a.name == "direction" and a.s == b"bidirectional" for a in node.attribute)
    # A scale for each direction, or for each of its gates.
    shape = f"{node.output[0]}/shape"
    nodes.append(helper.make_node("Constant", [], [shape], value_ints=[1 + both, 1, -1]))
    weights = []
    for value, scale, zero in ((1, 8, 9), (2, 10, 11)):
        real = nodes.op("Cast", inputs[value], to=TensorProto.FLOAT)
        if inputs[zero]:
            start = nodes.op("Cast", inputs[zero], to=TensorProto.FLOAT)
            real = nodes.op("Sub", real, nodes.op("Reshape", start, shape))
        factor = nodes.op("Reshape", inputs[scale], shape)
        weights.append(nodes.op("Transpose", nodes.op("Mul", real, factor), perm=[0, 2, 1]))
    made = helper.make_node("LSTM", [inputs[0], *weights, *inputs[3:8]], list(node.output))
    made.attribute.extend(node.attribute)
    nodes.append(made)
    return nodes


def _attention(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Attention of dequantised operands."""
    nodes = _Nodes(node)
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = _operands(node, 9)
    x = nodes.op("DequantizeLinear", x, x_scale, x_zero)
    weights = nodes.op("DequantizeLinear", weights, w_scale, w_zero, axis=1)
    operands = [x, weights, bias, mask, past]
    made = helper.make_node("Attention", operands, list(node.output), domain="com.microsoft")
    made.attribute.extend(node.attribute)
    nodes.append(made)
    return nodes
