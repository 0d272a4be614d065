"""Accumulators of products of 8-bit numbers, with the scales that make real numbers of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from tvm import relax

from tvm_edge.ops.quantization.constants import QuantizedConstant
from tvm_edge.relay_passes.ir.expressions import const, static_shape
from tvm_edge.relay_passes.quantize.encodings import Encoding, by_channel, of_channels
from tvm_edge.relay_passes.quantize.quantized_constants import (
    quantized_constant,
    real_constant,
)
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["Accumulator", "convolution", "in_lines", "pixels", "product_workload"]


@dataclass(frozen=True)
class Accumulator:
    """``(numbers + offset)·scale + shift``, by channel.

    Attributes
    ----------
    numbers : relax.Expr
        Of int32, ``[N, O, H, W]``.
    offset, scale, shift : np.ndarray
        ``[O]``, of int64 and float32.
    finish : callable
        Makes the operator's result of a tensor ``[N, O, H, W]``.
    """

    numbers: relax.Expr
    offset: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    finish: Callable[[relax.Expr], relax.Expr]

    def real(self, scale: float = 1.0) -> relax.Expr:
        """The sum in float32, over a scale; not finished."""
        numbers, over = self.numbers, np.float32(scale)
        if self.offset.any():
            numbers = relax.op.add(numbers, by_channel(self.offset, "int32"))
        factor = by_channel(self.scale / over, "float32")
        real = relax.op.multiply(relax.op.astype(numbers, "float32"), factor)
        if self.shift.any():
            real = relax.op.add(real, by_channel(self.shift / over, "float32"))
        return real

    def biased(
        self,
        data: relax.Expr,
        bias: relax.Expr,
        bound: Mapping[relax.Var, relax.Expr],
    ) -> Accumulator | None:
        """``data + bias``, where `data` is this sum and `bias` a constant for each channel.

        Parameters
        ----------
        data, bias : relax.Expr
        bound : mapping of relax.Var to relax.Expr
            What variables are bound to.
        """
        shape = static_shape(data.ty)
        if shape is None:
            return None
        axis = 1 if len(shape) == 4 else len(shape) - 1
        filters = len(self.scale)
        whole = quantized_constant(bias, bound)
        if whole is not None and not whole.zero.any():
            numbers = of_channels(whole.values, len(shape), axis, filters)
            alike = np.allclose(whole.scale.reshape(-1), self.scale, rtol=1e-4, atol=0)
            if numbers is not None and alike:
                return replace(self, offset=self.offset + numbers.astype("int64"))
        real = real_constant(bias, bound) if whole is None else whole.real
        shift = None if real is None else of_channels(real, len(shape), axis, filters)
        if shift is None:
            return None
        return replace(self, shift=self.shift + shift.astype("float32"))


def convolution(
    data: relax.Expr,
    encoding: Encoding,
    workload: ConvWorkload,
    weights: QuantizedConstant,
    finish: Callable[[relax.Expr], relax.Expr],
) -> Accumulator | None:
    """A convolution in int32; ``None`` if its filters or its form have no kernel.

    Parameters
    ----------
    data : relax.Expr
        8-bit numbers, which stand for real ones by `encoding`.
    workload : ConvWorkload
    weights : QuantizedConstant
        ``[O, C/groups, KH, KW]``.
    finish : callable
        See :class:`Accumulator`.
    """
    whole, filters = weights.whole, workload.filters
    by_filter = weights.scale.size in (1, weights.scale.shape[0])
    fits = whole.size > 0 and whole.min() >= -128 and whole.max() <= 127
    if not by_filter or not fits:
        return None
    top, left, bottom, right = workload.padding
    if any(workload.padding):
        width = [0, 0, 0, 0, top, bottom, left, right]
        data = relax.op.nn.pad(data, width, "constant", float(encoding.zero))
    numbers = relax.op.nn.conv2d(
        data,
        const(whole, "int8"),
        workload.strides,
        (0, 0, 0, 0),
        workload.dilation,
        workload.groups,
        out_dtype="int32",
    )
    scale = np.float32(encoding.scale) * weights.scale.astype("float32").reshape(-1)
    return Accumulator(
        numbers,
        -encoding.zero * whole.sum(axis=(1, 2, 3), dtype="int64"),
        np.broadcast_to(scale, (filters,)),
        np.zeros(filters, "float32"),
        finish,
    )


def product_workload(shape: Sequence[int], columns: int) -> ConvWorkload:
    """A product with a matrix of so many columns; the rows on its left, in `shape`, are pixels."""
    *rows, reduction = shape
    return ConvWorkload(
        1, reduction, 1, prod(rows), columns, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), groups=1
    )


def pixels(
    data: relax.Expr, product: ConvWorkload, bind: Callable[[relax.Expr], relax.Expr]
) -> relax.Expr:
    """A matrix whose rows are the pixels of an image; `bind` makes a variable of a value."""
    rows, channels = product.width, product.channels
    data = relax.op.reshape(data, (rows, channels))
    if rows > 1:
        data = relax.op.permute_dims(data, [1, 0])
    return bind(relax.op.reshape(data, (1, channels, 1, rows)))


def in_lines(result: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """The result of such a product, ``[1, columns, 1, rows]``, in its own shape."""
    columns, rows = shape[-1], prod(shape[:-1])
    if rows > 1:
        lines = relax.op.reshape(result, (columns, rows))
        result = relax.op.permute_dims(lines, [1, 0])
    return relax.op.reshape(result, shape)
