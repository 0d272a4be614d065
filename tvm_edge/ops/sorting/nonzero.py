"""Positions of the elements that are not zero."""

from __future__ import annotations

from tvm import relax, tirx

from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS_STATIC, register
from tvm_edge.schedules.vision.nonzero import count_nonzero, nonzero_indices

__all__: list[str] = []


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Count, read the number on the host, and fill a result of that length."""
    data = call.args[0]
    if not isinstance(data.ty.shape, relax.ShapeExpr):
        return call  # TVM's own, on the host
    shape, dtype = list(data.ty.shape), str(data.ty.dtype)
    if not shape:
        shape, data = [1], site.reshape(data, [1])
    if is_empty(shape):
        return site.zeros((len(shape), 0), "int64")
    # A kernel finds a length that is not constant in its tensors.
    sizes = [
        int(size) if isinstance(size, tirx.IntImm) else tirx.Var(f"n{axis}", "int64")
        for axis, size in enumerate(shape)
    ]
    count = count_nonzero(sizes, dtype, site.spec)
    types = [site.tensor(size, kind) for size, kind in count.outputs]
    lengths, found, *_ = site.call(count.func, "count_nonzero", [data], types)
    many = tirx.Var("num_nonzero", "int64")
    counted = site.emit(relax.op.tensor_to_shape(lengths))
    site.builder.match_cast(counted, relax.ShapeType([len(shape), many]))
    fill = nonzero_indices(sizes, dtype, site.spec)
    result = site.tensor((len(shape), many), "int64")
    (indices,) = site.call(fill.func, "nonzero_indices", [data, found], [result])
    return indices


register("relax.nonzero", lower=_lower, gpu=PERFORMS_STATIC)
