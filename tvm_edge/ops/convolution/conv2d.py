"""Lowering of convolutions on a GPU: Winograd's algorithm, sub-groups, or given knobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax, s_tir, te, tirx

from tvm_edge.ops.convolution.conv2d_int8 import lower_conv2d_int8
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.relay_passes.ir.expressions import const
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.algorithm import choose_config
from tvm_edge.schedules.gpu.items import ITEMS
from tvm_edge.schedules.gpu.packed import can_pack, conv2d_tensors, pack_channels
from tvm_edge.schedules.gpu.subgroup_filters import (
    SUB_GROUP,
    conv2d_for_sub_groups,
    pack_for_sub_groups,
)
from tvm_edge.schedules.gpu.subgroup_tile import SubGroupTile
from tvm_edge.schedules.gpu.winograd import products, transform_images
from tvm_edge.schedules.knobs import CONFIG, knobs_as_text, read_knobs
from tvm_edge.schedules.stages import open_reduction
from tvm_edge.schedules.winograd import combine_outputs, transform_filters_by_channel

__all__ = ["lower_conv2d"]


def lower_conv2d(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower a convolution with constant filters; leave those that schedule rules do alike.

    Images of float16 are transformed, multiplied and put together in float32: Winograd's transforms
    would make the error of float16 some ten times as large.
    """
    if not site.spec.launches_grids:
        return call
    whole = lower_conv2d_int8(site, call)
    if whole is not None:
        return whole
    found = conv_workload(call, ("float32", "float16"))
    if found is None:
        return call
    workload, weights = found
    spec = site.chooser or site.spec
    if weights.dtype == np.float16:  # sub-groups have block reads of float32 here
        spec = replace(spec, sub_groups=())
    config = site.configs.get(workload)
    # Blocks of channels are dealt with before, for the whole network.
    if config is None or config.block or (config.algorithm == "subgroup" and not spec.sub_groups):
        config = choose_config(workload, spec, site.precision)
    if config.algorithm == "winograd":
        return _winograd(site, call.args[0], workload, weights, config)
    if config.algorithm == "subgroup":
        tile = read_knobs(SubGroupTile, config.knobs)
        return _by_sub_groups(site, call.args[0], workload, weights, tile)
    packed = site.spec.local_memory_kind != "dedicated" and can_pack(workload)
    if config.knobs or packed:
        return _defined(site, call, workload, weights, config, packed)
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
    winograd_products = site.emit(site.fusable(func, "winograd_product", operands, product))
    given = te.placeholder([int(dim) for dim in product.shape], "float32", "products")
    result = combine_outputs(given, m, (workload.batch, *workload.output))
    if dtype == "float16":
        result = stored(result.shape, result)
    func = te.create_prim_func([given, result], "int64")
    return site.fusable(func, "winograd_output", [winograd_products], result)


def _defined(
    site: KernelSite,
    call: relax.Call,
    workload: ConvWorkload,
    weights: np.ndarray,
    config: ConvConfig,
    packed: bool,
) -> relax.Call:
    """Define the operator, with knobs for its schedule if `config` has any.

    Of `packed` filters the channels of a work-item lie side by side: it reads them as one vector.
    """
    dtype = str(call.ty.dtype)
    image, filters, result = conv2d_tensors(workload, dtype, packed=packed)
    func = te.create_prim_func([image, filters, result], "int64")
    if config.knobs:
        func = _annotated(func, ITEMS if config.algorithm == "items" else CONFIG, config.knobs)
    operand = const(pack_channels(weights), dtype) if packed else call.args[1]
    return site.fusable(func, "conv2d", [call.args[0], operand], result)


def _by_sub_groups(
    site: KernelSite,
    image: relax.Expr,
    workload: ConvWorkload,
    weights: np.ndarray,
    tile: SubGroupTile,
) -> relax.Call:
    packed = pack_for_sub_groups(weights, workload, tile)
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    given = te.placeholder(shape, "float32", "image")
    filters = te.placeholder(packed.shape, "float32", "filters")
    result = conv2d_for_sub_groups(given, filters, workload, tile)
    func = te.create_prim_func([given, filters, result], "int64")
    func = _annotated(func, SUB_GROUP, knobs_as_text(tile))
    return site.fusable(func, "conv2d", [image, const(packed, "float32")], result)


def _annotated(func: tirx.PrimFunc, key: str, knobs: str) -> tirx.PrimFunc:
    """Annotate a kernel of one reduction with knobs for its schedule."""
    opened = open_reduction(func)
    assert opened is not None, "a convolution is one sum"
    # That schedule's buffers have 32-bit shapes, which Relax's types do not.
    name = opened[0].get(opened[1]).name_hint
    sch = s_tir.Schedule(func)
    sch.annotate(sch.get_sblock(name), key, knobs)
    return sch.mod["main"]
