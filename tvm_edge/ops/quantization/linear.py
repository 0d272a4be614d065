"""Linear quantisation as operators, so that passes see where tensors are whole numbers.

``real = (quantised - zero point) · scale``: ONNX's QuantizeLinear and DequantizeLinear.
TVM's operators of these names take zero points of int8 and float16 only.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_edge.ops import registry
from tvm_edge.ops.flops import elementwise
from tvm_edge.ops.quantization.kernels import (
    legalize_byte_table,
    legalize_dequantize,
    legalize_quantize,
    legalize_quantized_add,
)
from tvm_edge.ops.registry import PERFORMS, register

__all__ = [
    "BYTE_TABLE",
    "DEQUANTIZE",
    "QUANTIZE",
    "QUANTIZED_ADD",
    "byte_table",
    "dequantize",
    "quantize",
    "quantized_add",
]

QUANTIZE = "tvm_edge.quantize"
DEQUANTIZE = "tvm_edge.dequantize"
QUANTIZED_ADD = "tvm_edge.quantized_add"
BYTE_TABLE = "tvm_edge.byte_table"


def quantize(
    data: relax.Expr, scale: relax.Expr, zero: relax.Expr, dtype: str, axis: int = 0
) -> relax.Call:
    """Quantise: ``data / scale`` rounded to even, moved by the zero point, within the type.

    Parameters
    ----------
    data : relax.Expr
        Float32, any shape.
    scale, zero : relax.Expr
        Constants of float32 and int32: scalars, or vectors with one element for each of `axis`.
    dtype : {"int8", "uint8"}
        Type of the result.
    axis : int
    """
    return registry.call(QUANTIZE, [data, scale, zero], axis=axis, dtype=dtype)


def dequantize(data: relax.Expr, scale: relax.Expr, zero: relax.Expr, axis: int = 0) -> relax.Call:
    """Dequantise: ``(data - zero) · scale`` in float32; the difference is exact.

    Parameters
    ----------
    data : relax.Expr
        Int8, uint8 or int32, any shape.
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
    """Add ``a · ratios[0] + b · ratios[1] + shift``, rounded to even, moved by the zero point.

    One operator, so that none of the operands is stored in float32.

    Parameters
    ----------
    a, b : relax.Expr
        One shape, int8, uint8 or float32.
    ratios : tuple of float
        Their scales over that of the result.
    shift : float
        Contribution of their zero points.
    zero : int
    dtype : {"int8", "uint8"}
        Type of the result.
    """
    attrs = {"ratio_a": ratios[0], "ratio_b": ratios[1], "shift": shift, "zero": zero}
    return registry.call(QUANTIZED_ADD, [a, b], dtype=dtype, **attrs)


def byte_table(data: relax.Expr, table: np.ndarray) -> relax.Call:
    """Look each number up in a table.

    Parameters
    ----------
    data : relax.Expr
        Uint8, any shape.
    table : numpy.ndarray
        256 numbers of uint8.
    """
    # Not an operand: to passes over channel blocks a vector is one number for each channel.
    return registry.call(BYTE_TABLE, [data], table=table.tobytes().hex(), dtype="uint8")


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    data = call.args[0].ty
    dtype = str(call.attrs["dtype"])
    if data.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=data.vdevice, ndim=data.ndim)
    return relax.TensorType(data.shape, dtype, data.vdevice)


register(QUANTIZE, legalize=legalize_quantize, blocks="unary")
register(DEQUANTIZE, legalize=legalize_dequantize, blocks="unary")
register(BYTE_TABLE, legalize=legalize_byte_table, blocks="unary")
register(QUANTIZED_ADD, legalize=legalize_quantized_add, blocks="nary")
register(
    *(QUANTIZE, DEQUANTIZE, QUANTIZED_ADD, BYTE_TABLE),
    infer_type=_infer_type,
    gpu=PERFORMS,
    flops=elementwise,
)
register("relax.dequantize", "relax.quantize", gpu=PERFORMS, flops=elementwise)
