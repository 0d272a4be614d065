"""Convolutions of 8-bit images stored in blocks, added up in int32: dot products of four channels.

An image is ``[N, C/16, H, W, 16]``, one of few channels ``[N, 1, H, W, 4]``. A CPU's instruction
for 8-bit numbers (``vpdpbusd``, ``sdot``) multiplies four of one operand with four of the other. It
adds the sum of their products to a lane of int32. So four neighbouring channels of a pixel are
broadcast, and filters are ``[O/16, C/b, KH, KW, b/4, 16, 4]``. A depthwise convolution has four
neighbouring pixels of a line in their place, with filters ``[C/16, KH, S * KW/4, 16, 4]``. Putting
four pixels of each lane side by side takes longer than to multiply them: `S` neighbouring results
share them, with filters that are shifted by a column each.

NEON without such an instruction adds two products of 8 bits in 16 bits. It takes filters in groups
of fewer: two channels, ``[O/16, C/b, KH, KW, b/2, 16, 2]``, or single pixels of two a step,
``[C/16, KH, KW, 16, 1]``, that are not transposed.

Zero points are no part of this but for the padding, which is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.blocked import filled, fills, pack_filters
from tvm_edge.schedules.channel_groups import conv2d_groups, grouped, pack_groups, pad_groups
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.knobs import CONFIG

__all__ = [
    "BLOCK",
    "CONV2D_INT8",
    "DEPTHWISE_INT8",
    "DOT",
    "columns_beyond",
    "conv2d_int8",
    "depthwise_int8",
    "image_block",
    "pack_dot_filters",
    "pack_window_filters",
    "window_shifts",
    "window_step",
]

CONV2D_INT8 = "conv2d_int8"
"""Name of the block that sums in a dense or grouped convolution."""

DEPTHWISE_INT8 = "depthwise_int8"
"""Name of the block that sums in a depthwise convolution."""

BLOCK = 16
"""Channels in a block: lanes of int32 in the widest vector."""

DOT = 4
"""Products that are added to a lane at once."""


_MOST_PRODUCTS = 3
"""A dense convolution's products with the channels that fill blocks up, over its own.

Float32 takes a quarter of the products at once, and its image has to be unpacked first: on a Zen 4
the model around 6 filters of 16 is 1.1 to 1.4 times as fast in int8, around 9 × 9 channels of
16 × 16, 3.2 times the products, 0.95 times.
"""


def image_block(workload: ConvWorkload) -> int:
    """Channels in a block of the image that a convolution reads; 0 if it has no kernel here.

    Channels are filled up to whole blocks, of a dense convolution as long as int8 stays faster than
    float32, of a depthwise one by at most half as many again.
    """
    if 0 in workload.output:
        return 0
    if workload.depthwise:
        return BLOCK if fills(workload.filters, BLOCK) and workload.dilation[1] == 1 else 0
    if workload.groups == 1:
        small = workload.channels <= DOT
        products = filled(workload.filters, BLOCK) * (
            workload.channels if small else filled(workload.channels, BLOCK)
        )
        if products > _MOST_PRODUCTS * workload.filters * workload.channels:
            return 0
        return DOT if small else BLOCK
    own = (workload.channels // workload.groups, workload.filters // workload.groups)
    return BLOCK if all(channels % BLOCK == 0 for channels in own) else 0


def pack_dot_filters(
    weights: np.ndarray, block: int, groups: int = 1, group: int = DOT
) -> np.ndarray:
    """Filters ``[O, C/groups, KH, KW]`` as ``[O/16, C/b, KH, KW, b/g, 16, g]``."""
    return pack_groups(weights, block, group, BLOCK, groups)


def window_step(group: int) -> int:
    """Return how many columns of a depthwise filter are a step, if `group` are side by side."""
    return DOT if group == DOT else 2


def window_shifts(columns: int, stride: int, group: int = DOT) -> int:
    """Return how many neighbouring results of a depthwise convolution share four pixels.

    A power of two, so that tiles and incomplete ones of them begin with the first.

    Parameters
    ----------
    columns, stride : int
        Of the filter.
    group : int
        See :func:`pack_window_filters`.
    """
    if stride > 1 or group < DOT:
        return 1
    spare = ceil(columns / DOT) * DOT - columns
    return 1 << (spare + 1).bit_length() - 1


def pack_window_filters(weights: np.ndarray, stride: int, group: int = DOT) -> np.ndarray:
    """Filters ``[C, 1, KH, KW]`` as ``[C/16, KH, S * KW/g, 16, g]``, filled up with zeros.

    Parameters
    ----------
    weights : np.ndarray
    stride : int
        Along columns.
    group : int
        Columns that are side by side for each lane.
    """
    width = weights.shape[3]
    whole = filled(width, window_step(group))
    shifted = [
        np.pad(weights, [(0, 0), (0, 0), (0, 0), (shift, whole - width - shift)])
        for shift in range(window_shifts(width, stride, group))
    ]
    packed = pack_filters(np.concatenate(shifted, axis=3), 1, BLOCK, len(weights))[:, 0, :, :, 0]
    blocks, lines, columns, lanes = packed.shape
    steps = packed.reshape(blocks, lines, columns // group, group, lanes)
    return np.ascontiguousarray(steps.swapaxes(-1, -2))


def conv2d_int8(
    image: te.Tensor,
    filters: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    zero: int,
    config: str = "",
) -> te.Tensor:
    """Convolve a blocked image of 8-bit numbers, as :func:`conv2d_groups` does."""
    windows = (strides, padding, dilation, groups)
    group = int(filters.shape[-1])
    # An instruction takes several groups of two or eight channels.
    taken = BLOCK if group > DOT else DOT
    return conv2d_groups(image, filters, *windows, CONV2D_INT8, config, zero, taken)


def depthwise_int8(
    image: te.Tensor,
    filters: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: int,
    columns: int,
    zero: int,
    config: str = "",
) -> te.Tensor:
    """Convolve each channel of a blocked image of 8-bit numbers by itself.

    Parameters
    ----------
    image : te.Tensor
        ``[N, C/16, H, W, 16]``.
    filters : te.Tensor
        Of :func:`pack_window_filters`.
    strides : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    dilation : int
        Along lines.
    columns : int
        Of a filter, without those that fill it up.
    zero : int
        Padding value of the image.
    config : str
        Knobs for the schedule; empty: the schedule's own choice.

    Returns
    -------
    te.Tensor
        ``[N, C/16, OH, OW, 16]`` of int32.
    """
    batch = image.shape[0]
    blocks, kernel_h, _, lanes, group = (int(dim) for dim in filters.shape)
    taken = window_step(group)
    steps, shifts = ceil(columns / taken), window_shifts(columns, strides[1], group)
    top, left, bottom, right = padding
    lines, width = (int(dim) for dim in image.shape[2:4])
    out_h = (lines + top + bottom - dilation * (kernel_h - 1) - 1) // strides[0] + 1
    out_w = (width + left + right - columns) // strides[1] + 1
    beyond = columns_beyond(width + left + right, out_w, strides[1], steps * taken)
    padded = pad_groups(image, (top, left, bottom, right + beyond), zero)
    ky, step, k = axes = [
        te.reduce_axis((0, size), name=name)
        for name, size in {"ky": kernel_h, "step": steps, "k": taken}.items()
    ]

    def product(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        first = tirx.floordiv(x, shifts) * shifts * strides[1]
        line, column = y * strides[0] + ky * dilation, first + step * taken + k
        own, place = grouped(tirx.floormod(x, shifts) * steps + step, k, taken, group)
        return te.sum(
            _wide(padded[n, o, line, column, v]) * _wide(filters[o, ky, own, v, place]), axis=axes
        )

    return te.compute(
        (batch, blocks, out_h, out_w, lanes),
        product,
        name=DEPTHWISE_INT8,
        attrs={CONFIG: config} if config else None,
    )


def columns_beyond(width: int, outputs: int, stride: int, taps: int) -> int:
    """Columns that filters reach beyond a padded image of `width`, where they are filled up."""
    return max((outputs - 1) * stride + taps - width, 0)


def _wide(value: tirx.Expr) -> tirx.Expr:
    return tirx.Cast("int32", value)
