"""Convolutions with packed filters: four channels side by side, as work-items read them."""

from __future__ import annotations

import numpy as np
from tvm import te, topi

from tvm_edge.schedules.blocked import number_or_length, outputs
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.product import VECTOR

__all__ = ["can_pack", "conv2d_packed", "conv2d_tensors", "pack_channels"]


def can_pack(workload: ConvWorkload) -> bool:
    """Return whether four neighbouring channels always read the same data."""
    per_group = workload.filters // workload.groups
    return per_group >= VECTOR and (workload.groups == 1 or per_group % VECTOR == 0)


def pack_channels(filters: np.ndarray) -> np.ndarray:
    """Pack filters ``[O, C, KH, KW]`` as ``[ceil(O / 4), C, KH, KW, 4]``, zeros after the last."""
    blocks = -(-filters.shape[0] // VECTOR)
    padded = np.zeros((blocks * VECTOR, *filters.shape[1:]), filters.dtype)
    padded[: len(filters)] = filters
    blocked = padded.reshape(blocks, VECTOR, *filters.shape[1:])
    return np.ascontiguousarray(np.moveaxis(blocked, 1, -1))


def conv2d_packed(image: te.Tensor, filters: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Compute the convolution of ``[N, C, H, W]`` with packed filters, ``[N, O, OH, OW]``.

    Batch, lines and columns are the image's, which may be open where `workload` has typical ones.
    """
    top, left, bottom, right = workload.padding
    batch, _, height, width = map(number_or_length, image.shape)
    if any(workload.padding):
        image = topi.nn.pad(image, [0, 0, top, left], [0, 0, bottom, right], name="pad")
    per_group = workload.channels // workload.groups
    filters_per_group = workload.filters // workload.groups
    channel = te.reduce_axis((0, per_group), name="channel")
    row = te.reduce_axis((0, workload.kernel[0]), name="row")
    tap = te.reduce_axis((0, workload.kernel[1]), name="tap")
    (line_stride, column_stride), (line_step, column_step) = workload.strides, workload.dilation

    def product(n: te.Var, o: te.Var, y: te.Var, x: te.Var) -> te.Expr:
        first = 0 if workload.groups == 1 else te.indexdiv(o, filters_per_group) * per_group
        pixel = image[
            n,
            first + channel,
            y * line_stride + row * line_step,
            x * column_stride + tap * column_step,
        ]
        own = filters[te.indexdiv(o, VECTOR), channel, row, tap, te.indexmod(o, VECTOR)]
        return te.sum(pixel * own, axis=[channel, row, tap])

    lines = outputs(height + top + bottom, workload.kernel[0], line_stride, line_step)
    columns = outputs(width + left + right, workload.kernel[1], column_stride, column_step)
    return te.compute((batch, workload.filters, lines, columns), product, name="conv")


def conv2d_tensors(
    workload: ConvWorkload, dtype: str = "float32", *, packed: bool
) -> list[te.Tensor]:
    """Return image, filters and result of a convolution, its own or with packed filters."""
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    image = te.placeholder(shape, dtype, "image")
    own = (workload.channels // workload.groups, *workload.kernel)
    if packed:
        blocks = -(-workload.filters // VECTOR)
        filters = te.placeholder((blocks, *own, VECTOR), dtype, "filters")
        return [image, filters, conv2d_packed(image, filters, workload)]
    filters = te.placeholder((workload.filters, *own), dtype, "filters")
    result = topi.nn.conv(
        image,
        filters,
        list(workload.strides),
        list(workload.padding),
        list(workload.dilation),
        workload.groups,
        "NCHW",
        "OIHW",
        dtype,
    )
    return [image, filters, result]
