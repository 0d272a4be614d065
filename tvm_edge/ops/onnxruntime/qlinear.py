"""Operators between quantised tensors.

ONNX Runtime's quantisation tool writes them (``QuantFormat.QOperator``): each is the plain operator
between a DequantizeLinear of its operands and a QuantizeLinear of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, Converter, operand
from tvm_edge.ops.flops import convolution_flops
from tvm_edge.ops.onnxruntime.layouts import in_either_layout
from tvm_edge.ops.onnxruntime.standard import standard
from tvm_edge.ops.quantization.converters import (
    dequantize_linear,
    q_linear_conv,
    quantize_linear,
)
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__: list[str] = []


def _real(bb: relax.BlockBuilder, value: Sequence[relax.Expr | None], axis: int = 1) -> relax.Expr:
    """Return the real numbers of a tensor with scale and zero point."""
    return bb.emit(dequantize_linear(bb, list(value), {"axis": axis}))


def _quantized(
    bb: relax.BlockBuilder, real: relax.Expr, scale: Sequence[relax.Expr | None]
) -> relax.Expr:
    return quantize_linear(bb, [bb.emit(real), *scale], {})


def _binary(operator: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    """Make a converter of ``A, its scale and zero point, B, its, the result's``."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
    ) -> relax.Expr:
        a, b = _real(bb, inputs[:3]), _real(bb, inputs[3:6])
        return _quantized(bb, operator(a, b), [inputs[6], operand(inputs, 7)])

    return convert


def _unary(operator: Callable[[relax.Expr, Attributes], relax.Expr]) -> Converter:
    """Make a converter of ``X, its scale and zero point, the result's``."""

    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
    ) -> relax.Expr:
        result = operator(_real(bb, inputs[:3]), attrs)
        return _quantized(bb, result, [inputs[3], operand(inputs, 4)])

    return convert


def _leaky_relu(x: relax.Expr, attrs: Attributes) -> relax.Expr:
    return relax.op.nn.leakyrelu(x, float(attrs.get("alpha", 0.01)))


def _sigmoid(x: relax.Expr, _attrs: Attributes) -> relax.Expr:
    return relax.op.sigmoid(x)


def _global_average(x: relax.Expr, _attrs: Attributes) -> relax.Expr:
    return relax.op.mean(x, list(range(2, int(x.ty.ndim))), keepdims=True)


def _average_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    pooled = standard(bb, "AveragePool", [_real(bb, inputs[:3])], attrs)
    return _quantized(bb, pooled, [inputs[3], operand(inputs, 4)])


def _softmax(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Convert Softmax: before opset 13 over all axes from one on.

    The importer has the model's opset under the name of the node's attribute ``opset``. ONNX
    Runtime's tools write the same.
    """
    opset, own = int(attrs["opset"]), {"axis": attrs.get("axis", -1)}
    result = standard(bb, "Softmax", [_real(bb, inputs[:3])], own, opset)
    return _quantized(bb, result, [inputs[3], operand(inputs, 4)])


def _where(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """Convert ``condition, X, its scale and zero point, Y, its, the result's``."""
    x, y = _real(bb, inputs[1:4]), _real(bb, inputs[4:7])
    return _quantized(bb, relax.op.where(inputs[0], x, y), [inputs[7], operand(inputs, 8)])


def _concat(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Convert ``the result's scale and zero point``, then each part with its own."""
    parts = [_real(bb, inputs[i : i + 3]) for i in range(2, len(inputs), 3)]
    return _quantized(bb, relax.op.concat(parts, int(attrs["axis"])), inputs[:2])


def _gemm(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Convert ``A, its scale and zero point, B, its, C in int32``, maybe the result's."""
    transposed = bool(attrs.get("transB", 0))
    a, b = _real(bb, inputs[:3]), _real(bb, inputs[3:6], axis=0 if transposed else 1)
    if attrs.get("transA", 0):
        a = bb.emit(relax.op.permute_dims(a, [1, 0]))
    if transposed:
        b = bb.emit(relax.op.permute_dims(b, [1, 0]))
    result = bb.emit(relax.op.matmul(a, b))
    alpha = float(attrs.get("alpha", 1.0))
    if alpha != 1.0:
        result = bb.emit(relax.op.multiply(result, relax.const(alpha, "float32")))
    bias = operand(inputs, 6)
    if bias is not None:
        scales = constant_of(inputs[1]), constant_of(inputs[4])
        if scales[0] is None or scales[1] is None:
            raise NotImplementedError("QGemm with scales that are not constant")
        factor = np.asarray(alpha * scales[0].reshape(()) * scales[1], "float32")
        factors = relax.const(factor, "float32")
        shift = _real(bb, [bias, factors, None], axis=int(bias.ty.ndim) - 1)
        result = bb.emit(relax.op.add(result, shift))
    scale = operand(inputs, 7)
    return result if scale is None else _quantized(bb, result, [scale, operand(inputs, 8)])


# Opsets before ONNX had the types have these two in ONNX Runtime's domain.
register("com.microsoft.DequantizeLinear", convert=dequantize_linear)
register("com.microsoft.QuantizeLinear", convert=quantize_linear)

register("com.microsoft.QGemm", convert=_gemm)
register("com.microsoft.QLinearAdd", convert=_binary(relax.op.add))
register("com.microsoft.QLinearAveragePool", convert=in_either_layout(_average_pool))
register("com.microsoft.QLinearConcat", convert=_concat)
register(
    "com.microsoft.QLinearConv",
    convert=in_either_layout(q_linear_conv),
    flops=convolution_flops(3),
)
register(
    "com.microsoft.QLinearGlobalAveragePool",
    convert=in_either_layout(_unary(_global_average)),
)
register("com.microsoft.QLinearLeakyRelu", convert=_unary(_leaky_relu))
register("com.microsoft.QLinearMul", convert=_binary(relax.op.multiply))
register("com.microsoft.QLinearSigmoid", convert=_unary(_sigmoid))
register("com.microsoft.QLinearSoftmax", convert=_softmax)
register("com.microsoft.QLinearWhere", convert=_where)
