"""Matrices stored in panels of neighbouring columns, and the products that read them.

A matrix ``[K, N]`` of a dense layer becomes ``[N/l, K, l]`` when the model is compiled. A kernel
goes through a panel from its first to its last byte, once for each tile of rows on the left. Of
bfloat16 whose pairs are multiplied (:mod:`tvm_edge.schedules.pairs`) it becomes
``[N/l, K/2, l, 2]``.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import te, tirx, topi

from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.float16 import KEPT

__all__ = ["DENSE", "DENSE_PAIRS", "PADDED", "dense", "pack_matrix"]

DENSE = "dense_panels"
"""Name of the block that sums in a product with a packed matrix."""

DENSE_PAIRS = "dense_pairs"
"""Name of the block that sums in a product by pairs."""

PADDED = "padded_rows"
"""Name of the block that fills up rows on the left to whole pairs."""


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
    count, depth, width, *pair = (int(length) for length in panels.shape)
    k = te.reduce_axis((0, depth), name="k")
    inner = [te.reduce_axis((0, size), name="pair") for size in pair]
    data = _filled_rows(data, depth * prod(pair))

    def element(*index: tirx.Expr) -> tirx.Expr:
        *rows, column = index
        own = tirx.floordiv(column, width), k, tirx.floormod(column, width)
        place = k * pair[0] + inner[0] if pair else k
        return te.sum(data(*rows, place) * panels(*own, *inner), axis=[k, *inner])

    name = DENSE_PAIRS if pair else DENSE
    summed = count * width if whole_panels else columns
    product = te.compute((*data.shape[:-1], summed), element, name=name)
    if summed == columns:
        return product
    shape = (*data.shape[:-1], columns)
    return te.compute(shape, lambda *index: product(*index), name="columns")


def _filled_rows(data: te.Tensor, depth: int) -> te.Tensor:
    """Fill rows up with zeros: whole pairs of 16 bits, as they are stored."""
    missing = depth - int(data.shape[-1])
    if not missing:
        return data
    before = [0] * len(data.shape)
    after = [*before[1:], missing]
    zero = tirx.const(0, data.dtype)
    return topi.nn.pad(data, before, after, zero, name=PADDED, attrs={KEPT: True})
