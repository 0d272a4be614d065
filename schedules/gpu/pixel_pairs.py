"""First layers on tensor cores: two neighbouring pixels in a block, of half its channels each.

A block of eight channels would be three, and zeros. Where a convolution moves by two columns, both
pixels of a pair are taps of the same windows: it is a convolution of half as many columns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS

__all__ = ["as_pairs", "pack_pairs", "pair_filters"]


def as_pairs(workload: ConvWorkload, dtype: str) -> ConvWorkload | None:
    """Return the convolution of pairs of pixels of a type; ``None`` if there is none."""
    if workload.channels > BLOCKS[dtype] // 2 or workload.groups > 1:
        return None
    if workload.strides[1] != 2 or workload.dilation[1] != 1:
        return None
    top, left, bottom, _ = workload.padding
    before, width = _before(workload), -(-workload.width // 2)
    taps = -(-(workload.kernel[1] + 2 * before - left) // 2)
    after = workload.output[1] - 1 + taps - width - before
    if after < 0:
        return None
    return replace(
        workload,
        channels=BLOCKS[dtype],
        width=width,
        kernel=(workload.kernel[0], taps),
        strides=(workload.strides[0], 1),
        padding=(top, before, bottom, after),
    )


def _before(workload: ConvWorkload) -> int:
    """Pairs of padding on the left; the first tap is the second pixel where that is odd."""
    return -(-workload.padding[1] // 2)


def pair_filters(weights: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """Return the filters ``[O, b, KH, KW']`` of pairs: channels of the first pixel come first."""
    pairs = as_pairs(workload, str(weights.dtype))
    assert pairs is not None, "the caller has asked"
    count, channels, lines, columns = weights.shape
    shift = 2 * _before(workload) - workload.padding[1]
    share = pairs.channels // 2
    taps = np.zeros((count, share, lines, 2 * pairs.kernel[1]), weights.dtype)
    taps[:, :channels, :, shift : shift + columns] = weights
    split = taps.reshape(count, share, lines, pairs.kernel[1], 2)
    return np.ascontiguousarray(
        split.transpose(0, 4, 1, 2, 3).reshape(count, 2 * share, lines, pairs.kernel[1])
    )


def pack_pairs(image: te.Tensor, zero: int = 0) -> te.Tensor:
    """``[N, C, H, W]`` as ``[N, 1, H, W/2, b]``, filled up with `zero`, which also is padding."""
    batch, channels, lines, columns = (int(size) for size in image.shape)
    block = BLOCKS[str(image.dtype)]
    share = block // 2

    def element(n: tirx.Expr, _: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        channel, column = tirx.floormod(v, share), 2 * x + tirx.floordiv(v, share)
        inside = [channel < channels] if channels < share else []
        if columns % 2:
            inside.append(column < columns)
        value = image[n, channel, y, column]
        if not inside:
            return value
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(zero, image.dtype))

    return te.compute((batch, 1, lines, -(-columns // 2), block), element, name="pairs")
