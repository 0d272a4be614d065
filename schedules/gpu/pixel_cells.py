"""First layers on tensor cores: cells of neighbouring pixels of few channels in a block.

A block of eight channels would be three, and zeros. Where a convolution moves by two columns, both
pixels of a pair are taps of the same windows: it is a convolution of half as many columns. A block
of 16 has room for two lines of such pairs, where it moves by two lines as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS

__all__ = ["as_cells", "cell_filters", "lines_of_cell", "pack_cells"]

_LEAST = 4
"""Channels of a pixel in a cell that also spans two lines: those of a colour image, and one."""


def as_cells(workload: ConvWorkload, dtype: str) -> ConvWorkload | None:
    """Return the convolution of cells of a type; ``None`` if there is none."""
    block = BLOCKS[dtype]
    if workload.channels > block // 2 or workload.groups > 1:
        return None
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


def lines_of_cell(workload: ConvWorkload, cells: ConvWorkload) -> int:
    """Return the lines of a cell, one or two."""
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
    """Return the filters ``[O, b, KH', KW']`` of cells: channels of the first pixel come first."""
    cells = as_cells(workload, str(weights.dtype))
    assert cells is not None, "the caller has asked"
    count, channels, *kernel = weights.shape
    sizes = (lines_of_cell(workload, cells), 2)
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


def pack_cells(image: te.Tensor, height: int = 1, zero: int = 0) -> te.Tensor:
    """``[N, C, H, W]`` as ``[N, 1, H/height, W/2, b]``, filled up with `zero`, as padding is."""
    batch, channels, lines, columns = (int(size) for size in image.shape)
    block = BLOCKS[str(image.dtype)]
    share = block // (2 * height)

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

    shape = (batch, 1, -(-lines // height), -(-columns // 2), block)
    return te.compute(shape, element, name="cells")
