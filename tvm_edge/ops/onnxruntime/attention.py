"""Attention of several heads, as ONNX Runtime's transformer optimiser writes it.

Shapes are named B batch, S length of the queries, L of the keys, P of the past, T = P + L,
N heads, H elements of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, num_outputs, operand, scalar
from tvm_edge.ops.onnxruntime.integer_products import integer_product
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__: list[str] = []

_REFUSED = ("do_rotary", "past_present_share_buffer")


@dataclass(frozen=True)
class _Heads:
    """Queries ``[B, N, S, H]``, keys ``[B, N, T, H]`` and values ``[B, N, T, Hv]``."""

    queries: relax.Expr
    keys: relax.Expr
    values: relax.Expr


def _attention(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Project by ``[inputs, Q + K + V]`` weights, and attend."""
    product = bb.emit(relax.op.matmul(inputs[0], inputs[1]))
    bias = operand(inputs, 2)
    if bias is not None:
        product = bb.emit(relax.op.add(product, bias))
    if operand(inputs, 6) is not None:
        raise NotImplementedError("past_sequence_length")
    mask, past, added = (operand(inputs, i) for i in (3, 4, 5))
    return _self_attention(bb, product, mask, past, added, attrs)


def _q_attention(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Project in whole numbers, and attend in float32."""
    zeros = [operand(inputs, 6), operand(inputs, 7)]
    product = integer_product(bb, inputs[:2], inputs[3:5], zeros, inputs[2])
    mask, past = operand(inputs, 5), operand(inputs, 8)
    return _self_attention(bb, product, mask, past, None, attrs)


def _self_attention(
    bb: relax.BlockBuilder,
    product: relax.Expr,
    mask: relax.Expr | None,
    past: relax.Expr | None,
    added: relax.Expr | None,
    attrs: Attributes,
) -> relax.Expr:
    """Attend with queries, keys and values side by side in ``[B, S, Q + K + V]``."""
    count = int(attrs["num_heads"])
    third = int(product.ty.shape[2]) // 3
    sizes = [int(n) for n in attrs.get("qkv_hidden_sizes", ())] or [third] * 3
    parts = bb.emit(relax.op.split(product, [sizes[0], sizes[0] + sizes[1]], 2))
    queries, keys, values = (
        _in_heads(bb, bb.emit(relax.TupleGetItem(parts, i)), count) for i in range(3)
    )
    if past is not None:
        keys = _after_past(bb, _at(bb, past, 0), keys)
        values = _after_past(bb, _at(bb, past, 1), values)
    y = _attend(bb, _Heads(queries, keys, values), mask, added, attrs)
    if num_outputs(attrs) == 1:
        return y
    return relax.Tuple([y, bb.emit(relax.op.stack([keys, values], 0))])


def _multi_head_attention(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Attend with projected queries, keys and values.

    Keys and values are ``[B, L, N·H]``, or ``[B, N, L, H]`` where they are another layer's; keys
    with values are ``[B, L, N, 2, H]``, and all three ``[B, S, N, 3, H]``.
    """
    if num_outputs(attrs) > 3 or any(operand(inputs, i) is not None for i in (8, 9)):
        raise NotImplementedError("MultiHeadAttention with qk, past_sequence_length or beams")
    query, key, value = inputs[0], operand(inputs, 1), operand(inputs, 2)
    count = int(attrs["num_heads"])
    if key is None:
        query, key, value = _unpacked(bb, query)
    elif value is None:
        key, value = _unpacked(bb, key)
    values = [query, key, value]
    bias = operand(inputs, 3)
    if bias is not None:
        values = _biased(bb, values, bias)
    queries, keys, seen = (x if int(x.ty.ndim) == 4 else _in_heads(bb, x, count) for x in values)
    past = operand(inputs, 6), operand(inputs, 7)
    if past[0] is not None:
        keys, seen = _after_past(bb, past[0], keys), _after_past(bb, past[1], seen)
    y = _attend(bb, _Heads(queries, keys, seen), operand(inputs, 4), operand(inputs, 5), attrs)
    return y if num_outputs(attrs) == 1 else relax.Tuple([y, keys, seen][: num_outputs(attrs)])


def _unpacked(bb: relax.BlockBuilder, packed: relax.Expr) -> list[relax.Expr]:
    """Split ``[B, L, N, parts, H]`` to ``[B, L, N·H]`` tensors."""
    batch, length, count, parts, size = (int(n) for n in packed.ty.shape)
    split = bb.emit(relax.op.split(packed, parts, 3))
    return [
        bb.emit(relax.op.reshape(relax.TupleGetItem(split, i), (batch, length, count * size)))
        for i in range(parts)
    ]


def _biased(
    bb: relax.BlockBuilder, values: Sequence[relax.Expr], bias: relax.Expr
) -> list[relax.Expr]:
    """Add each its part of a bias; another layer's keys and values have theirs."""
    total, first = int(bias.ty.shape[0]), int(values[0].ty.shape[2])
    parts = bb.emit(relax.op.split(bias, [first, min(2 * first, total)], 0))
    return [
        x
        if int(x.ty.ndim) == 4
        else bb.emit(relax.op.add(x, bb.emit(relax.TupleGetItem(parts, i))))
        for i, x in enumerate(values)
    ]


def _in_heads(bb: relax.BlockBuilder, x: relax.Expr, count: int) -> relax.Expr:
    """Reshape ``[B, S, N·H]`` to ``[B, N, S, H]``."""
    batch, length, size = (int(n) for n in x.ty.shape)
    split = bb.emit(relax.op.reshape(x, (batch, length, count, size // count)))
    return bb.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _at(bb: relax.BlockBuilder, value: relax.Expr, index: int) -> relax.Expr:
    return bb.emit(relax.op.take(value, relax.const(index, "int64"), 0, mode="clip"))


def _after_past(bb: relax.BlockBuilder, past: relax.Expr, new: relax.Expr) -> relax.Expr:
    if 0 in (static_shape(past.ty) or ()):
        return new
    return bb.emit(relax.op.concat([past, new], 2))


def _attend(
    bb: relax.BlockBuilder,
    heads: _Heads,
    mask: relax.Expr | None,
    added: relax.Expr | None,
    attrs: Attributes,
) -> relax.Expr:
    """Return ``softmax(scale · Q Kᵀ + added + mask) V`` in ``[B, S, N·Hv]``."""
    for name in _REFUSED:
        if attrs.get(name, 0):
            raise NotImplementedError(f"{name}; export the model without it")
    batch, count, length, size = (int(n) for n in heads.queries.ty.shape)
    total = int(heads.keys.ty.shape[2])
    scale = float(attrs.get("scale", 0.0)) or 1 / math.sqrt(size)
    transposed = bb.emit(relax.op.permute_dims(heads.keys, [0, 1, 3, 2]))
    scores = bb.emit(relax.op.matmul(heads.queries, transposed))
    scores = bb.emit(relax.op.multiply(scores, scalar(scale, scores)))
    if added is not None:
        scores = bb.emit(relax.op.add(scores, added))
    least = scalar(float(attrs.get("mask_filter_value", -10000.0)), scores)
    hidden = None if mask is None else _hidden(bb, mask, batch, total)
    if hidden is not None:
        shift = bb.emit(relax.op.where(hidden, least, scalar(0.0, scores)))
        scores = bb.emit(relax.op.add(scores, shift))
    if attrs.get("unidirectional", 0) and length > 1:
        later = np.arange(total)[None] > np.arange(length)[:, None] + total - length
        lowest = scalar(float(np.finfo(str(scores.ty.dtype)).min), scores)
        scores = bb.emit(relax.op.where(relax.const(later, "bool"), lowest, scores))
    weights = bb.emit(relax.op.nn.softmax(scores, -1))
    y = bb.emit(relax.op.matmul(weights, heads.values))
    y = bb.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))
    return bb.emit(relax.op.reshape(y, (batch, length, count * int(heads.values.ty.shape[3]))))


def _hidden(bb: relax.BlockBuilder, mask: relax.Expr, batch: int, total: int) -> relax.Expr | None:
    """Return where a mask hides keys, to be broadcast to ``[B, N, S, T]``.

    ``[B, T]`` and ``[B, S, T]`` have 0 there; ``[B]`` has the length of each sequence, ``[2·B]``
    the ends and then the beginnings. ``[B, 1]`` hides nothing.
    """
    shape = static_shape(mask.ty) or ()
    zero = scalar(0, mask)
    if len(shape) == 3:
        seen = bb.emit(relax.op.greater(mask, zero))
        return bb.emit(relax.op.expand_dims(relax.op.logical_not(seen), 1))
    if len(shape) == 2:
        if shape[1] != total:
            return None
        seen = bb.emit(relax.op.greater(mask, zero))
        return bb.emit(relax.op.expand_dims(relax.op.logical_not(seen), [1, 2]))
    if shape not in ((batch,), (2 * batch,)):
        raise NotImplementedError(f"a mask of the shape {shape}")
    kind = str(mask.ty.dtype)
    places = relax.const(np.arange(total, dtype=kind).reshape(1, 1, 1, -1), kind)
    bounds = bb.emit(relax.op.reshape(mask, (shape[0] // batch, batch, 1, 1, 1)))
    hidden = bb.emit(relax.op.greater_equal(places, _at(bb, bounds, 0)))
    if shape == (batch,):
        return hidden
    before = bb.emit(relax.op.less(places, _at(bb, bounds, 1)))
    return bb.emit(relax.op.logical_or(hidden, before))


register("com.microsoft.Attention", convert=_attention)
register("com.microsoft.MultiHeadAttention", convert=_multi_head_attention)
register("com.microsoft.QAttention", convert=_q_attention)
