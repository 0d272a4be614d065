"""Winograd convolution F(m x m, 3 x 3): fewer multiplications for 3x3 kernels of stride one.

Tiles of m x m outputs are found from (m + 2) x (m + 2) inputs as products of transformed inputs
and filters: 16 instead of 36 multiplications for m = 2, 36 instead of 144 for m = 4 (Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). The transforms are made by the
Toom-Cook method from interpolation points. The customary points of m = 4 are 0, ±1, ±2; ±3/4 and
±3/2 give a quarter of the error (2.7e-6 of the largest value at 256 channels against 1.2e-5): the
powers of the points stay closer together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, partial

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.blocked import number_or_length, pad_image
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import KEPT
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.open_lengths import Length, ceil_div

__all__ = [
    "LARGEST_GAIN",
    "PRODUCT",
    "STAGES",
    "TILE",
    "TILE_LINES",
    "combine_outputs",
    "conv2d_winograd",
    "transform_filters",
    "transform_filters_by_channel",
    "transforms",
    "winograd_applies",
]

PRODUCT = "winograd_product"
"""Name of the block that sums over channels."""

STAGES = ("winograd_input_rows", "winograd_input", "winograd_output_rows", "winograd_output")
"""Names of the transforms' blocks."""

TILE = "winograd_tile"
"""Name of the block that gathers tiles, of images whose size only the run tells."""

TILE_LINES = "tvm_edge.winograd_lines"
"""Attribute of the product: lines of tiles, where the result has whole tiles alone."""

_KERNEL = 3
LARGEST_GAIN = 32
"""A power of two beyond which no element of an image is in its transform: 26 for m = 4."""

_FEW_FILTERS, _FEW_CHANNELS = 16, 128  # of a piece; every block divides the channels
_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of ``x - root``, lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [s - root * f for s, f in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


@cache
def transforms(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices of F(m, 3): of filters, inputs and outputs, in float64.

    Returns
    -------
    tuple of np.ndarray
        ``G [m+2, 3]``, ``B [m+2, m+2]``, ``A [m+2, m]``, with which the convolution of an input
        ``d`` with a filter ``g`` is ``A.T @ ((G @ g) * (B.T @ d))``.
    """
    points, size = _POINTS[m], m + _KERNEL - 1
    outputs = [[point**j for point in points] + [Fraction(int(j == m - 1))] for j in range(m)]
    filters, inputs = [], []
    for i, point in enumerate(points):
        others = [p for k, p in enumerate(points) if k != i]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        filters.append([point**j / scale for j in range(_KERNEL)])
        inputs.append([*_polynomial(others), Fraction(0)])
    filters.append([Fraction(int(j == _KERNEL - 1)) for j in range(_KERNEL)])
    inputs.append(_polynomial(points))
    as_array = [np.array(m, dtype="float64") for m in (filters, inputs, outputs)]
    assert as_array[1].shape == (size, size)
    return as_array[0], as_array[1].T.copy(), as_array[2].T.copy()


def winograd_applies(workload: ConvWorkload) -> bool:
    """Return whether a convolution has the form that Winograd's algorithm computes."""
    return (
        workload.kernel == (3, 3)
        and workload.strides == (1, 1)
        and workload.dilation == (1, 1)
        and workload.groups == 1
    )


def transform_filters(
    weights: np.ndarray, m: int, block: int, group: int = 1, scale: float = 1
) -> np.ndarray:
    """Filters ``[O, C, 3, 3]`` as ``[(m+2)**2, O/l, C/l, l, l]`` in the domain of the products.

    The last two axes are input and output channels; filled up as by
    :func:`~tvm_edge.schedules.blocked.pack_filters`. Computed in float64, rounded once. Of an
    instruction that multiplies groups of channels ``[(m+2)**2, O/l, C/l, l/g, l, g]``. `scale` is
    that of :func:`conv2d_winograd`.
    """
    frequencies, (filters, channels) = (m + _KERNEL - 1) ** 2, weights.shape[:2]
    blocks, depth = (ceil_div(count, block) for count in (filters, channels))
    packed = np.zeros((frequencies, blocks, depth, block, block), weights.dtype)
    for o, c, unscaled in _transformed(weights, m, block):
        piece = scale * unscaled
        first, (count, lanes) = c // block, piece.shape[1:]
        whole = count // block
        target = packed[:, o // block, :, :, :lanes]
        target[:, first : first + whole] = piece[:, : whole * block].reshape(
            frequencies, whole, block, lanes
        )
        if count % block:
            target[:, first + whole, : count % block] = piece[:, whole * block :]
    rest = filters % block
    if rest:
        packed[:, -1, :, :, rest:] = packed[:, -1, :, :, rest - 1 : rest]  # why, says pack_filters
    if group == 1:
        return packed
    steps = packed.reshape(frequencies, blocks, depth, block // group, group, block)
    return np.ascontiguousarray(steps.swapaxes(-1, -2))


def transform_filters_by_channel(weights: np.ndarray, m: int) -> np.ndarray:
    """Filters ``[O, C, 3, 3]`` as ``[(m+2)**2, C, O]``, computed in float64 and rounded once."""
    filters, channels = weights.shape[:2]
    packed = np.empty(((m + _KERNEL - 1) ** 2, channels, filters), weights.dtype)
    for o, c, piece in _transformed(weights, m, _FEW_FILTERS):
        packed[:, c : c + piece.shape[1], o : o + piece.shape[2]] = piece
    return packed


def _transformed(
    weights: np.ndarray, m: int, filters: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield the first filter, the first channel and ``[(m+2)**2, C, O]`` of pieces of the filters.

    In the domain of the products, in float64. A piece is small: its intermediates stay in the
    cache, and NumPy's BLAS, whose threads spin after each product, takes one thread for it.
    """
    g = transforms(m)[0]
    for o in range(0, weights.shape[0], filters):
        for c in range(0, weights.shape[1], _FEW_CHANNELS):
            part = weights[o : o + filters, c : c + _FEW_CHANNELS].astype("float64")
            piece = np.einsum("ai,ocij,bj->abco", g, part, g, optimize=True)
            yield o, c, piece.reshape(len(g) ** 2, *part.shape[1::-1])


def conv2d_winograd(
    image: te.Tensor,
    filters: te.Tensor,
    m: int,
    padding: Sequence[int],
    config: str = "",
    scale: float = 1,
) -> te.Tensor:
    """Convolve a blocked image with transformed 3x3 filters, stride one.

    Parameters
    ----------
    image : te.Tensor
        ``[N, C/l, H, W, l]``.
    filters : te.Tensor
        ``[(m+2)**2, O/l, C/l, l, l]``, or in groups, see :func:`transform_filters`.
    m : {2, 4}
        Outputs of a tile along a line.
    padding : sequence of four int
        Top, left, bottom, right.
    config : str
        Knobs for the schedule; empty: the schedule's own choice.
    scale : float
        A power of two by which transformed images are divided, and filters were multiplied.

    Returns
    -------
    te.Tensor
        ``[N, O/l, OH, OW, l]``.
    """
    size = m + _KERNEL - 1
    batch, depth, lines, columns, block = map(number_or_length, image.shape)
    grouped = len(filters.shape) == 6
    top, left, bottom, right = padding
    out_h, out_w = lines + top + bottom - _KERNEL + 1, columns + left + right - _KERNEL + 1
    tiles_h, tiles_w = ceil_div(out_h, m), ceil_div(out_w, m)
    tiles = batch * tiles_h * tiles_w
    # Tiles at the border may reach beyond the padding: their outputs there are not stored.
    more_h, more_w = tiles_h * m - out_h, tiles_w * m - out_w
    padded = pad_image(image, (top, left, bottom + more_h, right + more_w))
    b = transforms(m)[1]
    dtype = image.dtype

    def gathered(c: tirx.Expr, t: tirx.Expr, i: tirx.Expr, j: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        row = tirx.floormod(tirx.floordiv(t, tiles_w), tiles_h) * m + i
        column = tirx.floormod(t, tiles_w) * m + j
        return padded[tirx.floordiv(t, tiles_h * tiles_w), c, row, column, v]

    if not isinstance(tiles, int):
        # Where a tile is takes a line to say, and each of its elements is in six sums.
        tile = te.compute((depth, tiles, size, size, block), gathered, name=TILE)
        gathered = partial(_at, tile)

    # The axes of a tile (p, q in the transformed domain, i, j in it before) stand after the tile:
    # a core transforms a tile completely before the next.
    rows = te.compute(
        (depth, tiles, size, size, block),
        lambda c, t, p, j, v: _combine(b, p, [gathered(c, t, i, j, v) for i in range(size)], dtype),
        name=STAGES[0],
    )

    def element(f: tirx.Expr, c: tirx.Expr, t: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        line = [rows[c, t, tirx.floordiv(f, size), j, v] for j in range(size)]
        value = _combine(b, tirx.floormod(f, size), line, dtype)
        return value if scale == 1 else value * tirx.const(1 / scale, dtype)

    transformed = te.compute(
        (size * size, depth, tiles, block),
        element,
        name=STAGES[1],
        attrs={KEPT: True} if grouped else None,
    )
    whole = isinstance(tiles, int) and more_h == more_w == 0
    tile_lines = batch * tiles_h if whole else 0
    product = _products(transformed, filters, (depth, tiles), tile_lines, config)
    return combine_outputs(product, m, (batch, out_h, out_w))


def _products(
    transformed: te.Tensor,
    filters: te.Tensor,
    lengths: tuple[Length, Length],
    tile_lines: int,
    config: str,
) -> te.Tensor:
    """Sum over the channels of each frequency, or of groups of them; `lengths`: blocks, tiles."""
    frequencies, blocks, _, steps, lanes, *group = map(int, filters.shape)
    depth, tiles = lengths
    co, ci = te.reduce_axis((0, depth), name="co"), te.reduce_axis((0, steps), name="ci")

    def product(f: tirx.Expr, o: tirx.Expr, t: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        if not group:
            return te.sum(transformed[f, co, t, ci] * filters[f, o, co, ci, v], axis=[co, ci])
        k = te.reduce_axis((0, group[0]), name="k")
        pixel = transformed[f, co, t, ci * group[0] + k]
        return te.sum(pixel * filters[f, o, co, ci, v, k], axis=[co, ci, k])

    return te.compute(
        (frequencies, blocks, tiles, lanes),
        product,
        name=PRODUCT,
        attrs={TILE_LINES: tile_lines} | ({CONFIG: config} if config else {}),
    )


def combine_outputs(product: te.Tensor, m: int, size: Sequence[Length]) -> te.Tensor:
    """Transform products back to an image.

    Parameters
    ----------
    product : te.Tensor
        ``[(m+2)**2, O, N * tiles]``, and the lanes of a block of channels where there are blocks.
    m : {2, 4}
    size : sequence of int or Expr
        Batch, lines and columns of the image.

    Returns
    -------
    te.Tensor
        ``[N, O, OH, OW]``, followed by lanes.
    """
    batch, out_h, out_w = size
    tiles_h, tiles_w = ceil_div(out_h, m), ceil_div(out_w, m)
    _, channels, tiles, *lanes = product.shape
    frequencies, dtype = m + _KERNEL - 1, product.dtype
    a = transforms(m)[2]
    out_rows = te.compute(
        (channels, tiles, m, frequencies, *lanes),
        lambda o, t, i, q, *v: _combine(
            a, i, [_at(product, p * frequencies + q, o, t, *v) for p in range(frequencies)], dtype
        ),
        name=STAGES[2],
    )

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, *v: tirx.Expr) -> tirx.Expr:
        tile = (n * tiles_h + tirx.floordiv(y, m)) * tiles_w + tirx.floordiv(x, m)
        line = tirx.floormod(y, m)
        values = [_at(out_rows, o, tile, line, q, *v) for q in range(frequencies)]
        return _combine(a, tirx.floormod(x, m), values, dtype)

    return te.compute((batch, channels, out_h, out_w, *lanes), element, name=STAGES[3])


def _at(tensor: te.Tensor, *indices: tirx.Expr) -> tirx.Expr:
    return tensor[indices]


def _combine(
    matrix: np.ndarray, column: tirx.Expr, values: Sequence[tirx.Expr], dtype: str
) -> tirx.Expr:
    """``sum(matrix[i, column] * values[i])`` as a choice between sums without their zeros.

    Once the loop over `column` is unrolled the choice is gone, and with it every product by 0, 1.
    """
    result: tirx.Expr | None = None
    for j in reversed(range(matrix.shape[1])):
        total: tirx.Expr | None = None
        for factor, value in zip(matrix[:, j], values, strict=True):
            if factor == 0:
                continue
            term = value if factor == 1 else tirx.const(float(factor), dtype) * value
            total = term if total is None else total + term
        assert total is not None
        result = total if result is None else tirx.Select(column.equal(j), total, result)
    assert result is not None
    return result
