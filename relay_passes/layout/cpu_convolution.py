"""Convolutions of images in blocks of channels on a CPU, as calls of their kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import const, static_shape
from tvm_edge.schedules.blocked import CONV2D, DEPTHWISE, TRANSPOSED, conv2d, pack_filters
from tvm_edge.schedules.channel_groups import conv2d_groups
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.pairs import CONV2D_PAIRS, PAIR, multiplies_pairs, pack_pairs
from tvm_edge.schedules.taps import reaches
from tvm_edge.schedules.transposed import TransposedConv, conv2d_transposed, pack_phases
from tvm_edge.schedules.winograd import LARGEST_GAIN, PRODUCT, conv2d_winograd, transform_filters

__all__ = ["CpuConvolutions"]


class CpuConvolutions:
    """Kernels of a module's convolutions: one for all of a workload and shape.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Takes the kernels.
    spec : DeviceSpec
    """

    def __init__(self, builder: relax.BlockBuilder, spec: DeviceSpec) -> None:
        self._spec = spec
        self._builder = builder
        self._known: dict[tuple[Any, ...], relax.Call] = {}

    def call(
        self,
        image: relax.Expr,
        workload: ConvWorkload,
        weights: np.ndarray,
        config: ConvConfig,
        depth: int,
    ) -> relax.Expr:
        """Return the call of a kernel that convolves `image`, which is in the blocks that it reads.

        Parameters
        ----------
        image : relax.Expr
        workload : ConvWorkload
        weights : np.ndarray
            ``[O, C/groups, KH, KW]``.
        config : ConvConfig
            In blocks.
        depth : int
            Channels in a block of the image.
        """
        block = config.block
        pairs = multiplies_pairs(workload, self._spec)
        compute: Any = conv2d
        attrs = None
        if config.algorithm == "winograd":
            # What float16 holds is not infinite once it is transformed.
            scale = LARGEST_GAIN if workload.dtype == "float16" else 1
            packed = transform_filters(weights, config.m, block, PAIR if pairs else 1, scale)
            options = [config.m, workload.padding, config.knobs, scale]
            name = PRODUCT.replace("product", "conv2d")
            # Several stages: TVM would take none of them for one that an epilogue may follow.
            attrs = {"op_pattern": 4}
            compute = conv2d_winograd
        elif pairs:
            packed = pack_pairs(weights, depth, block, workload.groups)
            windows = (workload.strides, workload.padding, workload.dilation, workload.groups)
            options = [*windows, CONV2D_PAIRS, config.knobs]
            name, compute = CONV2D_PAIRS, conv2d_groups
        else:
            packed = pack_filters(
                weights, 1 if workload.depthwise else depth, block, workload.groups
            )
            windows = (workload.strides, workload.padding, workload.dilation, workload.groups)
            fixed = static_shape(image.ty) is not None
            reach = reaches(workload) if fixed else ""
            options = [*windows, config.knobs, reach, workload.channels]
            name = DEPTHWISE if workload.depthwise else CONV2D
        dtype = str(packed.dtype)
        filters = const(packed, dtype)
        shape = static_shape(image.ty)
        key = (workload, config, shape, dtype)
        known = self._known.get(key)
        if known is not None and shape is not None:
            operands = relax.Tuple([image, filters])
            return relax.Call(known.op, [known.args[0], operands], known.attrs, known.ty_args)
        self._known[key] = self._builder.call_te(
            compute, image, filters, *options, primfunc_name_hint=name, primfunc_attrs=attrs
        )
        return self._known[key]

    def transposed(
        self, image: relax.Expr, conv: TransposedConv, weights: np.ndarray, block: int, depth: int
    ) -> relax.Expr:
        """Return the call of a kernel that convolves `image`, transposed.

        Parameters are those of :meth:`call`; weights are ``[C, O, KH, KW]``.
        """
        return self._builder.call_te(
            lambda image, filters: conv2d_transposed(image, filters, conv),
            image,
            const(pack_phases(weights, conv, depth, block), str(weights.dtype)),
            primfunc_name_hint=TRANSPOSED,
            # Of several stages TVM would not say itself that others fuse with them.
            primfunc_attrs={"op_pattern": 4},
        )
