"""Linear quantisation as operators, so that passes see where tensors are whole numbers.

``real = (quantised - zero point) · scale``: ONNX's QuantizeLinear and DequantizeLinear.
TVM's operators of these names take zero points of int8 and float16 only.
"""

from __future__ import annotations

from tvm import relax

from tvm_edge.ops import registry

__all__ = ["DEQUANTIZE", "QUANTIZE", "QUANTIZED_ADD", "dequantize", "quantize", "quantized_add"]

QUANTIZE = "tvm_edge.quantize"
DEQUANTIZE = "tvm_edge.dequantize"
QUANTIZED_ADD = "tvm_edge.quantized_add"


def quantize(
    data: relax.Expr, scale: relax.Expr, zero: relax.Expr, dtype: str, axis: int = 0
) -> relax.Call:
    """``data / scale``, rounded to even, moved by the zero point, within the type.

    Parameters
    ----------
    data : relax.Expr
        Of float32, of any shape.
    scale, zero : relax.Expr
        Constants of float32 and int32: of no axis, or of one element for each of `axis`.
    dtype : {"int8", "uint8"}
        Of the result.
    axis : int
    """
    return registry.call(QUANTIZE, [data, scale, zero], axis=axis, dtype=dtype)


def dequantize(data: relax.Expr, scale: relax.Expr, zero: relax.Expr, axis: int = 0) -> relax.Call:
    """``(data - zero) · scale`` in float32; the difference is exact.

    Parameters
    ----------
    data : relax.Expr
        Of int8, uint8 or int32, of any shape.
    scale, zero, axis
        As for :func:`quantize`.
    """
    return registry.call(DEQUANTIZE, [data, scale, zero], axis=axis, dtype="float32")


def quantized_add(
    a: relax.Expr,
    b: relax.Expr,
    *,
    ratios: tuple[float, float],
    shift: float,
    zero: int,
    dtype: str,
) -> relax.Call:
    """``a · ratios[0] + b · ratios[1] + shift``, rounded to even, moved by the zero point.

    One operator, so that none of the operands is stored in float32.

    Parameters
    ----------
    a, b : relax.Expr
        Of one shape, of int8, uint8 or float32.
    ratios : tuple of float
        Their scales over that of the result.
    shift : float
        What their zero points come to.
    zero : int
    dtype : {"int8", "uint8"}
        Of the result.
    """
    attrs = {"ratio_a": ratios[0], "ratio_b": ratios[1], "shift": shift, "zero": zero}
    return registry.call(QUANTIZED_ADD, [a, b], dtype=dtype, **attrs)


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    data = call.args[0].ty
    dtype = str(call.attrs["dtype"])
    if data.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=data.vdevice, ndim=data.ndim)
    return relax.TensorType(data.shape, dtype, data.vdevice)


registry.register(QUANTIZE, _infer_type)
registry.register(DEQUANTIZE, _infer_type)
registry.register(QUANTIZED_ADD, _infer_type)
