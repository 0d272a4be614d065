"""Convolutions of images in blocks of channels on a GPU, as calls of their kernels."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import const, is_call, static_shape
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.channel_blocks import conv2d_in_blocks, pack_rows
from tvm_edge.schedules.gpu.items import ITEMS
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS, TensorConv, conv2d_tensor, pack_stacks
from tvm_edge.schedules.gpu.tensor_winograd import (
    frequency_filters,
    frequency_images,
    frequency_products,
    frequency_results,
)
from tvm_edge.schedules.gpu.unit_window import depthwise_units, pool_units
from tvm_edge.schedules.knobs import CONFIG

__all__ = ["gpu_conv", "gpu_pool"]


def gpu_conv(
    builder: relax.BlockBuilder,
    image: relax.Expr,
    workload: ConvWorkload,
    weights: np.ndarray,
    config: ConvConfig,
    zero: int = 0,
) -> relax.Expr:
    """The call of a kernel that convolves `image`, which is in the blocks that it reads.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Takes the kernel.
    image : relax.Expr
    workload : ConvWorkload
    weights : np.ndarray
        ``[O, C/groups, KH, KW]``.
    config : ConvConfig
        In blocks.
    zero : int
        What an image of int8 is padded with.
    """
    dtype = str(weights.dtype)
    if config.algorithm == "winograd":
        filters = frequency_filters(weights, workload)
        if np.isfinite(filters).all():
            return _winograd(builder, image, workload, filters, config)
        # Sums of nine are beyond float16, of which each is within.
        config = ConvConfig("tensor", config.block)
    if config.algorithm == "tensor":
        packed = pack_stacks(weights, TensorConv.of(workload, dtype))
        return builder.call_te(
            lambda image, filters: conv2d_tensor(image, filters, workload, config.knobs, zero),
            image,
            const(packed, dtype),
            primfunc_name_hint="conv2d_tensor",
            primfunc_attrs={"op_pattern": 4},
        )
    if config.algorithm == "window":
        return builder.call_te(
            lambda image, filters: depthwise_units(image, filters, workload, zero),
            image,
            const(pack_rows(weights, workload, config.block), dtype),
            primfunc_name_hint="depthwise_units",
            primfunc_attrs={"op_pattern": 4},
        )
    key = ITEMS if config.algorithm == "items" else CONFIG
    knobs = (key, config.knobs) if config.knobs else None
    return builder.call_te(
        lambda image, filters: conv2d_in_blocks(image, filters, workload, config.block, knobs),
        image,
        const(pack_rows(weights, workload, config.block), "float32"),
        primfunc_name_hint="conv2d_in_blocks",
        # Several stages: TVM would take none of them for one that an epilogue may follow.
        primfunc_attrs={"op_pattern": 4},
    )


def _winograd(
    builder: relax.BlockBuilder,
    image: relax.Expr,
    workload: ConvWorkload,
    filters: np.ndarray,
    config: ConvConfig,
) -> relax.Call:
    """The calls of the three kernels of Winograd's algorithm on tensor cores."""
    images = builder.call_te(
        lambda image: frequency_images(image, workload),
        image,
        primfunc_name_hint="winograd_images",
        primfunc_attrs={"op_pattern": 4},
    )
    products = builder.call_te(
        lambda images, filters: frequency_products(images, filters, workload, config.knobs),
        builder.emit(images, "frequencies"),
        const(filters, str(filters.dtype)),
        primfunc_name_hint="winograd_products",
        primfunc_attrs={"op_pattern": 4},
    )
    return builder.call_te(
        lambda products: frequency_results(products, workload),
        builder.emit(products, "products"),
        primfunc_name_hint="winograd_results",
        primfunc_attrs={"op_pattern": 4},
    )


def gpu_pool(builder: relax.BlockBuilder, image: relax.Expr, call: relax.Call) -> relax.Expr | None:
    """The call of a kernel that pools `image`, which is in blocks of 16 bytes.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Takes the kernel.
    image : relax.Expr
    call : relax.Call
        The pool of the image in NCHW.

    Returns
    -------
    relax.Expr or None
        ``None`` where there is no kernel: means of int8 or of windows that end outside of the
        padding, and shapes that only a run tells.
    """
    attrs, shape = call.attrs, static_shape(call.ty)
    maximum = is_call(call, "relax.nn.max_pool2d")
    sizes = [[int(n) for n in own] for own in (attrs.pool_size, attrs.strides, attrs.dilation)]
    padding = [int(n) for n in attrs.padding]
    static = static_shape(image.ty)
    dtype = str(image.ty.dtype)
    if shape is None or static is None or static[-1] != BLOCKS.get(dtype):
        return None
    if not maximum and (dtype == "int8" or attrs.ceil_mode or sizes[2] != [1, 1]):
        return None
    return builder.call_te(
        lambda image: pool_units(
            image,
            shape[2:],
            [*sizes, padding[:2]],
            maximum=maximum,
            counts_padding=bool(attrs.count_include_pad),
        ),
        image,
        primfunc_name_hint="pool_units",
        primfunc_attrs={"op_pattern": 4},
    )
