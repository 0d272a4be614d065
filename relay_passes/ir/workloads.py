"""What the operators of a graph compute, in the terms that kernels are chosen by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import constant_of, is_call, static_shape
from tvm_edge.relay_passes.quantize.encodings import BYTES
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["conv_workload", "workload_of"]


def conv_workload(
    call: relax.Expr, dtypes: Collection[str | tuple[str, str, str]] = ("float32",)
) -> tuple[ConvWorkload, np.ndarray] | None:
    """What a convolution in NCHW computes and its filters; ``None`` unless both are known.

    `dtypes` are those that all of its tensors may be of, or three of image, filters and result.
    """
    if not is_call(call, "relax.nn.conv2d"):
        return None
    weights = constant_of(call.args[1])
    workload = None if weights is None else workload_of(call, weights)
    if weights is None or workload is None:
        return None
    if 0 in (workload.batch, workload.channels, workload.height, workload.width):
        return None
    own = (str(call.args[0].ty.dtype), str(weights.dtype), str(call.ty.dtype))
    if own not in [(each,) * 3 if isinstance(each, str) else each for each in dtypes]:
        return None
    return replace(workload, dtype=own[0] if own[0] in BYTES else "float32"), weights


def workload_of(call: relax.Call, filters: np.ndarray) -> ConvWorkload | None:
    """What a convolution in NCHW computes with these filters; ``None`` of other layouts."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    shape = static_shape(call.args[0].ty)
    if layouts != ("NCHW", "OIHW", "NCHW") or shape is None:
        return None
    top, left, bottom, right = (int(p) for p in attrs.padding)
    if min(top, left, bottom, right) < 0:
        return None
    batch, channels, lines, columns = shape
    return ConvWorkload(
        batch,
        channels,
        lines,
        columns,
        filters=filters.shape[0],
        kernel=(filters.shape[2], filters.shape[3]),
        strides=(int(attrs.strides[0]), int(attrs.strides[1])),
        padding=(top, left, bottom, right),
        dilation=(int(attrs.dilation[0]), int(attrs.dilation[1])),
        groups=int(attrs.groups),
    )
