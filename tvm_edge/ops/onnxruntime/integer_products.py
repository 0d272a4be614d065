"""Products of quantised matrices with float32 results, and of matrices quantised in the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, operand, scalar
from tvm_edge.ops.onnxruntime.standard import standard
from tvm_edge.ops.products import matmul_flops
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape

__all__ = ["dynamically_quantised", "integer_product"]


def integer_product(
    bb: relax.BlockBuilder,
    operands: Sequence[relax.Expr],
    scales: Sequence[relax.Expr],
    zeros: Sequence[relax.Expr | None],
    bias: relax.Expr | None,
) -> relax.Expr:
    """Multiply two quantised matrices, accumulate in int32, scale to float32, add a bias.

    Parameters
    ----------
    bb : relax.BlockBuilder
    operands : sequence of relax.Expr
        A ``[..., M, K]`` and B ``[..., K, N]``, int8 or uint8.
    scales : sequence of relax.Expr
        Of a tensor; that of B may be of its columns.
    zeros : sequence of relax.Expr or None
        Zero points, in the same shapes.
    bias : relax.Expr, optional
        ``[N]``.
    """
    total = standard(bb, "MatMulInteger", [*operands, *zeros], {})
    scale = _product_of_scales(bb, scales)
    result = bb.emit(relax.op.multiply(relax.op.astype(total, "float32"), scale))
    return result if bias is None else bb.emit(relax.op.add(result, bias))


def _product_of_scales(bb: relax.BlockBuilder, scales: Sequence[relax.Expr]) -> relax.Expr:
    """Multiply two scales, at once where both are constants."""
    a, b = (_at_columns(bb, value) for value in scales)
    known = constant_of(a), constant_of(b)
    if known[0] is not None and known[1] is not None:
        return relax.const(np.asarray(known[0] * known[1], "float32"), "float32")
    return bb.emit(relax.op.multiply(a, b))


def _at_columns(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """Make a scale of one element a scalar, so that the rank of the product stays."""
    if static_shape(value.ty) != (1,):
        return value
    known = constant_of(value)
    if known is not None:
        return relax.const(known.reshape(()), str(known.dtype))
    return bb.emit(relax.op.reshape(value, ()))


def _matmul_integer_to_float(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    a, b, a_scale, b_scale = inputs[:4]
    if static_shape(a_scale.ty) not in ((), (1,)):
        raise NotImplementedError("MatMulIntegerToFloat with several scales of A")
    a_zero, b_zero = operand(inputs, 4), operand(inputs, 5)
    zeros = [None if a_zero is None else _at_columns(bb, a_zero), b_zero]
    return integer_product(bb, [a, b], [a_scale, b_scale], zeros, operand(inputs, 6))


def _dynamic_quantize_matmul(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    a, b, b_scale = inputs[:3]
    quantised, scale, zero = dynamically_quantised(bb, a)
    zeros = [zero, operand(inputs, 3)]
    return integer_product(bb, [quantised, b], [scale, b_scale], zeros, operand(inputs, 4))


def dynamically_quantised(bb: relax.BlockBuilder, x: relax.Expr) -> Sequence[relax.Expr]:
    """Quantise as ONNX's DynamicQuantizeLinear: uint8 numbers, scale, zero point."""
    zero, most = scalar(0.0, x), scalar(255.0, x)
    low = bb.emit(relax.op.minimum(relax.op.min(x), zero))
    high = bb.emit(relax.op.maximum(relax.op.max(x), zero))
    span = bb.emit(relax.op.subtract(high, low))
    # Any scale does for zeros alone.
    span = bb.emit(relax.op.where(relax.op.equal(span, zero), most, span))
    scale = bb.emit(relax.op.divide(span, most))
    start = bb.emit(relax.op.round(relax.op.negative(relax.op.divide(low, scale))))
    moved = bb.emit(relax.op.add(relax.op.round(relax.op.divide(x, scale)), start))
    numbers = bb.emit(relax.op.astype(relax.op.clip(moved, 0.0, 255.0), "uint8"))
    return numbers, scale, bb.emit(relax.op.astype(start, "uint8"))


register(
    "com.microsoft.DynamicQuantizeMatMul", convert=_dynamic_quantize_matmul, flops=matmul_flops
)
register("com.microsoft.MatMulIntegerToFloat", convert=_matmul_integer_to_float, flops=matmul_flops)
