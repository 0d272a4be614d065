"""Sums of products that a model has in whole numbers: ConvInteger, MatMulInteger.

They come as operators of int32: 8-bit numbers less a zero point, times a constant. The zero point
may be known in a run alone (DynamicQuantizeLinear). ``Σ (x - z)·w`` is ``Σ x·w - z·Σ w``, of which
the second sum is a constant. Where an image is padded and its zero point not known, it is padded
with zeros. That sum is then over the part of a filter that lies within the image.

Filters beyond int8 are moved: ``Σ x·w`` is ``Σ x·(w - t) + t·Σ x``, and the sum of the image is one
more filter's, of ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np
from tvm import relax

from tvm_edge.ops.quantization.constants import QuantizedConstant
from tvm_edge.relay_passes.ir.expressions import const, constant_of, is_call, static_shape
from tvm_edge.relay_passes.ir.workloads import INT8_TYPES
from tvm_edge.relay_passes.quantize.accumulators import convolution
from tvm_edge.relay_passes.quantize.encodings import Encoding, by_channel
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = [
    "bytes_less_zero",
    "integer_constant",
    "integer_convolution",
    "is_integer_sum",
    "moved_zero",
]

_ONE = np.ones((1, 1, 1, 1), "float32")
_VIEWS = ("relax.expand_dims", "relax.reshape")


def is_integer_sum(value: relax.Expr) -> bool:
    """Return whether it is a convolution or a product whose result is of int32."""
    is_sum = is_call(value, "relax.nn.conv2d", "relax.matmul")
    return is_sum and str(value.ty.dtype) == "int32"


def bytes_less_zero(
    expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr]
) -> tuple[relax.Expr, relax.Expr | int] | None:
    """8-bit numbers and their zero point, of which a tensor of int32 is the difference.

    ``None`` of anything else. A zero point that is a constant of one element is a number.

    Parameters
    ----------
    expr : relax.Expr
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to.
    """
    value = bound.get(expr, expr)
    zero: relax.Expr | int = 0
    if is_call(value, "relax.subtract"):
        value, zero = bound.get(value.args[0], value.args[0]), value.args[1]
        known = integer_constant(zero, bound)
        if known is not None and known.size == 1:
            zero = int(known.reshape(()))
    if not is_call(value, "relax.astype") or str(value.ty.dtype) != "int32":
        return None
    data = value.args[0]
    is_image = str(data.ty.dtype) in INT8_TYPES and static_shape(data.ty) is not None
    return (data, zero) if is_image and constant_of(data) is None else None


def integer_constant(expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> np.ndarray | None:
    """A constant of whole numbers, maybe less a zero point, in another type or shape."""
    value = bound.get(expr, expr)
    found = constant_of(value)
    if found is not None:
        return found if found.dtype.kind in "iu" else None
    if is_call(value, "relax.subtract"):
        a, b = (integer_constant(arg, bound) for arg in value.args)
        return None if a is None or b is None else a - b
    if not is_call(value, "relax.astype", *_VIEWS):
        return None
    inner, shape = integer_constant(value.args[0], bound), static_shape(value.ty)
    dtype = str(value.ty.dtype)
    if inner is None or shape is None or np.dtype(dtype).kind not in "iu":
        return None
    return inner.reshape(shape).astype(dtype)


def moved_zero(
    zero: relax.Expr | int, shift: int, rows: int, emit: Callable[[relax.Expr], relax.Expr]
) -> relax.Expr | int | None:
    """A zero point of numbers that are moved by `shift`, as :func:`integer_convolution` takes it.

    One of all numbers or, of the pixels of a product, one for each of `rows`; ``None`` of others.
    """
    if isinstance(zero, int):
        return zero + shift
    shape = static_shape(zero.ty)
    if shape is None:
        return None
    if shape[-1:] == (1,) and prod(shape) == rows:
        zero = emit(relax.op.reshape(zero, (1, 1, 1, rows)))
    elif prod(shape) != 1:
        return None
    return emit(relax.op.add(zero, relax.const(shift, "int32"))) if shift else zero


def integer_convolution(
    data: relax.Expr,
    zero: relax.Expr | int,
    workload: ConvWorkload,
    weights: np.ndarray,
    takes: Callable[[ConvWorkload], bool],
    emit: Callable[[relax.Expr], relax.Expr],
) -> relax.Expr | None:
    """``Σ (x - z)·w`` in int32; ``None`` if it has no kernel.

    Parameters
    ----------
    data : relax.Expr
        8-bit numbers of the type that kernels take.
    zero : relax.Expr or int
        Zero point of these numbers, in a shape that is broadcast to that of the result.
    workload : ConvWorkload
    weights : np.ndarray
        ``[O, C/groups, KH, KW]`` of int32.
    takes : callable
        Whether there is a kernel for a convolution of 8-bit numbers.
    emit : callable
        Binds an expression to a variable.

    Returns
    -------
    relax.Expr
        ``[N, O, H, W]``.
    """
    if not weights.size:
        return None
    moved = _moved(weights)
    filters = weights - moved.reshape(-1, 1, 1, 1)
    if moved.any():
        if workload.groups > 1:
            return None
        filters = np.concatenate([filters, np.ones_like(filters[:1])])
    workload = replace(workload, filters=len(filters))
    if not takes(workload):
        return None
    encoding = Encoding(1.0, zero if isinstance(zero, int) else 0, str(data.ty.dtype))
    constant = QuantizedConstant(filters, _ONE, np.zeros((1, 1, 1, 1), "int32"))
    product = convolution(data, encoding, workload, constant, lambda result: result)
    if product is None:
        return None
    accumulators = emit(product.numbers)
    if moved.any():
        count = len(weights)
        of_image = emit(relax.op.strided_slice(accumulators, [1], [count], [count + 1]))
        accumulators = emit(relax.op.strided_slice(accumulators, [1], [0], [count]))
        more = emit(relax.op.multiply(of_image, const(moved.reshape(1, -1, 1, 1), "int32")))
        accumulators = emit(relax.op.add(accumulators, more))
    if isinstance(zero, int):
        if not zero:
            return accumulators
        whole = -zero * weights.sum(axis=(1, 2, 3), dtype="int64")
        return emit(relax.op.add(accumulators, by_channel(whole, "int32")))
    seen = const(_within_image(weights, workload), "int32")
    return emit(relax.op.subtract(accumulators, emit(relax.op.multiply(zero, seen))))


def _moved(weights: np.ndarray) -> np.ndarray:
    """Offset to subtract from each filter for its numbers to be of int8; 0 if they are already."""
    low, high = weights.min(axis=(1, 2, 3)), weights.max(axis=(1, 2, 3))
    return np.where((low >= -128) & (high <= 127), 0, low + 128).astype("int32")


def _within_image(weights: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """``[1, O, OH, OW]``: by pixel the sum of the part of each filter within the image.

    ``[1, O, 1, 1]`` where all of it always does.
    """
    taps = weights.sum(axis=1, dtype="int64")
    if not any(workload.padding):
        return taps.sum(axis=(1, 2)).reshape(1, -1, 1, 1)
    top, left, _, _ = workload.padding
    inside = []
    for axis, (before, size) in enumerate(((top, workload.height), (left, workload.width))):
        outputs = np.arange(workload.output[axis])[:, None] * workload.strides[axis]
        places = outputs + np.arange(workload.kernel[axis]) * workload.dilation[axis] - before
        inside.append(((places >= 0) & (places < size)).astype("int64"))
    return np.einsum("yk,xl,okl->oyx", inside[0], inside[1], taps)[None]
