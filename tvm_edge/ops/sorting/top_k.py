"""The first elements of a sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from tvm_edge.errors import InvalidModelError
from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.elements import ensure, integers
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS_STATIC, register
from tvm_edge.ops.sorting.rows import Rows
from tvm_edge.relay_passes.ir.expressions import static_shape
from tvm_edge.schedules.vision import cpu, gpu
from tvm_edge.schedules.vision.keys import SORTABLE

__all__ = ["lower_top_k"]


def _convert(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Sort the result whether asked to or not; TVM's takes 0 elements for all."""
    data = inputs[0]
    dtype, rank = str(data.ty.dtype), int(data.ty.ndim)
    if dtype not in SORTABLE:
        raise NotImplementedError(f"TopK of {dtype}")
    (k,) = integers(bb, inputs, attrs, 1) or [int(attrs.get("k", 1))]
    axis = int(attrs.get("axis", -1)) % max(rank, 1)
    length = data.ty.shape[axis] if data.ty.shape is not None else None
    largest = bool(attrs.get("largest", 1))
    if isinstance(k, tirx.Expr):
        return _first_of_the_run(bb, data, k, axis, largest)
    if k < 0 or (isinstance(length, tirx.IntImm) and k > int(length)):
        raise InvalidModelError(
            f"a TopK asks for the first {k} of {length} elements; "
            "give it a k from 0 to the length of its axis"
        )
    if k == 0:
        shape = static_shape(data.ty)
        if shape is None:
            raise NotImplementedError("TopK of 0 elements of a shape known only at run time")
        none = [0 if i == axis else size for i, size in enumerate(shape)]
        return relax.Tuple([relax.const(np.zeros(none, kind), kind) for kind in (dtype, "int64")])
    return bb.normalize(relax.op.topk(data, k, axis, "both", largest=largest, dtype="int64"))


def _first_of_the_run(
    bb: relax.BlockBuilder, data: relax.Expr, k: tirx.Expr, axis: int, largest: bool
) -> relax.Expr:
    """Sort all, and take as many as the run says."""
    ensure(bb, tirx.all(k >= 0, k <= data.ty.shape[axis]))
    order = bb.emit(relax.op.argsort(data, axis, descending=largest, dtype="int64"))
    first = bb.emit(relax.op.strided_slice(order, [axis], [0], [k], [1], assume_inbound=True))
    return relax.Tuple([bb.emit(relax.op.gather_elements(data, first, axis)), first])


def lower_top_k(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.topk``."""
    data, attrs = call.args[0], call.attrs
    index_dtype, largest = str(attrs.dtype), bool(attrs.largest)
    axis = int(attrs.axis) % len(data.ty.shape)
    wanted = {"both": (1, 0), "values": (1,), "indices": (0,)}[str(attrs.ret_type)]
    k = int(attrs.k)
    if k < 1:
        k = data.ty.shape[axis]
    shape = [k if i == axis else dim for i, dim in enumerate(data.ty.shape)]
    dtypes = [index_dtype, str(data.ty.dtype)]
    if is_empty(shape):
        made: list[relax.Expr] = [site.zeros(shape, dtype) for dtype in dtypes]
    else:
        rows = Rows(site, data, axis)
        if not site.spec.launches_grids:
            kernel = cpu.top_k_rows(
                rows.dtype, int(k), site.spec, largest=largest, index_dtype=index_dtype
            )
            types = [site.tensor((rows.count, k), dtype) for dtype in dtypes]
            results = site.call(kernel.func, "top_k", [rows.table()], types)
        else:
            kernel = gpu.top_k_rows(
                int(rows.count),
                int(rows.length),
                int(k),
                rows.dtype,
                site.spec,
                largest=largest,
                index_dtype=index_dtype,
            )
            results = site.run(kernel, "top_k", [rows.flat()])
        made = [rows.restore(result, k) for result in results[:2]]
    return made[wanted[0]] if len(wanted) == 1 else relax.Tuple([made[i] for i in wanted])


register("TopK", convert=_convert, forming=(1,))
register("relax.topk", lower=lower_top_k, gpu=PERFORMS_STATIC)
