"""Lowering of convolutions on a GPU: Winograd's algorithm, sub-groups, or given knobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax, s_tir, te, tirx

from tvm_edge.ops.convolution.conv2d_int8 import lower_conv2d_int8
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.relay_passes.ir.expressions import const, static_shape
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.blocked import number_or_length
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import stored
from tvm_edge.schedules.gpu.algorithm import choose_config
from tvm_edge.schedules.gpu.items import ITEMS
from tvm_edge.schedules.gpu.packed import (
    can_pack,
    conv2d_packed,
    conv2d_tensors,
    pack_channels,
)
from tvm_edge.schedules.gpu.subgroup_filters import (
    SUB_GROUP,
    conv2d_for_sub_groups,
    pack_for_sub_groups,
)
from tvm_edge.schedules.gpu.subgroup_tile import SubGroupTile
from tvm_edge.schedules.gpu.winograd import products, tile_counts, transform_images
from tvm_edge.schedules.knobs import CONFIG, knobs_as_text, read_knobs
from tvm_edge.schedules.open_lengths import total, variables_in, wide
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
    found = conv_workload(call, ("float32", "float16"), open_too=True)
    if found is None:
        return call
    workload, weights = found
    if static_shape(call.args[0].ty) is None:
        return _open(site, call, workload, weights)
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


def _open(
    site: KernelSite, call: relax.Call, workload: ConvWorkload, weights: np.ndarray
) -> relax.Call:
    """Lower a convolution of open images as that of a typical one, but for measured knobs."""
    config = choose_config(workload, site.chooser or site.spec, site.precision)
    # TVM's LegalizeOps loses the regions of kernels whose lengths are expressions.
    plain = all(isinstance(d, tirx.IntImm | tirx.Var) for d in call.args[0].ty.shape.values)
    if config.algorithm == "winograd" and plain:
        return _open_winograd(site, call, workload, weights, config.m)
    shared = site.spec.local_memory_kind == "dedicated"
    if config.algorithm != "items" or shared or not can_pack(workload):
        return call
    return site.builder.call_te(
        lambda image, filters: conv2d_packed(image, filters, workload),
        call.args[0],
        const(pack_channels(weights), str(call.ty.dtype)),
        primfunc_name_hint="conv2d",
        primfunc_attrs={"op_pattern": 4},
    )


def _open_winograd(
    site: KernelSite, call: relax.Call, workload: ConvWorkload, weights: np.ndarray, m: int
) -> relax.Call:
    """Lower to the kernels of :func:`_winograd`, which get the image's lengths by value."""
    image, dtype = call.args[0], str(call.ty.dtype)
    batch, _, height, width = map(number_or_length, image.ty.shape.values)
    size = (batch, height, width)
    lengths = variables_in(size)
    narrow = {var: tirx.Var(str(var.name), "int32") for var in lengths}
    own = [d if isinstance(d, int) else wide(d, narrow.__getitem__, "int32") for d in size]
    tiles = total(tile_counts(workload, m, size))
    frequencies, channels, filters = (m + 2) ** 2, workload.channels, workload.filters
    kernel = transform_images(workload, m, site.spec, str(image.ty.dtype), own)
    passed = [next(v for v, mine in narrow.items() if mine.same_as(n)) for n in variables_in(own)]
    types = [site.tensor([frequencies, channels, tiles], "float32")]
    (transformed,) = site.call(kernel.func, "winograd_input", [image, *passed], types)
    packed = transform_filters_by_channel(weights.astype("float32"), m)
    u = te.placeholder(packed.shape, "float32", "u")
    v = te.placeholder((frequencies, channels, tiles), "float32", "v")
    func = te.create_prim_func([u, v, *lengths, product := products(u, v)], "int64")
    func = func.with_attr(PRECISION, "float32")
    operands = [const(packed, "float32"), transformed, *lengths]
    multiplied = site.emit(site.fusable(func, "winograd_product", operands, product))
    given = te.placeholder((frequencies, filters, tiles), "float32", "products")
    image_size = [number_or_length(call.ty.shape.values[axis]) for axis in (0, 2, 3)]
    result = combine_outputs(given, m, image_size)
    if dtype == "float16":
        result = stored(result.shape, result)
    func = te.create_prim_func([given, *lengths, result], "int64")
    return site.fusable(func, "winograd_output", [multiplied, *lengths], result)


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
