"""Normalisation, softmax and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, num_outputs, operand, scalar
from tvm_edge.ops.elements import plain
from tvm_edge.ops.flops import Operation, elements, no_flops, per_element
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS, register, relax_names
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of
from tvm_edge.schedules.cpu.rows import softmax

__all__: list[str] = []


def _batch_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Normalise by statistics of the data in training mode, which TVM does otherwise."""
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


def _dropout(_bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> None:
    """Refuse training mode; TVM's is that of inference whatever is asked for."""
    training = operand(inputs, 2)
    if training is None:
        return
    mode, ratio = constant_of(training), constant_of(operand(inputs, 1))
    nothing_drops = ratio is not None and ratio.item() == 0
    if mode is None or (mode.item() and not nothing_drops):
        raise NotImplementedError("Dropout in training mode; export it for inference")


def _layer_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Return mean and inverse deviation too, which are zeros of TVM's.

    TVM's kernel has a fixed number of elements to normalise, too.
    """
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    axes = list(range(int(attrs.get("axis", -1)) % x.ty.ndim, x.ty.ndim))
    lengths = lengths_of(x.ty)
    is_open = lengths is not None and any(isinstance(lengths[i], tirx.Expr) for i in axes)
    if num_outputs(attrs) == 1 and not is_open:
        return None
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
    results = [y, mean, inverse][: num_outputs(attrs)]
    return results[0] if len(results) == 1 else relax.Tuple(results)


def _hardmax(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Mark the first largest element along an open axis, or one in an open shape."""
    x = inputs[0]
    lengths, since = lengths_of(x.ty), attrs["opset"] >= 13
    if lengths is None or not any(isinstance(length, tirx.Expr) for length in lengths):
        return None
    axis = int(attrs.get("axis", -1 if since else 1)) % len(lengths)
    rows = x
    if not since:  # all axes from this one on are one
        outer = reduce(mul, lengths[:axis], 1)
        rows = bb.emit(relax.op.reshape(x, (outer, plain(reduce(mul, lengths[axis:], 1)))))
        axis = 1
    count, dtype = rows.ty.shape[axis], str(x.ty.dtype)
    best = bb.emit(relax.op.argmax(rows, axis, keepdims=True))
    places = bb.emit(relax.op.arange(0, count, 1, "int64"))
    along = [1] * int(rows.ty.ndim)
    along[axis] = count
    marked = bb.emit(relax.op.equal(best, relax.op.reshape(places, along)))
    marked = bb.emit(relax.op.astype(marked, dtype))
    return marked if since else bb.emit(relax.op.reshape(marked, lengths))


def _lp_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Divide by the norm of the axis; zeros stay zeros."""
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
    """Normalise in float32; TVM's kernel fails where no axis is left."""
    x, scale, dtype = inputs[0], inputs[1], str(inputs[0].ty.dtype)
    axes = list(range(int(attrs.get("axis", -1)) % x.ty.ndim, x.ty.ndim))
    wide = x if dtype in ("float32", "float64") else bb.emit(relax.op.astype(x, "float32"))
    epsilon = scalar(attrs.get("epsilon", 1e-5), wide)
    square = bb.emit(relax.op.mean(relax.op.multiply(wide, wide), axes, keepdims=True))
    y = bb.emit(relax.op.divide(wide, relax.op.sqrt(relax.op.add(square, epsilon))))
    y = y if wide is x else bb.emit(relax.op.astype(y, dtype))
    return bb.normalize(relax.op.multiply(y, scale))


def _lower_softmax(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower to a kernel of rows on a CPU."""
    shape, dtype = lengths_of(call.args[0].ty), str(call.args[0].ty.dtype)
    if site.spec.launches_grids or dtype != "float32" or not shape or is_empty(shape):
        return call
    log = call.op.name == "relax.nn.log_softmax"
    lengths = [n if isinstance(n, int) else tirx.Var("n", "int64") for n in shape]
    kernel = softmax(lengths, int(call.attrs.axis) % len(shape), site.spec, log=log)
    name = "log_softmax" if log else "softmax"
    return site.unbound(kernel.func, name, [call.args[0]], [site.tensor(shape, dtype)])


def _lrn_flops(op: Operation) -> int:
    """Count a square, the window's sum, and ``x / (bias + alpha * sum) ** beta``."""
    return (op.attributes["size"] + 4) * elements(op.inputs[0])


# A scale and a shift: in inference its statistics are constants.
_BATCH = per_element(2)
# Sum; subtract, square, sum; scale, and the learned scale and shift.
_STATISTICS = per_element(7)
# Largest, subtract, exponential, sum, divide.
_SOFTMAX = per_element(5)
_RMS = per_element(4)

register("BatchNormalization", convert=_batch_normalization, flops=_BATCH)
register("Dropout", convert=_dropout, forming=(1, 2), settings=(1,), flops=no_flops)
register("GroupNormalization", "InstanceNormalization", flops=_STATISTICS)
register("Hardmax", convert=_hardmax, flops=per_element(1))
register("LRN", flops=_lrn_flops)
register("LayerNormalization", convert=_layer_normalization, flops=_STATISTICS)
register("LogSoftmax", "Softmax", flops=_SOFTMAX)
register("LpNormalization", convert=_lp_normalization, flops=per_element(3))
register("MeanVarianceNormalization", flops=per_element(5))
register("RMSNormalization", convert=_rms_normalization, flops=_RMS)

register("relax.nn.batch_norm", gpu=PERFORMS, flops=_BATCH)
register("relax.nn.dropout", gpu=PERFORMS, flops=no_flops)
register(
    *relax_names("nn.group_norm nn.instance_norm nn.layer_norm"),
    gpu=PERFORMS,
    flops=_STATISTICS,
)
register("relax.nn.rms_norm", gpu=PERFORMS, flops=_RMS)
register(
    *relax_names("nn.log_softmax nn.softmax"),
    lower=_lower_softmax,
    gpu=PERFORMS,
    flops=_SOFTMAX,
)
