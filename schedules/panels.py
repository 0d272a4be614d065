"""Matrices stored in panels of neighbouring columns, and the products that read them.

A matrix ``[K, N]`` of a dense layer becomes ``[N/l, K, l]`` when the model is compiled. A kernel
goes through a panel from its first to its last byte, once for each tile of rows on the left. Of
bfloat16 whose pairs are multiplied (:mod:`tvm_edge.schedules.pairs`) it becomes
``[N/l, K/2, l, 2]``.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx, topi

from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.float16 import KEPT

__all__ = ["DENSE", "DENSE_PAIRS", "PADDED", "dense", "dense_pairs", "pack_matrix"]

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

    With `whole_panels` the products with the columns that fill up the last panel are taken, too:
    no part of the sums has a condition.
    """
    width = int(panels.shape[2])
    k = te.reduce_axis((0, int(panels.shape[1])), name="k")

    def element(*index: tirx.Expr) -> tirx.Expr:
        *rows, column = index
        weight = panels[tirx.floordiv(column, width), k, tirx.floormod(column, width)]
        return te.sum(data(*rows, k) * weight, axis=k)

    summed = int(panels.shape[0]) * width if whole_panels else columns
    return _first(te.compute((*data.shape[:-1], summed), element, name=DENSE), columns)


def dense_pairs(data: te.Tensor, panels: te.Tensor, columns: int) -> te.Tensor:
    """The product of ``[..., M, K]`` with a matrix packed ``[N/l, K/2, l, 2]``, by whole panels."""
    count, depth, width, group = (int(length) for length in panels.shape)
    if depth * group > int(data.shape[-1]):
        rank = len(data.shape)
        after = [0] * (rank - 1) + [depth * group - int(data.shape[-1])]
        zero = tirx.const(0, data.dtype)
        data = topi.nn.pad(data, [0] * rank, after, zero, name=PADDED, attrs={KEPT: True})
    step, k = te.reduce_axis((0, depth), name="step"), te.reduce_axis((0, group), name="k")

    def element(*index: tirx.Expr) -> tirx.Expr:
        *rows, column = index
        weight = panels[tirx.floordiv(column, width), step, tirx.floormod(column, width), k]
        return te.sum(data(*rows, step * group + k) * weight, axis=[step, k])

    whole = te.compute((*data.shape[:-1], count * width), element, name=DENSE_PAIRS)
    return _first(whole, columns)


def _first(product: te.Tensor, columns: int) -> te.Tensor:
    """Return the first columns of a product."""
    if int(product.shape[-1]) == columns:
        return product
    shape = (*product.shape[:-1], columns)
    return te.compute(shape, lambda *index: product(*index), name="columns")
