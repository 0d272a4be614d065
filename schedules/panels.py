"""Matrices stored in panels of neighbouring columns, and the products that read them.

A matrix ``[K, N]`` of a dense layer becomes ``[N/l, K, l]`` when the model is compiled. A kernel
goes through a panel from its first to its last byte, once for each tile of rows on the left. Of
bfloat16 whose pairs are multiplied (:mod:`tvm_edge.schedules.pairs`) it becomes
``[N/l, K/2, l, 2]``. A matrix that only the run knows, of attention's keys and values for instance,
is packed in pairs by the kernel itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import te, tirx, topi

from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.float16 import KEPT
from tvm_edge.schedules.pairs import PAIR

__all__ = [
    "DENSE",
    "DENSE_PAIRS",
    "FILLED",
    "PACKED",
    "PADDED",
    "dense",
    "dense_of_two",
    "filled_matrix",
    "pack_matrix",
    "packed_pairs",
]

DENSE = "dense_panels"
"""Name of the block that sums in a product with a packed matrix."""

DENSE_PAIRS = "dense_pairs"
"""Name of the block that sums in a product by pairs."""

PADDED = "padded_rows"
"""Name of the block that fills up rows on the left to whole pairs."""

FILLED = "filled_matrix"
"""Name of the block that fills up a matrix to whole pairs and panels."""

PACKED = "packed_pairs"
"""Name of the block that packs a matrix in pairs in the kernel."""


def pack_matrix(matrix: np.ndarray, width: int, group: int = 1) -> np.ndarray:
    """``[K, N]`` as ``[N/width, K, width]``, or as ``[N/width, K/group, width, group]``.

    Columns and rows of zeros fill it up.
    """
    reduction, columns = matrix.shape
    depth = filled(reduction, group)
    whole = np.zeros((depth, filled(columns, width)), matrix.dtype)
    whole[:reduction, :columns] = matrix
    steps = whole.reshape(depth // group, group, -1, width).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(steps if group > 1 else steps[..., 0])


def dense(
    data: te.Tensor, panels: te.Tensor, columns: int, *, whole_panels: bool = False
) -> te.Tensor:
    """The product of ``[..., M, K]`` with a matrix of `columns` columns, packed ``[N/l, K, l]``.

    Of one packed ``[N/l, K/2, l, 2]`` pairs are multiplied. With `whole_panels` the products with
    the columns that fill up the last panel are taken, too: no part of the sums has a condition.
    """
    summed = int(panels.shape[0]) * int(panels.shape[2]) if whole_panels else columns
    pair = [int(length) for length in panels.shape[3:]]
    data = _filled_rows(data, int(panels.shape[1]) * prod(pair))
    return _product(data, panels, columns, summed, 0, pair)


def dense_of_two(data: te.Tensor, matrix: te.Tensor, width: int, lanes: int) -> te.Tensor:
    """The product of ``[..., M, K]`` with ``[..., K, N]``, packed and multiplied by pairs.

    Parameters
    ----------
    data, matrix : te.Tensor
        Of bfloat16, K even on the left alone. All axes before M are those before K, or K is the
        first.
    width : int
        Columns of a panel.
    lanes : int
        Of a vector of accumulators, which divide `width`: columns are filled up to whole ones.
    """
    *batch, depth, columns = (int(length) for length in matrix.shape)
    panels = packed_pairs(filled_matrix(matrix, filled(depth, PAIR), filled(columns, width)), width)
    return _product(data, panels, columns, filled(columns, lanes), len(batch), [PAIR])


def _product(
    data: te.Tensor,
    panels: te.Tensor,
    columns: int,
    summed: int,
    batch: int,
    pair: Sequence[int],
) -> te.Tensor:
    """Sum the products with `summed` columns of panels that `batch` axes stand before."""
    depth, width = (int(length) for length in panels.shape[batch + 1 : batch + 3])
    k = te.reduce_axis((0, depth), name="k")
    inner = [te.reduce_axis((0, size), name="pair") for size in pair]

    def element(*index: tirx.Expr) -> tirx.Expr:
        *rows, column = index
        own = tirx.floordiv(column, width), k, tirx.floormod(column, width)
        place = k * pair[0] + inner[0] if pair else k
        factors = data(*rows, place), panels(*rows[:batch], *own, *inner)
        return te.sum(factors[0] * factors[1], axis=[k, *inner])

    name = DENSE_PAIRS if pair else DENSE
    product = te.compute((*data.shape[:-1], summed), element, name=name)
    if summed == columns:
        return product
    shape = (*data.shape[:-1], columns)
    return te.compute(shape, lambda *index: product(*index), name="columns")


def packed_pairs(matrix: te.Tensor, width: int, name: str = PACKED) -> te.Tensor:
    """Return ``[..., K, N]`` as ``[..., N/width, K/2, width, 2]``."""
    *batch, depth, columns = (int(length) for length in matrix.shape)

    def element(*index: tirx.Expr) -> tirx.Expr:
        *outer, panel, step, column, one = index
        return matrix(*outer, step * PAIR + one, panel * width + column)

    shape = (*batch, columns // width, depth // PAIR, width, PAIR)
    return te.compute(shape, element, name=name, attrs={KEPT: True})


def filled_matrix(matrix: te.Tensor, depth: int, columns: int, name: str = FILLED) -> te.Tensor:
    """Fill ``[..., K, N]`` up with zeros."""
    return _filled(matrix, [0] * (len(matrix.shape) - 2) + [depth, columns], name)


def _filled_rows(data: te.Tensor, depth: int) -> te.Tensor:
    """Fill rows up with zeros: whole pairs of 16 bits, as they are stored."""
    return _filled(data, [0] * (len(data.shape) - 1) + [depth], PADDED)


def _filled(tensor: te.Tensor, lengths: Sequence[int], name: str) -> te.Tensor:
    """Fill a tensor up with zeros to `lengths`, where these are greater than its own."""
    after = [
        max(0, length - int(own)) if length else 0
        for length, own in zip(lengths, tensor.shape, strict=True)
    ]
    if not any(after):
        return tensor
    zero = tirx.const(0, tensor.dtype)
    return topi.nn.pad(tensor, [0] * len(after), after, zero, name=name, attrs={KEPT: True})
