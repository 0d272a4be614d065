"""Layers of networks: normalisation, convolution, pooling, dropout, attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ConvTranspose as TvmConvTranspose

from tvm_edge.frontend.operators.base import (
    Attributes,
    Converter,
    constant,
    num_outputs,
    operand,
    static_shape,
)

__all__ = ["NETWORKS"]


def _attention(
    _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    """TVM's Attention is another operator, that of ONNX Runtime's own domain."""
    raise NotImplementedError("Attention as a single operator; export it as MatMul and Softmax")


def _batch_normalization(
    _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], attrs: Attributes
) -> None:
    """TVM's; its training mode returns other statistics than ONNX's."""
    if attrs.get("training_mode", 0) or num_outputs(attrs) > 1:
        raise NotImplementedError("BatchNormalization in training mode; export it for inference")


def _conv_transpose(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """TVM's, which ignores ``output_shape``, with pads that give it."""
    shape, weight = static_shape(inputs[0]), static_shape(inputs[1])
    if "output_shape" not in attrs:
        return None
    if shape is None or weight is None:
        raise NotImplementedError("ConvTranspose with output_shape and dynamic dimensions")
    rank = len(shape) - 2
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    extra = list(attrs.get("output_padding", [0] * rank))
    wanted = [int(length) for length in attrs["output_shape"]][-rank:]
    before, after = [], []
    for i in range(rank):
        full = strides[i] * (shape[2 + i] - 1) + extra[i] + (weight[2 + i] - 1) * dilations[i] + 1
        total = full - wanted[i]
        if total < 0:  # more than the result: it ends in what only the bias reaches
            extra[i], total = extra[i] - total, 0
        small = total // 2
        upper = attrs.get("auto_pad", b"NOTSET") == b"SAME_UPPER"
        before.append(small if upper else total - small)
        after.append(total - before[-1])
    pads = {"pads": (*before, *after), "output_padding": extra}
    padded = {k: v for k, v in attrs.items() if k not in ("auto_pad", "output_shape")}
    return TvmConvTranspose._impl_v1(bb, inputs, {**padded, **pads}, None)


def _dropout(_bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> None:
    """TVM's, which is that of inference whatever is asked for."""
    training = operand(inputs, 2)
    if training is None:
        return
    mode, ratio = constant(training), constant(operand(inputs, 1))
    nothing_drops = ratio is not None and ratio.item() == 0
    if mode is None or (mode.item() and not nothing_drops):
        raise NotImplementedError("Dropout in training mode; export it for inference")


def _layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """With mean and inverse deviation, which TVM returns as zeros."""
    if num_outputs(attrs) == 1:
        return None
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    axes = list(range(int(attrs.get("axis", -1)) % x.ty.ndim, x.ty.ndim))
    # ONNX computes in float32 (stash_type 1), and returns the statistics so.
    wide = x if dtype == "float32" else bb.emit(relax.op.astype(x, "float32"))
    mean = bb.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = bb.emit(relax.op.subtract(wide, mean))
    square = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    epsilon = relax.const(np.float32(attrs.get("epsilon", 1e-5)), "float32")
    inverse = bb.emit(relax.op.rsqrt(relax.op.add(square, epsilon)))
    y = relax.op.multiply(centred, inverse)
    y = y if dtype == "float32" else relax.op.astype(y, dtype)
    y = relax.op.multiply(y, inputs[1])
    bias = operand(inputs, 2)
    y = bb.emit(y if bias is None else relax.op.add(y, bias))
    return relax.Tuple([y, mean, inverse][: num_outputs(attrs)])


def _max_pool(_bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], attrs: Attributes) -> None:
    """TVM's, which has no indices."""
    if num_outputs(attrs) > 1:
        raise NotImplementedError("MaxPool with its output Indices")


def _max_unpool(_bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> None:
    """TVM's, which fails on an output shape."""
    if operand(inputs, 2) is not None:
        raise NotImplementedError("MaxUnpool with its input output_shape")


NETWORKS: dict[str, Converter] = {
    "Attention": _attention,
    "BatchNormalization": _batch_normalization,
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
