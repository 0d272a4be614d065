"""Workloads of the convolutions of a graph: the terms that kernels are chosen by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import (
    constant_of,
    is_call,
    lengths_of,
    static_shape,
    typical_shape,
)
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import HALVES
from tvm_edge.schedules.int8 import image_block
from tvm_edge.schedules.transposed import TransposedConv

__all__ = [
    "FLOATS",
    "INT8_TYPES",
    "Int8Conv",
    "conv_workload",
    "int8_conv",
    "transposed_conv",
    "workload_of",
]

FLOATS = ("float32", *HALVES)
"""Types of convolutions that accumulate in float32."""

INT8_TYPES = ("int8", "uint8")
"""Types of 8-bit numbers."""


def conv_workload(
    call: relax.Expr,
    dtypes: Collection[str | tuple[str, str, str]] = ("float32",),
    *,
    open_too: bool = False,
) -> tuple[ConvWorkload, np.ndarray] | None:
    """Return the workload of a convolution in NCHW and its filters; ``None`` unless both are known.

    `dtypes` are those that all of its tensors may be of, or three of image, filters and result.
    Of an image with open lengths, if asked for those too, it is the workload of typical ones.
    """
    if not is_call(call, "relax.nn.conv2d"):
        return None
    weights = constant_of(call.args[1])
    workload = None if weights is None else workload_of(call, weights, open_too=open_too)
    if weights is None or workload is None:
        return None
    if 0 in (workload.batch, workload.channels, workload.height, workload.width):
        return None
    own = (str(call.args[0].ty.dtype), str(weights.dtype), str(call.ty.dtype))
    if own not in [(each,) * 3 if isinstance(each, str) else each for each in dtypes]:
        return None
    # Kernels of open lengths widen bfloat16, as all do with float16.
    widened = own[0] == "float16" or static_shape(call.args[0].ty) is None
    return replace(workload, dtype="float32" if widened else own[0]), weights


def transposed_conv(call: relax.Expr) -> tuple[TransposedConv, np.ndarray] | None:
    """Return a transposed convolution in NCHW and its filters; ``None`` unless both are known.

    Of images with open lengths too, as :func:`conv_workload` returns them.
    """
    if not is_call(call, "relax.nn.conv2d_transpose"):
        return None
    weights, attrs = constant_of(call.args[1]), call.attrs
    lengths, shape = lengths_of(call.args[0].ty), typical_shape(call.args[0].ty)
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if weights is None or shape is None or layouts != ("NCHW", "IOHW", "NCHW"):
        return None
    dtypes = {str(value.ty.dtype) for value in (*call.args, call)}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS) or 0 in weights.shape or 0 in (lengths or ()):
        return None
    if int(attrs.groups) != 1 or {int(d) for d in attrs.dilation} != {1}:
        return None
    conv = TransposedConv.of(
        shape,
        weights.shape[1],
        weights.shape[2:],
        *(tuple(map(int, each)) for each in (attrs.strides, attrs.padding, attrs.output_padding)),
    )
    return None if conv is None else (conv, weights)


def workload_of(
    call: relax.Call, filters: np.ndarray, *, open_too: bool = False
) -> ConvWorkload | None:
    """Return the workload of a convolution with these filters; ``None`` unless in NCHW."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    lengths = lengths_of(call.args[0].ty)
    shape = static_shape(call.args[0].ty)
    if open_too and lengths is not None and len(lengths) == 4 and isinstance(lengths[1], int):
        shape = typical_shape(call.args[0].ty)
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


@dataclass(frozen=True)
class Int8Conv:
    """A convolution of int8 or uint8 with the padding before it, accumulated in int32.

    Attributes
    ----------
    workload : ConvWorkload
    image : relax.Expr
        Not padded yet.
    weights : np.ndarray
    zero : int
        Padding value of the image.
    block : int
        Channels in a block of the image; 0 if it has no kernel on blocks.
    """

    workload: ConvWorkload
    image: relax.Expr
    weights: np.ndarray
    zero: int
    block: int


def int8_conv(call: relax.Call, bound: Mapping[relax.Var, relax.Expr]) -> Int8Conv | None:
    """Recognise a convolution as int8 models have it, padding included; ``None`` of all else.

    Parameters
    ----------
    call : relax.Call
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to.
    """
    found = conv_workload(call, [(image, "int8", "int32") for image in ("int8", "uint8")])
    if found is None:
        return None
    workload, weights = found
    image, zero = call.args[0], 0
    pad = bound.get(image)
    if is_call(pad, "relax.nn.pad") and not any(workload.padding):
        width = [int(w) for w in pad.attrs.pad_width]
        if str(pad.attrs.pad_mode) == "constant" and len(width) == 8 and not any(width[:4]):
            top, bottom, left, right = width[4:]
            image, zero = pad.args[0], int(pad.attrs.pad_value)
            workload = replace(
                workload,
                height=workload.height - top - bottom,
                width=workload.width - left - right,
                padding=(top, left, bottom, right),
            )
    return Int8Conv(workload, image, weights, zero, image_block(workload))
