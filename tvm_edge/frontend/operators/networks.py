"""Layers of networks: normalisation, convolution, dropout."""

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
    scalar,
    static_shape,
)

__all__ = ["NETWORKS"]


def _batch_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """In training mode by the statistics of the data; else TVM's, which has others for training."""
    if not attrs.get("training_mode", 0):
        if num_outputs(attrs) > 1:
            raise NotImplementedError(
                "BatchNormalization in training mode; export it for inference"
            )
        return None
    x, scale, bias, mean, variance = inputs
    rank, dtype = int(x.ty.ndim), str(x.ty.dtype)
    axes = [axis for axis in range(rank) if axis != 1]
    # In float32: the squares of float16 leave its range.
    wide = x if dtype in ("float32", "float64") else bb.emit(relax.op.astype(x, "float32"))
    kind = str(wide.ty.dtype)
    new_mean = bb.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = bb.emit(relax.op.subtract(wide, new_mean))
    new_variance = bb.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
    epsilon = relax.const(attrs.get("epsilon", 1e-5), kind)
    y = bb.emit(relax.op.divide(centred, relax.op.sqrt(relax.op.add(new_variance, epsilon))))
    along = [1, -1, *[1] * (rank - 2)]
    for operator, value in ((relax.op.multiply, scale), (relax.op.add, bias)):
        value = bb.emit(relax.op.astype(relax.op.reshape(value, along), kind))
        y = bb.emit(operator(y, value))
    y = y if kind == dtype else bb.emit(relax.op.astype(y, dtype))
    kept = attrs.get("momentum", 0.9)
    results = [y]
    for old, new in ((mean, new_mean), (variance, new_variance)):
        own = str(old.ty.dtype)
        new = bb.emit(relax.op.astype(relax.op.reshape(new, (-1,)), own))
        older = relax.op.multiply(old, relax.const(kept, own))
        newer = relax.op.multiply(new, relax.const(1 - kept, own))
        results.append(bb.emit(relax.op.add(older, newer)))
    return relax.Tuple(results[: num_outputs(attrs)]) if num_outputs(attrs) > 1 else y


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


def _lp_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Divided by the norm of the axis; zeros stay zeros."""
    x, axis, p = inputs[0], int(attrs.get("axis", -1)), int(attrs.get("p", 2))
    if p not in (1, 2):
        raise NotImplementedError(f"LpNormalization with p {p}")
    if p == 1:
        norm = relax.op.sum(relax.op.abs(x), [axis], True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), [axis], True))
    norm = bb.emit(norm)
    zero = bb.emit(relax.op.equal(norm, scalar(0.0, x)))
    # Divided by 1 there, as the other branch of a choice is calculated too.
    divisor = bb.emit(relax.op.where(zero, scalar(1.0, x), norm))
    return bb.normalize(relax.op.divide(x, divisor))


def _rms_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """In float32; TVM's kernel fails where no axis is left."""
    x, scale, dtype = inputs[0], inputs[1], str(inputs[0].ty.dtype)
    axes = list(range(int(attrs.get("axis", -1)) % x.ty.ndim, x.ty.ndim))
    wide = x if dtype in ("float32", "float64") else bb.emit(relax.op.astype(x, "float32"))
    epsilon = scalar(attrs.get("epsilon", 1e-5), wide)
    square = bb.emit(relax.op.mean(relax.op.multiply(wide, wide), axes, keepdims=True))
    y = bb.emit(relax.op.divide(wide, relax.op.sqrt(relax.op.add(square, epsilon))))
    y = y if wide is x else bb.emit(relax.op.astype(y, dtype))
    return bb.normalize(relax.op.multiply(y, scale))


def _matmul(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr | None:
    """Of bfloat16: summed in float32 and rounded once. The compiler sees to float16."""
    dtype = str(inputs[0].ty.dtype)
    if dtype != "bfloat16":
        return None
    a, b = (bb.emit(relax.op.astype(value, "float32")) for value in inputs[:2])
    return bb.normalize(relax.op.astype(relax.op.matmul(a, b), dtype))


NETWORKS: dict[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MatMul": _matmul,
    "RMSNormalization": _rms_normalization,
}
