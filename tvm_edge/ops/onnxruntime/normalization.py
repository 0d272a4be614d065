"""Layer and RMS normalisation, with the sums and embeddings that ONNX Runtime fuses into them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, num_outputs, operand, scalar
from tvm_edge.ops.flops import per_element
from tvm_edge.ops.onnxruntime.standard import standard, standard_outputs
from tvm_edge.ops.registry import register

__all__: list[str] = []


def _layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    outputs = num_outputs(attrs)
    made = standard_outputs(bb, "LayerNormalization", inputs, attrs, outputs)
    return made[0] if outputs == 1 else relax.Tuple(made)


def _simplified_layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    y = standard(bb, "RMSNormalization", inputs, attrs)
    if num_outputs(attrs) == 1:
        return y
    return relax.Tuple([y, _inverse_rms(bb, inputs[0], attrs)])


def _inverse_rms(bb: relax.BlockBuilder, x: relax.Expr, attrs: Attributes) -> relax.Expr:
    axes = list(range(int(attrs.get("axis", -1)) % x.ty.ndim, x.ty.ndim))
    square = bb.emit(relax.op.mean(relax.op.multiply(x, x), axes, keepdims=True))
    epsilon = scalar(attrs.get("epsilon", 1e-5), x)
    return bb.emit(relax.op.rsqrt(relax.op.add(square, epsilon)))


def _skip_layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Normalise ``input + skip + bias``; the fourth output is that sum."""
    total = _total(bb, inputs[0], inputs[1], operand(inputs, 4))
    own = _own_epsilon(attrs)
    outputs = num_outputs(attrs)
    operands = [total, inputs[2], operand(inputs, 3)]
    made = standard_outputs(bb, "LayerNormalization", operands, own, min(outputs, 3))
    return made[0] if outputs == 1 else relax.Tuple([*made, total][:outputs])


def _skip_simplified_layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Normalise ``input + skip + bias``; the fourth output is that sum. There is no mean."""
    total = _total(bb, inputs[0], inputs[1], operand(inputs, 3))
    own = _own_epsilon(attrs)
    y = standard(bb, "RMSNormalization", [total, inputs[2]], own)
    if num_outputs(attrs) == 1:
        return y
    inverse = _inverse_rms(bb, total, own)
    mean = bb.emit(relax.op.zeros_like(inverse))
    return relax.Tuple([y, mean, inverse, total])


def _total(bb: relax.BlockBuilder, *values: relax.Expr | None) -> relax.Expr:
    first, *rest = [value for value in values if value is not None]
    for value in rest:
        first = bb.emit(relax.op.add(first, value))
    return first


def _own_epsilon(attrs: Attributes) -> Attributes:
    """Write out the default of the fused operators, which is not ONNX's."""
    return {**attrs, "axis": -1, "epsilon": attrs.get("epsilon", 1e-12)}


def _embed_layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Normalise the sum of the embeddings of words, positions and segments.

    The second output is the number of ones in each line of the mask, the third that sum.
    """
    ids, segments, words, positions, kinds, gamma, beta = inputs[:7]
    mask, places = operand(inputs, 7), operand(inputs, 8)
    batch, length = (int(n) for n in ids.ty.shape)
    if places is None:
        places = relax.const(np.arange(length, dtype="int32")[None], "int32")
    tables = [(words, ids), (positions, places)]
    if segments is not None:
        tables.append((kinds, segments))
    total = _total(bb, *(bb.emit(relax.op.take(t, i, 0, mode="clip")) for t, i in tables))
    y = standard(bb, "LayerNormalization", [total, gamma, beta], _own_epsilon(attrs))
    if num_outputs(attrs) == 1:
        return y
    counts = relax.const(np.zeros(batch, "int32"), "int32")
    if mask is not None:
        ones = bb.emit(relax.op.equal(mask, scalar(1, mask)))
        counts = bb.emit(relax.op.sum(relax.op.astype(ones, "int32"), [1]))
    return relax.Tuple([y, counts, total])


_FLOPS = per_element(7)
_RMS_FLOPS = per_element(4)

register("com.microsoft.EmbedLayerNormalization", convert=_embed_layer_normalization)
register("com.microsoft.LayerNormalization", convert=_layer_normalization, flops=_FLOPS)
register(
    "com.microsoft.SimplifiedLayerNormalization",
    convert=_simplified_layer_normalization,
    flops=_RMS_FLOPS,
)
register("com.microsoft.SkipLayerNormalization", convert=_skip_layer_normalization, flops=_FLOPS)
register(
    "com.microsoft.SkipSimplifiedLayerNormalization",
    convert=_skip_simplified_layer_normalization,
    flops=_RMS_FLOPS,
)
