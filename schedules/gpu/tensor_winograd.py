"""Winograd convolution F(2x2, 3x3) of float16 on tensor cores, in channel blocks of 16 bytes.

Three kernels: images of 16 frequencies (:mod:`.tensor_transforms`); a product for each of them, on
tensor cores (:mod:`.tensor_blocks`); results, with what follows the convolution. 16 multiplications
replace 36 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). Tiles of 4x4
would save more, and make the error of float16 some ten times as large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.blocked import filled, pad_image
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.tensor_conv import (
    BLOCKS,
    GEOMETRY,
    TensorConv,
    dense_workload,
    pack_stacks,
    position,
)
from tvm_edge.schedules.knobs import CONFIG, knobs_as_text
from tvm_edge.schedules.winograd import transform_filters_by_channel, transforms

__all__ = [
    "GAIN",
    "IMAGES",
    "LANES",
    "RESULTS",
    "TILE",
    "Tiles",
    "frequency_filters",
    "frequency_images",
    "frequency_products",
    "frequency_results",
    "products_of",
    "units_of_transforms",
]

TILE = 2
"""Outputs of a tile along a line."""

IMAGES, RESULTS = "tvm_edge.winograd_images", "tvm_edge.winograd_results"
"""Annotations of the blocks that transform: their :class:`Tiles` as text."""

GAIN = 4
"""Images are divided by it, and filters multiplied: no element of the transform is larger than
those of the image, which float16 holds. Sums of four would not be."""

LANES = BLOCKS["float16"]
"""Channels of a block."""

_SIDE = TILE + 2


@dataclass(frozen=True)
class Tiles:
    """Convolution, as the transforms around its products are made for it.

    `height`, `width`: of the image; `lines`, `columns`: of the result; `top`, `left`: padding.
    """

    batch: int
    height: int
    width: int
    top: int
    left: int
    lines: int
    columns: int

    @staticmethod
    def of(workload: ConvWorkload) -> Tiles:
        top, left, _, _ = workload.padding
        sizes = workload.batch, workload.height, workload.width
        return Tiles(*sizes, top, left, *workload.output)

    @property
    def down(self) -> int:
        """Tiles of a column."""
        return -(-self.lines // TILE)

    @property
    def across(self) -> int:
        """Tiles of a line."""
        return -(-self.columns // TILE)

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.batch * self.down * self.across


def units_of_transforms(workload: ConvWorkload) -> tuple[int, int]:
    """Return the units that each transform moves: image and frequencies, frequencies and result."""
    tiles, conv = Tiles.of(workload), products_of(workload)
    image = workload.batch * conv.blocks * workload.height * workload.width
    result = conv.filters // LANES * workload.batch * tiles.lines * tiles.columns
    frequencies = conv.products * tiles.count
    return image + frequencies * conv.blocks, result + frequencies * conv.filters // LANES


def products_of(workload: ConvWorkload) -> TensorConv:
    """Return the products of a convolution, one for each frequency.

    Of images of one line, with a pixel for each tile.
    """
    one = dense_workload(1, workload.channels, workload.filters)
    line = replace(one, width=Tiles.of(workload).count)
    return TensorConv.of(line, "float16", products=_SIDE**2)


def frequency_filters(weights: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """Filters ``[O, C, 3, 3]`` as ``[16, 1, 1, C/8, O', 8]``: packed ones for each product.

    Sums that float16 does not hold are infinite.
    """
    conv, wide = products_of(workload), GAIN * weights.astype("float32")
    transformed = transform_filters_by_channel(wide, TILE).transpose(0, 2, 1)
    with np.errstate(over="ignore"):
        return np.stack([pack_stacks(each[..., None, None], conv) for each in transformed])


def frequency_images(image: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Compute the images of all frequencies: ``[N, C/8, H, W, 8]`` to ``[16, C/8, 1, tiles, 8]``.

    Parameters
    ----------
    image : te.Tensor
    workload : ConvWorkload
        A 3x3 convolution of stride one.
    """
    tiles = Tiles.of(workload)
    top, left, _, _ = workload.padding
    # Tiles at the border reach beyond the padding where a line has an odd number of results.
    bottom = tiles.down * TILE + 2 - top - workload.height
    right = tiles.across * TILE + 2 - left - workload.width
    padded = pad_image(image, (top, left, bottom, right))
    i, j = te.reduce_axis((0, _SIDE), "i"), te.reduce_axis((0, _SIDE), "j")
    matrix = transforms(TILE)[1]

    def element(f: tirx.Expr, c: tirx.Expr, _: tirx.Expr, t: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = tirx.floormod(tirx.floordiv(t, tiles.across), tiles.down) * TILE + i
        column = tirx.floormod(t, tiles.across) * TILE + j
        number = tirx.floordiv(t, tiles.down * tiles.across)
        value = _wide(padded[number, c, line, column, v]) * tirx.const(1 / GAIN, "float32")
        rows = _entry(matrix, i, tirx.floordiv(f, _SIDE))
        return te.sum(rows * _entry(matrix, j, tirx.floormod(f, _SIDE)) * value, axis=[i, j])

    shape = (_SIDE**2, image.shape[1], 1, tiles.count, LANES)
    attrs = {IMAGES: knobs_as_text(tiles)}
    sums = te.compute(shape, element, name="frequencies", attrs=attrs)
    return stored(shape, lambda *at: sums(*at))


def frequency_products(
    images: te.Tensor, filters: te.Tensor, workload: ConvWorkload, knobs: str = ""
) -> te.Tensor:
    """Multiply the images of each frequency by its filters: ``[16, O/8, 1, tiles, 8]``.

    Parameters
    ----------
    images : te.Tensor
        As :func:`frequency_images` returns them.
    filters : te.Tensor
        As :func:`frequency_filters` returns them.
    workload : ConvWorkload
    knobs : str
        A :class:`~tvm_edge.schedules.gpu.tensor_tile.TensorTile`; empty: the schedule's choice.
    """
    conv = products_of(workload)
    co, ci = te.reduce_axis((0, conv.blocks), "co"), te.reduce_axis((0, LANES), "ci")
    attrs = {GEOMETRY: knobs_as_text(conv)} | ({CONFIG: knobs} if knobs else {})

    def product(f: tirx.Expr, o: tirx.Expr, y: tirx.Expr, t: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        own = filters[f, 0, 0, co, position(o * LANES + v, conv.stack), ci]
        return te.sum(_wide(images[f, co, y, t, ci]) * _wide(own), axis=[co, ci])

    blocks = filled(workload.filters, LANES) // LANES
    shape = (conv.products, blocks, 1, conv.columns, LANES)
    sums = te.compute(shape, product, name="sums", attrs=attrs)
    return stored(shape, lambda *at: sums(*at))


def frequency_results(products: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Compute the results of all frequencies' products: ``[N, O/8, OH, OW, 8]``.

    Parameters
    ----------
    products : te.Tensor
        As :func:`frequency_products` returns them.
    workload : ConvWorkload
    """
    tiles = Tiles.of(workload)
    p, q = te.reduce_axis((0, _SIDE), "p"), te.reduce_axis((0, _SIDE), "q")
    matrix = transforms(TILE)[2]

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        tile = (n * tiles.down + tirx.floordiv(y, TILE)) * tiles.across + tirx.floordiv(x, TILE)
        value = _wide(products[p * _SIDE + q, o, 0, tile, v])
        rows = _entry(matrix, p, tirx.floormod(y, TILE))
        return te.sum(rows * _entry(matrix, q, tirx.floormod(x, TILE)) * value, axis=[p, q])

    shape = (tiles.batch, products.shape[1], tiles.lines, tiles.columns, LANES)
    sums = te.compute(shape, element, name="sums", attrs={RESULTS: knobs_as_text(tiles)})
    return stored(shape, lambda *at: sums(*at))


def _wide(value: tirx.Expr) -> tirx.Expr:
    return tirx.Cast("float32", value)


def _entry(matrix: np.ndarray, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    """Return ``matrix[row, column]`` of constants."""
    at = row * matrix.shape[1] + column
    entry: tirx.Expr = tirx.const(0.0, "float32")
    for place, value in enumerate(matrix.flat):
        if value:
            entry = tirx.Select(at.equal(place), tirx.const(float(value), "float32"), entry)
    return entry
