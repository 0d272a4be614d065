"""Gelu and its relatives, as ONNX Runtime fuses them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes, operand, scalar
from tvm_edge.ops.flops import elementwise
from tvm_edge.ops.onnxruntime.standard import standard
from tvm_edge.ops.registry import register

__all__: list[str] = []


def _gelu(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    return standard(bb, "Gelu", [_biased(bb, inputs)], {})


def _fast_gelu(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    return standard(bb, "Gelu", [_biased(bb, inputs)], {"approximate": b"tanh"})


def _biased(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr]) -> relax.Expr:
    bias = operand(inputs, 1)
    return inputs[0] if bias is None else bb.emit(relax.op.add(inputs[0], bias))


def _quick_gelu(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Write ``x · sigmoid(alpha · x)``."""
    (x,) = inputs
    alpha = float(attrs.get("alpha", 1.702))
    if math.isclose(alpha, 1.0):
        return relax.op.nn.silu(x)
    gate = bb.emit(relax.op.sigmoid(relax.op.multiply(x, scalar(alpha, x))))
    return relax.op.multiply(x, gate)


register("com.microsoft.BiasGelu", "com.microsoft.Gelu", convert=_gelu, flops=elementwise)
register("com.microsoft.FastGelu", convert=_fast_gelu, flops=elementwise)
register("com.microsoft.QuickGelu", convert=_quick_gelu, flops=elementwise)
