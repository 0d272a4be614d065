"""Images stored in blocks of channels (NCHW16c), and the convolutions that read them.

An image ``[N, C/b, H, W, b]`` keeps `b` channels of a pixel side by side. With `b` the lanes of a
vector register, a convolution's output needs no shuffling whatever the width, the stride or the
size of the kernel: lanes are output channels, and each pixel is broadcast.

Filters are ``[O/l, C/b, KH, KW, b, l]``, packed when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd
from typing import Any

import numpy as np
from tvm import sym, te, tirx, topi

from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import is_half
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.taps import CHANNELS, REACH, read_reaches

__all__ = [
    "CONV2D",
    "DEPTHWISE",
    "TRANSPOSED",
    "conv2d",
    "filled",
    "fills",
    "input_block",
    "number_or_length",
    "outputs",
    "pack_constant",
    "pack_filters",
    "pack_image",
    "pad_image",
    "repack_image",
    "staged",
    "unpack_image",
    "unpacks_in_kernel",
]

CONV2D = "conv2d_blocked"
"""Name of the block that sums in a dense or grouped convolution."""

DEPTHWISE = "depthwise_blocked"
"""Name of the block that sums in a depthwise convolution."""

TRANSPOSED = "conv2d_transposed"
"""Name of the kernel of a transposed convolution."""


_FEW_CHANNELS = 4
_SHUFFLED = 4  # channels, side by side in memory, that shuffles move to lines of their own


def number_or_length(length: int | tirx.Expr) -> Any:
    """Return a length as Python's integer, or as the expression that it is."""
    known = constant(length)
    return length if known is None else known


def outputs(length: Any, kernel: int, stride: int, dilation: int) -> Any:
    """Return the number of windows along a padded axis, which may be open."""
    room = length - dilation * (kernel - 1) - 1
    if isinstance(length, int):
        return room // stride + 1
    return sym.Analyzer().simplify(tirx.floordiv(room, stride) + 1)


def input_block(workload: ConvWorkload, block: int) -> int:
    """Channels in a block of the image that a convolution reads; 0 if blocks do not fit it.

    Channels are filled up to whole blocks by at most half as many again. Images of few channels
    are read one by one: packing them would mostly add zeros. Those of float16 may be in blocks of
    half the size, as convolutions of so many filters leave them.
    """
    if not fills(workload.filters, block):
        return 0
    if workload.groups == 1 and workload.channels <= _FEW_CHANNELS:
        return 1
    if workload.depthwise or workload.groups == 1:
        narrow = workload.dtype == "float16" and not workload.depthwise
        sizes = (block, block // 2) if narrow else (block,)
        return next((size for size in sizes if fills(workload.channels, size)), 0)
    own = (workload.channels // workload.groups, workload.filters // workload.groups)
    return block if all(channels % block == 0 for channels in own) else 0


def fills(channels: int, block: int) -> bool:
    """Return whether at most half as many channels again fill whole blocks up."""
    return 2 * filled(channels, block) <= 3 * channels


def filled(channels: int, block: int) -> int:
    """`channels` rounded up to whole blocks."""
    return ceil(channels / block) * block


def pack_filters(
    weights: np.ndarray, channels_block: int, filters_block: int, groups: int = 1
) -> np.ndarray:
    """Filters ``[O, C/groups, KH, KW]`` as ``[O/l, C/b, KH, KW, b, l]``.

    Input channels are filled up with zeros, and output channels with the last filter: what follows
    may turn zeros into NaN, whose product with the next filters' zeros would be NaN as well.
    """
    filters, channels, *window = weights.shape
    assert groups in (1, filters) or filters // groups % filters_block == 0
    whole = np.zeros(
        (filled(filters, filters_block), filled(channels, channels_block), *window), weights.dtype
    )
    whole[:filters, :channels] = weights
    whole[filters:, :channels] = weights[-1:]
    depth = whole.shape[1] // channels_block
    blocks = whole.reshape(-1, filters_block, depth, channels_block, *window)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 3, 1))


def pack_constant(value: np.ndarray, block: int) -> np.ndarray:
    """A constant that broadcasts to an image, as it broadcasts to the blocked image.

    Channels are filled up with the last one, where 0 might be divided by.
    """
    if value.size == 1:
        return value.reshape(())
    batch, channels, *size = (1,) * (4 - value.ndim) + value.shape
    value = value.reshape(batch, channels, *size)
    if channels == 1:
        return value[..., None]
    fill = [(0, 0), (0, filled(channels, block) - channels), *((0, 0) for _ in size)]
    whole = np.pad(value, fill, mode="edge")
    blocks = whole.reshape(batch, -1, block, *size)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))


def pack_image(image: te.Tensor, block: int) -> te.Tensor:
    """``[N, C, H, W]`` as ``[N, C/b, H, W, b]``, filled up with the last channel."""
    batch, channels, lines, columns = image.shape

    def element(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        channel = c * block + v
        if int(channels) % block:
            channel = tirx.min(channel, int(channels) - 1)
        return image[n, channel, y, x]

    shape = (batch, filled(int(channels), block) // block, lines, columns, block)
    return te.compute(shape, element, name="packed")


def unpack_image(image: te.Tensor, channels: int) -> te.Tensor:
    """The first `channels` of ``[N, C/b, H, W, b]`` as ``[N, channels, H, W]``."""
    batch, _, lines, columns, block = image.shape
    return te.compute(
        (batch, channels, lines, columns),
        lambda n, c, y, x: image[n, tirx.floordiv(c, block), y, x, tirx.floormod(c, block)],
        name="unpacked",
    )


def unpacks_in_kernel(channels: int, block: int) -> bool:
    """Return whether a convolution's kernel can unpack its own result in vectors."""
    return gcd(channels, block) >= _SHUFFLED


def repack_image(image: te.Tensor, channels: int, block: int) -> te.Tensor:
    """``[N, C/b, H, W, b]`` of `channels` channels in blocks of another size.

    As ``[N, C/block, H, W, block/g, g]``, where `g` divides both sizes: what lies side by side in
    either is one vector. A view joins the last two axes.
    """
    batch, blocks, lines, columns, before = map(number_or_length, image.shape)
    step = gcd(before, block)
    count, there = filled(channels, block) // block, blocks * before

    def element(
        n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr, k: tirx.Expr, v: tirx.Expr
    ) -> tirx.Expr:
        first = c * block + k * step
        if count * block <= there:
            own = tirx.floormod(first, before) + v
            return image[n, tirx.floordiv(first, before), y, x, own]
        channel = tirx.min(first + v, there - 1)  # filled up with the last one
        return image[n, tirx.floordiv(channel, before), y, x, tirx.floormod(channel, before)]

    shape = (batch, count, lines, columns, block // step, step)
    return te.compute(shape, element, name="repacked")


def pad_image(image: te.Tensor, padding: Sequence[int], zero: int = 0) -> te.Tensor:
    """Pad the lines and columns of ``[N, C/b, H, W, b]``; return the image itself if none are."""
    top, left, bottom, right = padding
    if all(isinstance(beyond, int) and not beyond for beyond in padding):
        return image
    before, after = [0, 0, top, left, 0], [0, 0, bottom, right, 0]
    return topi.nn.pad(image, before, after, tirx.const(zero, image.dtype), name="padded")


def staged(image: te.Tensor, padded: te.Tensor) -> te.Tensor:
    """Return what a convolution reads: of an image of 16 bits a copy, padded or not.

    A copy is widened to float32 in vectors, once; the convolution broadcasts element by element.
    """
    if not is_half(image.dtype) or not padded.same_as(image):
        return padded
    return te.compute(image.shape, lambda *i: image(*i), name="widened")


def _stored_padding(padding: Sequence[int], reach: str) -> tuple[Sequence[int], tuple[int, int]]:
    """Return the padding that is stored, and the lines and columns before it that are not."""
    if not reach:
        return padding, (0, 0)
    lengths, widths = read_reaches(reach)
    stored = (lengths.before, widths.before, lengths.after, widths.after)
    return stored, (lengths.padding - lengths.before, widths.padding - widths.before)


def _attributes(config: str, reach: str, channels: int) -> dict[str, Any]:
    """Return what the schedule reads off a convolution's block; nothing of what is not given."""
    given = {CONFIG: config, REACH: reach, CHANNELS: channels}
    return {key: value for key, value in given.items() if value}


def conv2d(
    image: te.Tensor,
    filters: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    config: str = "",
    reach: str = "",
    channels: int = 0,
) -> te.Tensor:
    """Convolve a blocked image with packed filters.

    Parameters
    ----------
    image : te.Tensor
        ``[N, C/b, H, W, b]``.
    filters : te.Tensor
        ``[O/l, C/groups/b, KH, KW, b, l]``; of a depthwise convolution ``[C/l, 1, KH, KW, 1, l]``.
    strides, dilation : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    groups : int
        1, one group for each channel, or groups of whole blocks of `l` filters.
    config : str
        Knobs for the schedule; empty: the schedule's own choice.
    reach : str
        Where taps in the padding are skipped (:func:`tvm_edge.schedules.taps.reaches`): of the
        padding only a part is stored.
    channels : int
        Those of the image, where zeros fill its last block up; 0: all.

    Returns
    -------
    te.Tensor
        ``[N, O/l, OH, OW, l]``.
    """
    batch = image.shape[0]
    blocks, depth, kernel_h, kernel_w, block, lanes = (int(dim) for dim in filters.shape)
    lines, columns = map(number_or_length, image.shape[2:4])
    stored, ahead = _stored_padding(padding, reach)
    padded = staged(image, pad_image(image, stored))
    out_h = outputs(lines + padding[0] + padding[2], kernel_h, strides[0], dilation[0])
    out_w = outputs(columns + padding[1] + padding[3], kernel_w, strides[1], dilation[1])
    ky, kx = (te.reduce_axis((0, n), name=k) for n, k in ((kernel_h, "ky"), (kernel_w, "kx")))
    fills = channels % block == 0 or groups > 1
    attrs = _attributes(config, reach, 0 if fills else channels)
    shape = (batch, blocks, out_h, out_w, lanes)

    def line(y: tirx.Expr) -> tirx.Expr:
        return y * strides[0] + ky * dilation[0] - ahead[0]

    def column(x: tirx.Expr) -> tirx.Expr:
        return x * strides[1] + kx * dilation[1] - ahead[1]

    if groups > 1 and block == 1:  # groups of several channels fill blocks
        return te.compute(
            shape,
            lambda n, o, y, x, v: te.sum(
                padded[n, o, line(y), column(x), v] * filters[o, 0, ky, kx, 0, v], axis=[ky, kx]
            ),
            name=DEPTHWISE,
            attrs=attrs,
        )
    co = te.reduce_axis((0, depth), name="co")
    ci = te.reduce_axis((0, block), name="ci")
    share = blocks // groups

    def first(o: tirx.Expr) -> tirx.Expr:
        return co if groups == 1 else tirx.floordiv(o, share) * depth + co

    return te.compute(
        shape,
        lambda n, o, y, x, v: te.sum(
            padded[n, first(o), line(y), column(x), ci] * filters[o, co, ky, kx, ci, v],
            axis=[co, ky, kx, ci],
        ),
        name=CONV2D,
        attrs=attrs,
    )
