"""Convolutions and products with what ONNX Runtime fuses into them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes, operand, scalar, text
from tvm_edge.ops.flops import Operation, convolution_flops, elements, known
from tvm_edge.ops.onnxruntime.layouts import channels_first, channels_last
from tvm_edge.ops.onnxruntime.standard import activated, standard
from tvm_edge.ops.pooling import pool_flops
from tvm_edge.ops.products import gemm_flops
from tvm_edge.ops.registry import register

__all__: list[str] = []


def _fused_conv(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Convolve, add another tensor of the result's shape, apply an activation."""
    result = standard(bb, "Conv", [*inputs[:2], operand(inputs, 2)], attrs)
    added = operand(inputs, 3)
    if added is not None:
        result = bb.emit(relax.op.add(result, added))
    parameters = attrs.get("activation_params", ())
    return activated(bb, result, text(attrs, "activation", ""), parameters)


def _fused_gemm(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    result = standard(bb, "Gemm", [*inputs[:2], operand(inputs, 2)], attrs)
    prefix = "activation_"
    own = {k.removeprefix(prefix): v for k, v in attrs.items() if k.startswith(prefix)}
    return activated(bb, result, text(attrs, "activation", ""), own)


def _fused_matmul(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    a, b = (_transposed(bb, x, attrs, which) for x, which in zip(inputs, "AB", strict=True))
    product = standard(bb, "MatMul", [a, b], {})
    alpha = float(attrs.get("alpha", 1.0))
    return product if alpha == 1.0 else relax.op.multiply(product, scalar(alpha, product))


def _transposed(bb: relax.BlockBuilder, x: relax.Expr, attrs: Attributes, which: str) -> relax.Expr:
    """Transpose an operand as its attributes say; a vector stays as it is.

    ``transBatchA`` moves the first axis of A after the other axes of the batch.
    """
    rank = int(x.ty.ndim)
    order = list(range(rank))
    if rank > 1 and attrs.get(f"transBatch{which}", 0):
        order = [*order[1:-1], 0, order[-1]]
    if rank > 1 and attrs.get(f"trans{which}", 0):
        order = [*order[:-2], order[-1], order[-2]]
    return x if order == sorted(order) else bb.emit(relax.op.permute_dims(x, order))


def _fused_matmul_flops(op: Operation) -> int:
    axis = -1
    if op.attributes.get("transA", 0):
        axis = 0 if op.attributes.get("transBatchA", 0) else -2
    return 2 * elements(op.outputs[0]) * known(op.inputs[0])[axis]


def _nhwc_max_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    pooled = standard(bb, "MaxPool", [channels_first(bb, inputs[0])], attrs)
    return channels_last(bb, pooled)


register("com.microsoft.FusedConv", convert=_fused_conv, flops=convolution_flops(1))
register("com.microsoft.FusedGemm", convert=_fused_gemm, flops=gemm_flops)
register(
    "com.microsoft.FusedMatMul",
    "com.microsoft.TransposeMatMul",
    convert=_fused_matmul,
    flops=_fused_matmul_flops,
)
register("com.microsoft.NhwcMaxPool", convert=_nhwc_max_pool, flops=pool_flops("kernel_shape"))
