"""Lowering of int8 convolutions on a GPU: weights packed, padding part of the kernel.

They have the knobs that were measured for them, where there are some.
"""

from __future__ import annotations

from tvm import relax, te

from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.relay_passes.ir.expressions import const
from tvm_edge.relay_passes.ir.workloads import int8_conv
from tvm_edge.schedules.gpu.conv2d_int8 import conv2d_int8, pack_words, uses_words
from tvm_edge.schedules.gpu.items import ITEMS
from tvm_edge.schedules.knobs import CONFIG

__all__ = ["lower_conv2d_int8"]


def lower_conv2d_int8(site: KernelSite, call: relax.Call) -> relax.Expr | None:
    """Lower a convolution that the quantize passes made; return ``None`` of all else."""
    if site.spec.has_cpu_cores:
        return None
    image = call.args[0]
    before = site.builder.lookup_binding(image) if isinstance(image, relax.Var) else None
    found = int8_conv(call, {} if before is None else {image: before})
    if found is None or 0 in found.workload.output:
        return None
    workload, weights = found.workload, found.weights
    stored = pack_words(weights) if uses_words(workload) else weights
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    given = te.placeholder(shape, str(found.image.ty.dtype), "image")
    filters = te.placeholder(stored.shape, str(stored.dtype), "filters")
    config, knobs = site.configs.get(workload), None
    if config is not None and config.knobs:
        knobs = (ITEMS if config.algorithm == "items" else CONFIG, config.knobs)
    result = conv2d_int8(given, filters, workload, found.zero, knobs)
    func = te.create_prim_func([given, filters, result], "int64")
    operands = [found.image, const(stored, str(stored.dtype))]
    return site.fusable(func, "conv2d_int8", operands, result)
