"""Convolutions of images in channel blocks whose instruction multiplies groups of input channels.

An image is ``[N, C/b, H, W, b]``. An instruction multiplies the `g` numbers of a group with `g` of
the filters, and adds the sum of their products to a lane of the accumulators: four of 8 bits, two
of bfloat16. So `g` neighbouring channels of a pixel are broadcast, and filters are
``[O/l, C/b, KH, KW, b/g, l, g]``. Some instructions take several such groups at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te, tirx, topi

from tvm_edge.schedules.blocked import pack_filters
from tvm_edge.schedules.float16 import KEPT
from tvm_edge.schedules.knobs import CONFIG

__all__ = ["conv2d_groups", "grouped", "pack_groups", "pad_groups"]


def pack_groups(
    weights: np.ndarray, block: int, group: int, lanes: int, groups: int = 1
) -> np.ndarray:
    """Filters ``[O, C/groups, KH, KW]`` as ``[O/l, C/b, KH, KW, b/g, l, g]``.

    Parameters
    ----------
    weights : np.ndarray
    block : int
        Channels in a block of the image.
    group : int
        Channels that are side by side for each lane.
    lanes : int
        Output channels in a block.
    groups : int
        Of the convolution.
    """
    packed = pack_filters(weights, block, lanes, groups)
    steps = packed.reshape(*packed.shape[:4], block // group, group, lanes)
    return np.ascontiguousarray(steps.swapaxes(-1, -2))


def conv2d_groups(
    image: te.Tensor,
    filters: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    name: str,
    config: str = "",
    zero: int = 0,
    taken: int = 0,
) -> te.Tensor:
    """Convolve a blocked image with filters of :func:`pack_groups`.

    Parameters
    ----------
    image : te.Tensor
        ``[N, C/b, H, W, b]``.
    filters : te.Tensor
    strides, dilation : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    groups : int
        1, or groups of whole blocks.
    name : str
        Of the block that sums.
    config : str
        Knobs for the schedule; empty: the schedule's own choice.
    zero : int
        Padding value of the image.
    taken : int
        Channels that an instruction takes; 0: a group.

    Returns
    -------
    te.Tensor
        ``[N, O/l, OH, OW, l]``: int32 of 8-bit numbers, else of the image's type.
    """
    batch = image.shape[0]
    blocks, depth, kernel_h, kernel_w, own, lanes, group = (int(dim) for dim in filters.shape)
    taken = taken or group
    padded = pad_groups(image, padding, zero)
    out_h = (int(padded.shape[2]) - dilation[0] * (kernel_h - 1) - 1) // strides[0] + 1
    out_w = (int(padded.shape[3]) - dilation[1] * (kernel_w - 1) - 1) // strides[1] + 1
    steps = own * group // taken
    names = {"co": depth, "ky": kernel_h, "kx": kernel_w, "step": steps, "k": taken}
    co, ky, kx, step, k = axes = [
        te.reduce_axis((0, size), name=axis) for axis, size in names.items()
    ]
    share = blocks // groups
    wide = str(image.dtype) in ("int8", "uint8")

    def product(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        first = co if groups == 1 else tirx.floordiv(o, share) * depth + co
        line, column = y * strides[0] + ky * dilation[0], x * strides[1] + kx * dilation[1]
        place, within = grouped(step, k, taken, group)
        factors = [
            padded[n, first, line, column, step * taken + k],
            filters[o, co, ky, kx, place, v, within],
        ]
        one, other = (tirx.Cast("int32", value) if wide else value for value in factors)
        return te.sum(one * other, axis=axes)

    return te.compute(
        (batch, blocks, out_h, out_w, lanes),
        product,
        name=name,
        attrs={CONFIG: config} if config else None,
    )


def grouped(step: tirx.Expr, k: tirx.Expr, taken: int, group: int) -> tuple[tirx.Expr, tirx.Expr]:
    """Return the group of filters of number `k` of a step that takes `taken`, and its place there.

    Parameters
    ----------
    step, k : Expr
    taken, group : int
    """
    if taken == group:
        return step, k
    return step * (taken // group) + tirx.floordiv(k, group), tirx.floormod(k, group)


def pad_groups(image: te.Tensor, padding: Sequence[int], zero: int) -> te.Tensor:
    """Pad lines and columns of a blocked image; what is added has the image's type."""
    top, left, bottom, right = padding
    if not any(padding):
        return image
    value = tirx.const(zero, image.dtype)
    before, after = [0, 0, top, left, 0], [0, 0, bottom, right, 0]
    return topi.nn.pad(image, before, after, value, name="padded", attrs={KEPT: True})
