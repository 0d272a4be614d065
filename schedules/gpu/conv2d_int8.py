"""Convolutions of 8-bit images in NCHW, accumulated in int32: words of four channels.

Images stay as they are between kernels. A kernel packs words where it brings its operands to local
memory (:mod:`~tvm_edge.schedules.gpu.tiled`). Where that gains nothing, a launch before it packs
them, with the padding (:mod:`~tvm_edge.schedules.gpu.direct`). Weights are packed at compile time,
``[C/4, KH, KW, O]`` of int32.

A depthwise convolution has no reduction over channels: it multiplies one int8 value at a time.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from tvm import te, tirx, topi

from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.words import WORD, dot, packed, word, word_of_one

__all__ = ["conv2d_int8", "int8_tensors", "pack_words", "uses_words"]


def uses_words(workload: ConvWorkload) -> bool:
    """Return whether a convolution accumulates four channels at once."""
    return workload.groups == 1 or workload.channels // workload.groups >= WORD


def pack_words(weights: np.ndarray) -> np.ndarray:
    """Pack weights ``[O, C/groups, KH, KW]`` as ``[ceil(C / groups / 4), KH, KW, O]`` of int32."""
    return np.ascontiguousarray(packed(weights).transpose(1, 2, 3, 0))


def int8_tensors(workload: ConvWorkload) -> list[te.Tensor]:
    """Return image, filters and result of a convolution without an epilogue."""
    own = workload.channels // workload.groups
    shape: tuple[int, ...] = (workload.filters, own, *workload.kernel)
    if uses_words(workload):
        shape = (ceil(own / WORD), *workload.kernel, workload.filters)
    of_image = (workload.batch, workload.channels, workload.height, workload.width)
    image = te.placeholder(of_image, workload.dtype, "image")
    filters = te.placeholder(shape, "int32" if uses_words(workload) else "int8", "filters")
    return [image, filters, conv2d_int8(image, filters, workload, 0)]


def conv2d_int8(
    image: te.Tensor,
    filters: te.Tensor,
    workload: ConvWorkload,
    zero: int,
    knobs: tuple[str, str] | None = None,
) -> te.Tensor:
    """Compute the convolution of ``[N, C, H, W]`` as ``[N, O, OH, OW]`` of int32.

    Parameters
    ----------
    image : te.Tensor
        Of 8-bit numbers, not padded.
    filters : te.Tensor
        Of :func:`pack_words` where :func:`uses_words` says so, else ``[O, C/groups, KH, KW]``.
    workload : ConvWorkload
    zero : int
        What the image is padded with.
    knobs : tuple of str, optional
        For the schedule: under which annotation it looks for them, and they as text; without them
        it chooses.
    """
    attrs = dict([knobs]) if knobs else None
    if uses_words(workload):
        return _of_words(_words(image, workload, zero), filters, workload, attrs)
    return _of_bytes(image, filters, workload, zero, attrs)


def _words(image: te.Tensor, workload: ConvWorkload, zero: int) -> te.Tensor:
    """Pack the padded image into words of four channels of a convolution group."""
    top, left, bottom, right = workload.padding
    own = workload.channels // workload.groups
    count = -(-own // WORD)
    height, width = workload.height, workload.width
    shape = (workload.batch, workload.groups * count, height + top + bottom, width + left + right)

    def element(n: te.Var, c: te.Var, y: te.Var, x: te.Var) -> te.Expr:
        group = 0 if workload.groups == 1 else te.indexdiv(c, count)
        place = c if workload.groups == 1 else te.indexmod(c, count)
        numbers = []
        for k in range(WORD):
            channel = place * WORD + k
            if own % WORD:
                # The last channel once more: its weights there are zeros.
                channel = tirx.min(channel, own - 1)
            numbers.append(image[n, group * own + channel, y - top, x - left])
        inside = [
            condition
            for condition, is_needed in (
                (y >= top, top),
                (y < height + top, bottom),
                (x >= left, left),
                (x < width + left, right),
            )
            if is_needed
        ]
        value = word(numbers)
        if not inside:
            return value
        return tirx.if_then_else(tirx.all(*inside), value, word_of_one(zero))

    return te.compute(shape, element, name="words")


def _of_words(
    words: te.Tensor, filters: te.Tensor, workload: ConvWorkload, attrs: dict[str, str] | None
) -> te.Tensor:
    count = int(filters.shape[0])
    (line_stride, column_stride), (line_step, tap_step) = workload.strides, workload.dilation
    share = workload.filters // workload.groups
    channel, row, tap = axes = _reduction_axes(count, workload)

    def product(n: te.Var, o: te.Var, y: te.Var, x: te.Var) -> te.Expr:
        first = 0 if workload.groups == 1 else te.indexdiv(o, share) * count
        data = words[
            n,
            first + channel,
            y * line_stride + row * line_step,
            x * column_stride + tap * tap_step,
        ]
        return te.sum(dot(filters[channel, row, tap, o], data), axis=axes)

    return te.compute(_result(workload), product, name="conv", attrs=attrs)


def _of_bytes(
    image: te.Tensor,
    filters: te.Tensor,
    workload: ConvWorkload,
    zero: int,
    attrs: dict[str, str] | None,
) -> te.Tensor:
    top, left, bottom, right = workload.padding
    if any(workload.padding):
        value = tirx.const(zero, image.dtype)
        image = topi.nn.pad(image, [0, 0, top, left], [0, 0, bottom, right], value, name="pad")
    own = workload.channels // workload.groups
    share = workload.filters // workload.groups
    (line_stride, column_stride), (line_step, tap_step) = workload.strides, workload.dilation
    channel, row, tap = axes = _reduction_axes(own, workload)

    def product(n: te.Var, o: te.Var, y: te.Var, x: te.Var) -> te.Expr:
        group = o if share == 1 else te.indexdiv(o, share)
        place = group if own == 1 else group * own + channel
        line, column = y * line_stride + row * line_step, x * column_stride + tap * tap_step
        data = image[n, place, line, column]
        return te.sum(_wide(data) * _wide(filters[o, channel, row, tap]), axis=axes)

    return te.compute(_result(workload), product, name="conv", attrs=attrs)


def _reduction_axes(channels: int, workload: ConvWorkload) -> list[te.Var]:
    """Return the reduction axes: channels or words of them, and the window."""
    sizes = (channels, *workload.kernel)
    names = ("channel", "row", "tap")
    return [te.reduce_axis((0, size), name=n) for n, size in zip(names, sizes, strict=True)]


def _result(workload: ConvWorkload) -> tuple[int, int, int, int]:
    return (workload.batch, workload.filters, *workload.output)


def _wide(value: te.Expr) -> te.Expr:
    return tirx.Cast("int32", value)
