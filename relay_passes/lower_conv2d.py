"""Convolutions on a GPU by Winograd's algorithm or with a given tile."""

from __future__ import annotations

import numpy as np
from tvm import relax, s_tir, te, tirx, topi

from tvm_edge.relay_passes.expressions import const
from tvm_edge.relay_passes.kernel_site import KernelSite
from tvm_edge.relay_passes.workloads import conv_workload
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.algorithm import choose_config
from tvm_edge.schedules.gpu.winograd import products, transform_images
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.stages import open_reduction
from tvm_edge.schedules.winograd import combine_outputs, transform_filters_by_channel

__all__ = ["lower_conv2d"]

# Relax's OpPatternKind: element-wise kernels may follow in the same one.
_OUT_ELEMENTWISE_FUSABLE = 4


def lower_conv2d(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.nn.conv2d`` with constant filters; what the rules choose alike stays as it is.

    Images of float16 are transformed, multiplied and put together in float32: Winograd's transforms
    would make the error of float16 some ten times as large.
    """
    found = conv_workload(call, ("float32", "float16"))
    if site.spec.kind != "gpu" or found is None:
        return call
    workload, weights = found
    config = site.configs.get(workload) or choose_config(workload, site.spec, site.precision)
    if config.algorithm == "winograd":
        return _winograd(site, call.args[0], workload, weights, config)
    if config.knobs:
        return _direct(site, call, workload, config.knobs)
    return call


def _winograd(
    site: KernelSite,
    image: relax.Expr,
    workload: ConvWorkload,
    weights: np.ndarray,
    config: ConvConfig,
) -> relax.Call:
    m, dtype = config.m, str(image.ty.dtype)
    inputs = transform_images(workload, m, site.spec, dtype)
    (transformed,) = site.run(inputs, "winograd_input", [image])
    filters = transform_filters_by_channel(weights.astype("float32"), m)
    shape = [int(dim) for dim in inputs.outputs[0][0]]
    u, v = te.placeholder(filters.shape, "float32", "u"), te.placeholder(shape, "float32", "v")
    product = products(u, v, config.knobs)
    func = te.create_prim_func([u, v, product], "int64").with_attr(PRECISION, "float32")
    operands = [const(filters, "float32"), transformed]
    sums = site.emit(_fusable(site, func, "winograd_product", operands, product))
    given = te.placeholder([int(dim) for dim in product.shape], "float32", "products")
    result = combine_outputs(given, m, (workload.batch, *workload.output))
    if dtype == "float16":
        result = stored(result.shape, result)
    func = te.create_prim_func([given, result], "int64")
    return _fusable(site, func, "winograd_output", [sums], result)


def _direct(site: KernelSite, call: relax.Call, workload: ConvWorkload, knobs: str) -> relax.Call:
    """The operator's own definition, with knobs for its schedule."""
    image, filters = (
        te.placeholder(list(arg.ty.shape), str(arg.ty.dtype), name)
        for arg, name in zip(call.args, ("image", "filters"), strict=True)
    )
    result = topi.nn.conv(
        image,
        filters,
        list(workload.strides),
        list(workload.padding),
        list(workload.dilation),
        workload.groups,
        "NCHW",
        "OIHW",
        str(call.ty.dtype),
    )
    func = te.create_prim_func([image, filters, result], "int64")
    opened = open_reduction(func)
    assert opened is not None, "a convolution is one sum"
    # That schedule's buffers have 32-bit shapes, which Relax's types do not.
    name = opened[0].get(opened[1]).name_hint
    sch = s_tir.Schedule(func)
    sch.annotate(sch.get_sblock(name), CONFIG, knobs)
    return _fusable(site, sch.mod["main"], "conv2d", list(call.args), result)


def _fusable(
    site: KernelSite, func: tirx.PrimFunc, name: str, args: list[relax.Expr], result: te.Tensor
) -> relax.Call:
    """A call of a kernel that element-wise ones may be fused with."""
    func = func.with_attr("op_pattern", _OUT_ELEMENTWISE_FUSABLE)
    ty = site.tensor([int(dim) for dim in result.shape], str(result.dtype))
    return site.unbound(func, name, args, [ty])
