"""Filters in the order in which sub-groups read them, and convolutions with such filters."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx, topi

from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.subgroup_tile import SubGroupTile

__all__ = ["SUB_GROUP", "conv2d_for_sub_groups", "pack_for_sub_groups"]

SUB_GROUP = "tvm_edge.sub_group"
"""Annotation of the block that reduces with packed filters: its :class:`SubGroupTile` as text."""


def pack_for_sub_groups(
    weights: np.ndarray, workload: ConvWorkload, tile: SubGroupTile
) -> np.ndarray:
    """Pack filters so that those that a tile multiplies with lie side by side.

    Parameters
    ----------
    weights : np.ndarray
        ``[O, C/groups, KH, KW]``.

    Returns
    -------
    np.ndarray
        ``[groups, tiles, C/groups, KH, pitch]``, the last axis ``[KW, tile.channels]`` and zeros,
        to whole block reads. Output channels are filled up to whole tiles with zeros.
    """
    groups, (height, width) = workload.groups, workload.kernel
    filters, channels = workload.filters // groups, workload.channels // groups
    tiles = -(-filters // tile.channels)
    pitch = tile.pitch(workload.kernel)
    filled = np.zeros((groups, tiles * tile.channels, channels, height, width), weights.dtype)
    filled[:, :filters] = weights.reshape(groups, filters, channels, height, width)
    split = filled.reshape(groups, tiles, tile.channels, channels, height, width)
    used = split.transpose(0, 1, 3, 4, 5, 2).reshape(groups, tiles, channels, height, -1)
    packed = np.zeros((groups, tiles, channels, height, pitch), weights.dtype)
    packed[..., : used.shape[-1]] = used
    return packed


def conv2d_for_sub_groups(
    image: te.Tensor, packed: te.Tensor, workload: ConvWorkload, tile: SubGroupTile
) -> te.Tensor:
    """Compute ``[N, C, H, W]`` to ``[N, O, OH, OW]``, see :func:`pack_for_sub_groups`."""
    filters, channels = (n // workload.groups for n in (workload.filters, workload.channels))
    top, left, bottom, right = workload.padding
    padded = image
    if any(workload.padding):
        padded = topi.nn.pad(image, [0, 0, top, left], [0, 0, bottom, right], name="pad")
    axes = [
        te.reduce_axis((0, extent), name)
        for extent, name in (
            (channels, "rc"),
            (workload.kernel[0], "ry"),
            (workload.kernel[1], "rx"),
        )
    ]
    rc, ry, rx = axes

    def element(n: tirx.Var, o: tirx.Var, y: tirx.Var, x: tirx.Var) -> tirx.Expr:
        group, row = tirx.floordiv(o, filters), tirx.floormod(o, filters)
        line = y * workload.strides[0] + ry * workload.dilation[0]
        column = x * workload.strides[1] + rx * workload.dilation[1]
        weight = packed[
            group,
            tirx.floordiv(row, tile.channels),
            rc,
            ry,
            rx * tile.channels + tirx.floormod(row, tile.channels),
        ]
        return te.sum(padded[n, group * channels + rc, line, column] * weight, axis=axes)

    shape = (workload.batch, workload.filters, *workload.output)
    return te.compute(shape, element, name="conv2d_sub_groups")
