"""Kernel of an int8 convolution as it stands in a network, with its accumulators quantised."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops.quantization.kernels import rounded
from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.int8 import (
    BLOCK,
    conv2d_int8,
    depthwise_int8,
    image_block,
    pack_dot_filters,
    pack_window_filters,
    window_shifts,
    window_step,
)
from tvm_edge.tuning.conv_problem import rounding_of

__all__ = ["int8_tensors", "packed_int8_filters"]


def int8_tensors(workload: ConvWorkload, knobs: str, spec: DeviceSpec) -> list[te.Tensor]:
    """Return image, filters, bias and result, padded and rounded as in a problem.

    Parameters
    ----------
    workload : ConvWorkload
        In int8, with a kernel in channel blocks.
    knobs : str
        Of its configuration.
    spec : DeviceSpec
        A CPU with a kernel for it.
    """
    w, depth, rounding = workload, image_block(workload), rounding_of(workload)
    blocks = filled(w.filters, BLOCK) // BLOCK
    channels = filled(w.channels, depth) // depth
    group = DOT_PRODUCTS[spec.dot_product].filter_group(w)
    image = te.placeholder((w.batch, channels, w.height, w.width, depth), w.dtype, "image")
    if w.depthwise:
        columns = filled(w.kernel[1], window_step(group))
        columns *= window_shifts(w.kernel[1], w.strides[1], group)
        taps = (blocks, w.kernel[0], columns // group, BLOCK, group)
        filters = te.placeholder(taps, "int8", "filters")
        accumulators = depthwise_int8(
            image,
            filters,
            w.strides,
            w.padding,
            w.dilation[0],
            w.kernel[1],
            rounding.zero,
            knobs,
        )
    else:
        shape = (blocks, channels // w.groups, *w.kernel, depth // group, BLOCK, group)
        filters = te.placeholder(shape, "int8", "filters")
        accumulators = conv2d_int8(
            image, filters, w.strides, w.padding, w.dilation, w.groups, rounding.zero, knobs
        )
    bias = te.placeholder((1, blocks, 1, 1, BLOCK), "int32", "bias")
    scale, zero = tirx.const(rounding.scale, "float32"), tirx.const(rounding.zero, "int32")

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        biased = accumulators(n, o, y, x, v) + bias(0, o, 0, 0, v)
        return rounded(tirx.Cast("float32", biased) * scale, zero, rounding.dtype)

    return [image, filters, bias, te.compute(accumulators.shape, element, "result")]


def packed_int8_filters(workload: ConvWorkload, filters: np.ndarray, group: int) -> np.ndarray:
    """Pack filters ``[O, C/groups, KH, KW]`` as the kernel takes them.

    Parameters
    ----------
    workload : ConvWorkload
    filters : np.ndarray
    group : int
        Length of the last axis that the kernel takes.
    """
    if workload.depthwise:
        return pack_window_filters(filters, workload.strides[1], group)
    return pack_dot_filters(filters, image_block(workload), workload.groups, group)
