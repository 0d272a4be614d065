"""Linear quantisation, and operators on quantised tensors."""

from __future__ import annotations

from tvm_edge.ops.flops import convolution_flops, elementwise
from tvm_edge.ops.products import matmul_flops
from tvm_edge.ops.quantization import converters
from tvm_edge.ops.quantization.linear import (
    BYTE_TABLE,
    DEQUANTIZE,
    QUANTIZE,
    QUANTIZED_ADD,
    byte_table,
    dequantize,
    quantize,
    quantized_add,
)
from tvm_edge.ops.registry import register

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

register("ConvInteger", convert=converters.conv_integer, flops=convolution_flops(1))
register(
    "DequantizeLinear",
    convert=converters.dequantize_linear,
    stored_types=True,
    flops=elementwise,
)
register("DynamicQuantizeLinear", flops=elementwise)
register("MatMulInteger", flops=matmul_flops)
register("QLinearConv", convert=converters.q_linear_conv, flops=convolution_flops(3))
register("QLinearMatMul", convert=converters.q_linear_matmul, flops=matmul_flops)
register("QuantizeLinear", convert=converters.quantize_linear, stored_types=True, flops=elementwise)
