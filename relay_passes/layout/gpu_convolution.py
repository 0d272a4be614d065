"""Convolutions of images in blocks of channels on a GPU, as calls of their kernels."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import const
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.channel_blocks import conv2d_in_blocks, pack_rows
from tvm_edge.schedules.gpu.halves_window import depthwise_halves
from tvm_edge.schedules.gpu.items import ITEMS
from tvm_edge.schedules.gpu.tensor_conv import TensorConv, conv2d_tensor, pack_stacks
from tvm_edge.schedules.knobs import CONFIG

__all__ = ["gpu_conv"]


def gpu_conv(
    builder: relax.BlockBuilder,
    image: relax.Expr,
    workload: ConvWorkload,
    weights: np.ndarray,
    config: ConvConfig,
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
    """
    if config.algorithm == "tensor":
        packed = pack_stacks(weights, TensorConv.of(workload))
        return builder.call_te(
            lambda image, filters: conv2d_tensor(image, filters, workload, config.knobs),
            image,
            const(packed, "float16"),
            primfunc_name_hint="conv2d_tensor",
            primfunc_attrs={"op_pattern": 4},
        )
    if config.algorithm == "window":
        return builder.call_te(
            lambda image, filters: depthwise_halves(image, filters, workload),
            image,
            const(pack_rows(weights, workload, config.block), "float16"),
            primfunc_name_hint="depthwise_halves",
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
