"""Convolutions of 8-bit images on blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import bindings_of, const, count_uses, is_call
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.int8 import (
    CONV2D_INT8,
    DEPTHWISE_INT8,
    conv2d_int8,
    depthwise_int8,
    image_block,
    pack_dot_filters,
    pack_window_filters,
)

__all__ = ["Int8Conv", "convolution_at", "int8_conv", "int8_convs"]

# Relax's OpPatternKind: element-wise kernels may follow in the same one.
_OUT_ELEMENTWISE_FUSABLE = 4


@dataclass(frozen=True)
class Int8Conv:
    """A convolution of 8-bit numbers in int32.

    Attributes
    ----------
    workload : ConvWorkload
    image : relax.Expr
        Not padded yet.
    weights : np.ndarray
    zero : int
        What the image is padded with.
    block : int
        Channels in a block of the image; 0 if it has no kernel on blocks.
    """

    workload: ConvWorkload
    image: relax.Expr
    weights: np.ndarray
    zero: int
    block: int

    def blocked(self, builder: relax.BlockBuilder, image: relax.Var, knobs: str = "") -> relax.Expr:
        """The kernel's call, of the image in blocks; without knobs its schedule chooses them."""
        w = self.workload
        kernel: Any
        if w.depthwise:
            packed = pack_window_filters(self.weights)
            name = DEPTHWISE_INT8

            def kernel(x: te.Tensor, filters: te.Tensor) -> te.Tensor:
                columns, down = w.kernel[1], w.dilation[0]
                return depthwise_int8(
                    x, filters, w.strides, w.padding, down, columns, self.zero, knobs
                )
        else:
            packed = pack_dot_filters(self.weights, self.block, w.groups)
            name = CONV2D_INT8

            def kernel(x: te.Tensor, filters: te.Tensor) -> te.Tensor:
                return conv2d_int8(
                    x, filters, w.strides, w.padding, w.dilation, w.groups, self.zero, knobs
                )

        return builder.call_te(
            kernel,
            image,
            const(packed, "int8"),
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )


def int8_conv(call: relax.Call, bound: Mapping[relax.Var, relax.Expr]) -> Int8Conv | None:
    """A convolution of :mod:`tvm_edge.relay_passes.quantize.quantize`, padding included.

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


def int8_convs(
    func: relax.Function, spec: DeviceSpec
) -> tuple[dict[relax.Var, Int8Conv], set[relax.Var]]:
    """Convolutions of bytes by their results, and the paddings that they alone read.

    None where `spec` has no kernels of blocks for them.
    """
    if spec.dot_product not in DOT_PRODUCTS:
        return {}, set()
    bound = {b.var: b.value for b in bindings_of(func)}
    found: dict[relax.Var, Int8Conv] = {}
    reads: Counter[relax.Var] = Counter()
    for var, value in bound.items():
        whole = int8_conv(value, bound)
        if whole is not None and whole.block:
            found[var] = whole
            if not whole.image.same_as(value.args[0]):
                reads[value.args[0]] += 1
    uses = count_uses(func) if reads else {}
    return found, {var for var, count in reads.items() if uses[var] == count}


def convolution_at(
    value: relax.Expr,
    bound: Mapping[relax.Var, relax.Expr],
    spec: DeviceSpec,
    dtypes: Collection[str] = ("float32",),
) -> ConvWorkload | None:
    """What a convolution computes that a configuration can be chosen for on a device.

    Parameters
    ----------
    value : relax.Expr
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to.
    spec : DeviceSpec
        Of bytes where it has kernels for them, with the padding in front of it: a CPU's are of
        blocks.
    dtypes : collection of str
        Of all tensors of the others.
    """
    found = conv_workload(value, dtypes)
    if found is not None:
        return found[0]
    whole = int8_conv(value, bound)
    if whole is None:
        return None
    if spec.has_cpu_cores:
        has_kernel = spec.dot_product in DOT_PRODUCTS and whole.block > 0
    else:
        has_kernel = 0 not in whole.workload.output
    return whole.workload if has_kernel else None
