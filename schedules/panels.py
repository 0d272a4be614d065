"""Matrices stored in panels of neighbouring columns, and the products that read them.

A matrix ``[K, N]`` of a dense layer becomes ``[N/l, K, l]`` when the model is compiled. A kernel
goes through a panel from its first to its last byte, once for each tile of rows on the left.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from tvm import te, tirx

__all__ = ["DENSE", "dense", "pack_matrix"]

DENSE = "dense_panels"
"""Name of the block that sums in a product with a packed matrix."""


def pack_matrix(matrix: np.ndarray, width: int) -> np.ndarray:
    """``[K, N]`` as ``[N/width, K, width]``, filled up with columns of zeros."""
    reduction, columns = matrix.shape
    whole = np.zeros((reduction, ceil(columns / width) * width), matrix.dtype)
    whole[:, :columns] = matrix
    return np.ascontiguousarray(whole.reshape(reduction, -1, width).transpose(1, 0, 2))


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

    filled = int(panels.shape[0]) * width
    if not whole_panels or filled == columns:
        return te.compute((*data.shape[:-1], columns), element, name=DENSE)
    whole = te.compute((*data.shape[:-1], filled), element, name=DENSE)
    return te.compute((*data.shape[:-1], columns), lambda *index: whole(*index), name="columns")
