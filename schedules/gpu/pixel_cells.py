"""First layers on tensor cores: cells of neighbouring pixels of few channels in blocks.

A block of eight channels would be three, and zeros. Where a convolution moves by two columns, both
pixels of a pair are taps of the same windows: it is a convolution of half as many columns. A block
of 16 has room for two lines of such pairs, where it moves by two lines as well.

A small window of few channels is a cell as a whole, of four blocks at most: a pixel of the result
has all that it is made of, and the convolution is a product.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS

__all__ = ["WHOLE_PIXELS", "as_cells", "cell_filters", "pack_cells"]

WHOLE_PIXELS = "tvm_edge.whole_pixels"
"""Annotation of a block whose work-items have all channels of a pixel: they share addresses."""

_LEAST = 4
"""Channels of a pixel in a cell that also spans two lines: those of a colour image, and one."""

_MOST_BLOCKS = 4
"""Blocks of a cell that is a window: what its pixels are copied to is as many times as large."""


def as_cells(workload: ConvWorkload, dtype: str) -> ConvWorkload | None:
    """Return the convolution of cells of a type with the fewest products; ``None``: no cells."""
    block = BLOCKS[dtype]
    if workload.channels > block // 2 or workload.groups > 1:
        return None
    found = [_of_windows(workload, block), _of_pairs(workload, block)]
    return min((each for each in found if each is not None), key=_products, default=None)


def _products(cells: ConvWorkload) -> int:
    return cells.channels * prod(cells.kernel)


def _is_window(workload: ConvWorkload, cells: ConvWorkload) -> bool:
    return cells.kernel == (1, 1) != workload.kernel


def _of_windows(workload: ConvWorkload, block: int) -> ConvWorkload | None:
    taps = prod(workload.kernel)
    channels = filled(workload.channels * taps, block)
    height, width = workload.output
    if taps == 1 or channels > _MOST_BLOCKS * block:
        return None
    return replace(
        workload,
        channels=channels,
        height=height,
        width=width,
        kernel=(1, 1),
        strides=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def _of_pairs(workload: ConvWorkload, block: int) -> ConvWorkload | None:
    columns = _folded(workload, 1)
    if columns is None:
        return None
    width, taps, left, right = columns
    height, lines = workload.height, workload.kernel[0]
    top, _, bottom, _ = workload.padding
    down = workload.strides[0]
    folded = _folded(workload, 0) if workload.channels <= _LEAST <= block // 4 else None
    if folded is not None:
        height, lines, top, bottom = folded
        down = 1
    return replace(
        workload,
        channels=block,
        height=height,
        width=width,
        kernel=(lines, taps),
        strides=(down, 1),
        padding=(top, left, bottom, right),
        dilation=(1 if folded is not None else workload.dilation[0], 1),
    )


def _lines_of_cell(workload: ConvWorkload, cells: ConvWorkload) -> int:
    """Return the lines of a cell of pairs, one or two."""
    return workload.strides[0] // cells.strides[0]


def _folded(workload: ConvWorkload, axis: int) -> tuple[int, int, int, int] | None:
    """Return length, taps and padding along an axis in twos; ``None`` if it moves otherwise.

    The first tap is the second pixel of a cell where the padding before the image is odd.
    """
    if workload.strides[axis] != 2 or workload.dilation[axis] != 1:
        return None
    own = workload.padding[axis]
    before = -(-own // 2)
    length = -(-(workload.height, workload.width)[axis] // 2)
    taps = -(-(workload.kernel[axis] + 2 * before - own) // 2)
    after = workload.output[axis] - 1 + taps - length - before
    return None if after < 0 else (length, taps, before, after)


def cell_filters(weights: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """Return the filters ``[O, C', KH', KW']`` of cells: channels of the first pixel come first."""
    cells = as_cells(workload, str(weights.dtype))
    assert cells is not None, "the caller has asked"
    count, channels, *kernel = weights.shape
    if _is_window(workload, cells):
        whole = np.zeros((count, cells.channels, 1, 1), weights.dtype)
        own = weights.transpose(0, 2, 3, 1).reshape(count, -1, 1, 1)
        whole[:, : own.shape[1]] = own
        return whole
    sizes = (_lines_of_cell(workload, cells), 2)
    share = cells.channels // (2 * sizes[0])
    extents = [size * taps for size, taps in zip(sizes, cells.kernel, strict=True)]
    first = [
        size * after - before if size == 2 else 0
        for size, after, before in zip(sizes, cells.padding, workload.padding, strict=False)
    ]
    taps = np.zeros((count, share, *extents), weights.dtype)
    rows, columns = (slice(f, f + own) for f, own in zip(first, kernel, strict=True))
    taps[:, :channels, rows, columns] = weights
    split = taps.reshape(count, share, cells.kernel[0], sizes[0], cells.kernel[1], 2)
    packed = split.transpose(0, 3, 5, 1, 2, 4)
    return np.ascontiguousarray(packed.reshape(count, cells.channels, *cells.kernel))


def pack_cells(image: te.Tensor, workload: ConvWorkload, zero: int = 0) -> te.Tensor:
    """Pack an image ``[N, C, H, W]`` as the cells ``[N, B, H', W', b]`` of a workload.

    Padding within cells, and what fills them up, is `zero`.
    """
    cells = as_cells(workload, str(image.dtype))
    assert cells is not None, "the caller has asked"
    block = BLOCKS[str(image.dtype)]
    shape = (cells.batch, cells.channels // block, cells.height, cells.width, block)
    if _is_window(workload, cells):
        return _pack_windows(image, workload, shape, zero)
    return _pack_pairs(image, _lines_of_cell(workload, cells), shape, zero)


def _pack_windows(
    image: te.Tensor, workload: ConvWorkload, shape: tuple[int, ...], zero: int
) -> te.Tensor:
    channels, columns, block = workload.channels, workload.kernel[1], shape[-1]
    top, left, *_ = workload.padding

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        own = o * block + v
        channel, tap = tirx.floormod(own, channels), tirx.floordiv(own, channels)
        down, across = tirx.floordiv(tap, columns), tirx.floormod(tap, columns)
        line = y * workload.strides[0] + down * workload.dilation[0] - top
        column = x * workload.strides[1] + across * workload.dilation[1] - left
        inside = [
            tap < prod(workload.kernel),
            *(line >= 0, line < workload.height),
            *(column >= 0, column < workload.width),
        ]
        value = image[n, channel, line, column]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(zero, image.dtype))

    return te.compute(shape, element, name="cells", attrs={WHOLE_PIXELS: 1})


def _pack_pairs(image: te.Tensor, height: int, shape: tuple[int, ...], zero: int) -> te.Tensor:
    _, channels, lines, columns = (int(size) for size in image.shape)
    share = shape[-1] // (2 * height)

    def element(n: tirx.Expr, _: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        channel, pixel = tirx.floormod(v, share), tirx.floordiv(v, share)
        line = height * y + tirx.floordiv(pixel, 2) if height > 1 else y
        column = 2 * x + tirx.floormod(pixel, 2)
        inside = [channel < channels] if channels < share else []
        if columns % 2:
            inside.append(column < columns)
        if lines % height:
            inside.append(line < lines)
        value = image[n, channel, line, column]
        if not inside:
            return value
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(zero, image.dtype))

    return te.compute(shape, element, name="cells")
