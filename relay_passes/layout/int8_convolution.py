"""Convolutions of int8 images on channel blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from tvm import relax, te

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import bindings_of, const, count_uses
from tvm_edge.relay_passes.ir.workloads import Int8Conv, conv_workload, int8_conv
from tvm_edge.relay_passes.layout.choose_tensor_blocks import tensor_workload
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.int8 import (
    CONV2D_INT8,
    DEPTHWISE_INT8,
    conv2d_int8,
    depthwise_int8,
    pack_dot_filters,
    pack_window_filters,
)

__all__ = ["blocked_call", "convolution_at", "int8_convs"]

# Relax's OpPatternKind: element-wise kernels may follow in the same one.
_OUT_ELEMENTWISE_FUSABLE = 4


def blocked_call(
    conv: Int8Conv,
    builder: relax.BlockBuilder,
    image: relax.Var,
    spec: DeviceSpec,
    knobs: str = "",
) -> relax.Expr:
    """Call the kernel on an image in blocks; without knobs its schedule chooses them."""
    w = conv.workload
    dot = DOT_PRODUCTS[spec.dot_product]
    group = dot.filter_group(w, conv.weights)
    kernel: Any
    if w.depthwise:
        packed = pack_window_filters(conv.weights, w.strides[1], group)
        name = DEPTHWISE_INT8

        def kernel(x: te.Tensor, filters: te.Tensor) -> te.Tensor:
            columns, down = w.kernel[1], w.dilation[0]
            return depthwise_int8(x, filters, w.strides, w.padding, down, columns, conv.zero, knobs)
    else:
        packed = pack_dot_filters(conv.weights, conv.block, w.groups, group)
        name = CONV2D_INT8

        def kernel(x: te.Tensor, filters: te.Tensor) -> te.Tensor:
            return conv2d_int8(
                x, filters, w.strides, w.padding, w.dilation, w.groups, conv.zero, knobs
            )

    return builder.call_te(
        kernel,
        image,
        const(packed, "int8"),
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def int8_convs(
    func: relax.Function, spec: DeviceSpec
) -> tuple[dict[relax.Var, Int8Conv], set[relax.Var]]:
    """Convolutions of int8 by their results, and the paddings that they alone read.

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
    *,
    tf32: bool = False,
) -> ConvWorkload | None:
    """Return the workload of a convolution that a config can be chosen for on a device.

    Parameters
    ----------
    value : relax.Expr
    bound : mapping of relax.Var to relax.Expr
        What variables are bound to.
    spec : DeviceSpec
        Workloads of int8 are returned where it has kernels for them, with the padding before them:
        a CPU's are of blocks. Those on its tensor cores are of their own type.
    dtypes : collection of str
        Of all tensors of other convolutions.
    tf32 : bool
        Whether tensor cores may round float32; what does not run on them has no choice then.
    """
    tensor = tensor_workload(value, bound, spec, tf32=tf32)
    if tensor is not None or tf32:
        return tensor
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
