"""Converters of linear quantisation, and of products of quantised tensors, in whole numbers.

``real = (quantised - zero point) · scale``; see ONNX's QuantizeLinear. Products are summed in int32
and exact; what is rounded is rounded once, to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, operand, small_type, type_name
from tvm_edge.ops.quantization.linear import dequantize, quantize
from tvm_edge.ops.small_types import SMALL_TYPES, decoded, encoded
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape
from tvm_edge.relay_passes.ir.workloads import INT8_TYPES

__all__ = [
    "conv_integer",
    "dequantize_linear",
    "q_linear_conv",
    "q_linear_matmul",
    "quantize_linear",
]


def quantize_linear(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Emit our operator where scale and zero point are constants of a tensor or an axis.

    Other forms are calculated in float32; TVM's has no blocks.
    """
    x, scale, zero = inputs[0], inputs[1], operand(inputs, 2)
    kind = _named_type(attrs.get("output_dtype", 0)) or small_type(attrs, 2)
    kind = kind or ("uint8" if zero is None else str(zero.ty.dtype))
    plain = _plain(x, scale, zero, attrs)
    in_float32 = _named_type(attrs.get("precision", 0)) in ("", "float32")
    if plain is not None and in_float32 and kind in INT8_TYPES and str(x.ty.dtype) == "float32":
        return bb.normalize(quantize(x, plain.scale, plain.zero, kind, plain.axis))
    divided = _precision(bb, x, scale, attrs)
    zero = None if zero is None else _real(bb, zero, small_type(attrs, 2))
    zero = _along(bb, zero, x, attrs)
    if "float" in kind:
        moved = divided if zero is None else bb.emit(relax.op.add(divided, zero))
        return encoded(bb, moved, kind, saturate=bool(attrs.get("saturate", 1)))
    return _requantized(bb, divided, zero, kind)


def _real(bb: relax.BlockBuilder, value: relax.Expr, small: str) -> relax.Expr:
    """Return stored numbers in float32."""
    return decoded(bb, value, small) if small else bb.emit(relax.op.astype(value, "float32"))


def _precision(
    bb: relax.BlockBuilder, x: relax.Expr, scale: relax.Expr, attrs: Attributes
) -> relax.Expr:
    """Divide ``x / scale`` in the type that the node asks for, by default the scale's."""
    kind = _named_type(attrs.get("precision", 0)) or str(scale.ty.dtype)
    x, scale = (bb.emit(relax.op.astype(value, kind)) for value in (x, _along(bb, scale, x, attrs)))
    divided = bb.emit(relax.op.divide(x, scale))
    return bb.emit(relax.op.astype(divided, "float32"))


def _requantized(
    bb: relax.BlockBuilder, real: relax.Expr, zero: relax.Expr | None, kind: str
) -> relax.Expr:
    """Round to even, move by the zero point, clip to the type; all of it exact in float32."""
    rounded = bb.emit(relax.op.round(real))
    if zero is not None:
        rounded = bb.emit(relax.op.add(rounded, zero))
    limits = ml_dtypes.iinfo(kind)
    inside = bb.emit(relax.op.clip(rounded, float(limits.min), float(limits.max)))
    if kind in SMALL_TYPES:
        return encoded(bb, inside, kind)
    return bb.normalize(relax.op.astype(inside, kind))


def dequantize_linear(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Subtract the zero point in whole numbers, which is exact."""
    x, scale, zero = inputs[0], inputs[1], operand(inputs, 2)
    kind = _named_type(attrs.get("output_dtype", 0)) or str(scale.ty.dtype)
    small = small_type(attrs, 0)
    plain = None if small or kind != "float32" else _plain(x, scale, zero, attrs)
    if plain is not None and str(x.ty.dtype) in (*INT8_TYPES, "int32"):
        return bb.normalize(dequantize(x, plain.scale, plain.zero, plain.axis))
    wide = decoded(bb, x, small) if small else bb.emit(relax.op.astype(x, "int32"))
    if zero is not None:
        low = decoded(bb, zero, small) if small else bb.emit(relax.op.astype(zero, "int32"))
        wide = bb.emit(relax.op.subtract(wide, _along(bb, low, x, attrs)))
    factor = bb.emit(relax.op.astype(_along(bb, scale, x, attrs), "float32"))
    real = bb.emit(relax.op.multiply(relax.op.astype(wide, "float32"), factor))
    return bb.normalize(real if kind == "float32" else relax.op.astype(real, kind))


@dataclass(frozen=True)
class _Plain:
    """Constant scale and zero point: scalars, or vectors along an axis."""

    scale: relax.Expr
    zero: relax.Expr
    axis: int


def _plain(
    x: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, attrs: Attributes
) -> _Plain | None:
    """Return constants as :func:`tvm_edge.ops.quantize` takes them; ``None`` of other forms."""
    factors, shape = constant_of(scale), static_shape(x.ty)
    zeros = np.zeros((), "int32") if zero is None else constant_of(zero)
    if factors is None or zeros is None or shape is None or attrs.get("block_size", 0):
        return None
    if str(factors.dtype) != "float32" or any(small_type(attrs, i) for i in (0, 2)):
        return None
    axis = int(attrs.get("axis", 1)) % max(len(shape), 1) if len(shape) > 1 else 0
    if factors.size == zeros.size == 1:
        factors, zeros = factors.reshape(()), zeros.reshape(())
    elif not shape or factors.shape != (shape[axis],):
        return None
    zeros = np.broadcast_to(zeros.astype("int32"), factors.shape)
    return _Plain(relax.const(factors, "float32"), relax.const(np.array(zeros), "int32"), axis)


def _along(
    bb: relax.BlockBuilder, value: relax.Expr | None, x: relax.Expr, attrs: Attributes
) -> relax.Expr | None:
    """Reshape a scale or zero point so that it is broadcast to the shape of `x`."""
    shape, own = static_shape(x.ty), None if value is None else static_shape(value.ty)
    if value is None or own is None or shape is None:
        return value
    rank, block = len(shape), int(attrs.get("block_size", 0))
    axis = int(attrs.get("axis", 1)) % max(rank, 1) if rank > 1 else 0
    if block:
        repeated = bb.emit(relax.op.repeat(value, block, axis))
        if own[axis] * block == shape[axis]:
            return repeated
        return bb.emit(relax.op.strided_slice(repeated, [axis], [0], [shape[axis]]))
    if int(np.prod(own)) == 1:
        return bb.emit(relax.op.reshape(value, ()))
    wide = [1] * rank
    wide[axis] = own[0]
    return bb.emit(relax.op.reshape(value, wide))


def _named_type(number: int) -> str:
    return type_name(number) if number else ""


def _whole(bb: relax.BlockBuilder, x: relax.Expr, zero: relax.Expr | None, axis: int) -> relax.Expr:
    """Subtract ``x - zero`` in int32; a zero point for each of the elements of `axis`."""
    wide = bb.emit(relax.op.astype(x, "int32"))
    if zero is None:
        return wide
    zero = bb.emit(relax.op.astype(zero, "int32"))
    return bb.emit(relax.op.subtract(wide, _at_axis(bb, zero, int(x.ty.ndim), axis)))


def _at_axis(bb: relax.BlockBuilder, value: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """Reshape a vector so that it runs along `axis`; leave anything else as it is."""
    shape = static_shape(value.ty)
    if shape is None or len(shape) != 1:
        return value
    if shape[0] == 1:
        return bb.emit(relax.op.reshape(value, ()))
    wide = [1] * rank
    wide[axis] = shape[0]
    return bb.emit(relax.op.reshape(value, wide))


def _product_scale(
    bb: relax.BlockBuilder, scales: Sequence[relax.Expr], total: relax.Expr
) -> relax.Expr:
    """Multiply ``total · a · b / y`` in float32; scales are broadcast already."""
    a, b, y = (bb.emit(relax.op.astype(scale, "float32")) for scale in scales)
    factor = bb.emit(relax.op.divide(relax.op.multiply(a, b), y))
    return bb.emit(relax.op.multiply(relax.op.astype(total, "float32"), factor))


def _are_constant(*values: relax.Expr) -> bool:
    return all(constant_of(value) is not None for value in values)


def q_linear_matmul(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    """Write a product with a constant matrix between quantised tensors, which passes recognise.

    Other forms are calculated in int32.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    rank_a, rank_b = int(a.ty.ndim), int(b.ty.ndim)
    scales = (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero)
    if rank_b == 2 and rank_a > 1 and _are_constant(b, *scales) and _one_element(a_scale, y_scale):
        left = bb.emit(dequantize_linear(bb, [a, a_scale, a_zero], {}))
        right = bb.emit(dequantize_linear(bb, [b, b_scale, b_zero], {"axis": 1}))
        product = bb.emit(relax.op.matmul(left, right))
        return quantize_linear(bb, [product, y_scale, y_zero], {})
    product = bb.emit(
        relax.op.matmul(
            _whole(bb, a, a_zero, max(rank_a - 2, 0)), _whole(bb, b, b_zero, rank_b - 1)
        )
    )
    rank = int(product.ty.ndim)
    broadcast = (
        _at_axis(bb, a_scale, rank, max(rank - 2, 0)),
        _at_axis(bb, b_scale, rank, rank - 1),
        _at_axis(bb, y_scale, rank, max(rank - 2, 0)),
    )
    zero = bb.emit(relax.op.astype(_at_axis(bb, y_zero, rank, max(rank - 2, 0)), "float32"))
    return _requantized(bb, _product_scale(bb, broadcast, product), zero, str(y_zero.ty.dtype))


def _one_element(*values: relax.Expr) -> bool:
    """Return whether each value is one scale for all of a tensor."""
    return all(int(np.prod(static_shape(value.ty) or ())) == 1 for value in values)


def _convolved(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weights: relax.Expr,
    bias: relax.Expr | None,
    attrs: Attributes,
) -> relax.Expr:
    """Convolve; padding is the zero that the zero point stands for."""
    from tvm.relax.frontend.onnx.onnx_frontend import Conv as TvmConv

    call = TvmConv._impl_v11(bb, [x, weights, bias], attrs, None)
    return bb.emit(call)


def conv_integer(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    x = _whole(bb, inputs[0], operand(inputs, 2), 1)
    weights = _whole(bb, inputs[1], operand(inputs, 3), 0)
    return _convolved(bb, x, weights, None, attrs)


def q_linear_conv(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Write a convolution of two dimensions between quantised tensors, which passes recognise.

    Other forms are calculated in int32.
    """
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs[:8]
    bias = operand(inputs, 8)
    scales = (x_scale, x_zero, w_scale, w_zero, y_scale, y_zero)
    if int(x.ty.ndim) == 4 and _are_constant(w, *scales) and _one_element(x_scale, y_scale):
        data = bb.emit(dequantize_linear(bb, [x, x_scale, x_zero], {}))
        weights = bb.emit(dequantize_linear(bb, [w, w_scale, w_zero], {"axis": 0}))
        if bias is not None:
            a, b = constant_of(x_scale), constant_of(w_scale)
            assert a is not None and b is not None
            factor = relax.const(np.asarray(a.reshape(()) * b, "float32"), "float32")
            bias = bb.emit(dequantize_linear(bb, [bias, factor, None], {"axis": 0}))
        convolved = _convolved(bb, data, weights, bias, attrs)
        return quantize_linear(bb, [convolved, y_scale, y_zero], {})
    total = _convolved(bb, _whole(bb, x, x_zero, 1), _whole(bb, w, w_zero, 0), bias, attrs)
    rank = int(total.ty.ndim)
    broadcast = [_at_axis(bb, scale, rank, 1) for scale in (x_scale, w_scale, y_scale)]
    zero = bb.emit(relax.op.astype(_at_axis(bb, y_zero, rank, 1), "float32"))
    return _requantized(bb, _product_scale(bb, broadcast, total), zero, str(y_zero.ty.dtype))
