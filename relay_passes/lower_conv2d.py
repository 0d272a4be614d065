"""Convolutions on a GPU by Winograd's algorithm, where that is estimated to be faster."""

from __future__ import annotations

from tvm import relax, te, tirx

from tvm_edge.relay_passes.expressions import const
from tvm_edge.relay_passes.kernel_site import KernelSite
from tvm_edge.relay_passes.workloads import conv_workload
from tvm_edge.schedules.gpu.algorithm import choose_winograd
from tvm_edge.schedules.gpu.winograd import products, transform_images
from tvm_edge.schedules.winograd import combine_outputs, transform_filters_by_channel

__all__ = ["lower_conv2d"]

# Relax's OpPatternKind: element-wise kernels may follow in the same one.
_OUT_ELEMENTWISE_FUSABLE = 4


def lower_conv2d(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.nn.conv2d`` with constant filters."""
    found = conv_workload(call)
    # The transforms would make tf32's error several times as large.
    if site.spec.kind != "gpu" or site.precision != "float32" or found is None:
        return call
    workload, weights = found
    m = choose_winograd(workload, site.spec)
    if m == 0:
        return call
    inputs = transform_images(workload, m, site.spec)
    (transformed,) = site.run(inputs, "winograd_input", [call.args[0]])
    filters = transform_filters_by_channel(weights, m)
    shape = [int(dim) for dim in inputs.outputs[0][0]]
    tensors = [te.placeholder(s, "float32", n) for s, n in ((filters.shape, "u"), (shape, "v"))]
    product = products(*tensors)
    ty = site.tensor([int(dim) for dim in product.shape], "float32")
    operands = [const(filters, "float32"), transformed]
    func = _fusable(te.create_prim_func([*tensors, product], "int64"))
    (sums,) = site.call(func, "winograd_product", operands, [ty])
    given = te.placeholder([int(dim) for dim in product.shape], "float32", "products")
    image = combine_outputs(given, m, (workload.batch, *workload.output))
    func = _fusable(te.create_prim_func([given, image], "int64"))
    ty = site.tensor([int(dim) for dim in image.shape], "float32")
    return site.unbound(func, "winograd_output", [sums], [ty])


def _fusable(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.with_attr("op_pattern", _OUT_ELEMENTWISE_FUSABLE)
