"""Kernels of sorts, argsorts and top-k."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from tvm_edge.relay_passes.lower.kernel_site import KernelSite, is_empty
from tvm_edge.schedules.vision import cpu, gpu
from tvm_edge.schedules.vision.keys import WORD

__all__ = ["lower_argsort", "lower_segmented_argsort", "lower_sort", "lower_top_k", "lower_unique"]


class _Rows:
    """A tensor as rows along one of its axes."""

    def __init__(self, site: KernelSite, data: relax.Expr, axis: int) -> None:
        self._site, shape = site, list(data.ty.shape)
        axis %= len(shape)
        self._order = [i for i in range(len(shape)) if i != axis] + [axis]
        self._others = [shape[i] for i in self._order[:-1]]
        self._moves = axis != len(shape) - 1
        self.count, self.length = prod(self._others), shape[axis]
        self.dtype = str(data.ty.dtype)
        self._data = site.emit(relax.op.permute_dims(data, self._order)) if self._moves else data

    def flat(self) -> relax.Var:
        """The rows one after the other."""
        return self._site.reshape(self._data, [self.count * self.length])

    def table(self) -> relax.Var:
        """A matrix."""
        return self._site.reshape(self._data, [self.count, self.length])

    def restore(self, value: relax.Expr, length: Any) -> relax.Expr:
        """Give results of `length` elements a row the tensor's order of axes."""
        value = self._site.reshape(value, [*self._others, length])
        if not self._moves:
            return value
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        return self._site.emit(relax.op.permute_dims(value, back))


def lower_argsort(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.argsort``."""
    attrs = call.attrs
    index_dtype = str(call.ty.dtype)
    (indices,) = _sorted(site, call, int(attrs.axis), bool(attrs.descending), index_dtype, False)
    return indices


def lower_sort(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.sort``."""
    attrs = call.attrs
    _, values = _sorted(site, call, int(attrs.axis), bool(attrs.descending), "int32", True)
    return values


def _sorted(
    site: KernelSite,
    call: relax.Call,
    axis: int,
    descending: bool,
    index_dtype: str,
    values: bool,
) -> Sequence[relax.Expr]:
    """Indices that sort, and with `values` what they point to."""
    data = call.args[0]
    dtypes = [index_dtype] + [str(data.ty.dtype)] * values
    if is_empty(data.ty.shape):
        return [site.zeros(data.ty.shape, dtype) for dtype in dtypes]
    rows = _Rows(site, data, axis)
    how: dict[str, Any] = {
        "descending": descending,
        "index_dtype": index_dtype,
        "values": values,
    }
    if not site.spec.launches_grids:
        kernel = cpu.argsort_rows(rows.dtype, site.spec, **how)
        types = [site.tensor((rows.count, rows.length), dtype) for dtype in dtypes]
        types += _workspace(site, rows.count * rows.length)
        results = site.call(kernel.func, "argsort", [rows.table()], types)
    else:
        kernel = gpu.argsort_rows(int(rows.count), int(rows.length), rows.dtype, site.spec, **how)
        results = site.run(kernel, "argsort", [rows.flat()])
    return [rows.restore(result, rows.length) for result in results[: len(dtypes)]]


def lower_top_k(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.topk``."""
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
        rows = _Rows(site, data, axis)
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


def _workspace(site: KernelSite, size: Any) -> list[relax.TensorType]:
    """What CPU sorts move elements between."""
    return [site.tensor([size], WORD)] * 2


def lower_segmented_argsort(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.segmented_argsort``."""
    data, offsets = call.args
    dtype, offset_dtype = str(data.ty.dtype), str(offsets.ty.dtype)
    how: dict[str, Any] = {
        "descending": bool(call.attrs["descending"]),
        "index_dtype": str(call.attrs["dtype"]),
    }
    if is_empty(data.ty.shape):
        return site.zeros(data.ty.shape, how["index_dtype"])
    if not site.spec.launches_grids:
        kernel = cpu.argsort_segments(dtype, offset_dtype, site.spec, **how)
        types = [call.ty, *_workspace(site, data.ty.shape[0])]
        results = site.call(kernel.func, "segmented_argsort", [data, offsets], types)
    else:
        sizes = (int(data.ty.shape[0]), int(offsets.ty.shape[0]))
        kernel = gpu.argsort_segments(*sizes, dtype, offset_dtype, site.spec, **how)
        results = site.run(kernel, "segmented_argsort", [data, offsets])
    return results[0]


def lower_unique(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.unique``: sort, mark where new elements begin, and keep just as many."""
    data = call.args[0]
    dtype, size = str(data.ty.dtype), prod(data.ty.shape)
    if is_empty(data.ty.shape):
        none = [site.zeros((0,), "int64") for _ in range(3)]
        return relax.Tuple([site.zeros((0,), dtype), *none])
    flat = site.reshape(data, [size])
    how: dict[str, Any] = {"descending": False, "index_dtype": "int32", "values": False}
    types = [site.tensor([1, size], "int32"), *_workspace(site, size)]
    sort = cpu.argsort_rows(dtype, site.spec, **how)
    order, *_ = site.call(sort.func, "argsort", [site.reshape(data, [1, size])], types)
    mark = cpu.unique(dtype, in_order=bool(call.attrs["in_order"]))
    types = [site.tensor([size], kind) for kind in (dtype, "int64", "int64", "int64")]
    values, first, inverse, counts, total = site.call(
        mark.func,
        "unique",
        [flat, site.reshape(order, [size])],
        [*types, site.tensor([1], "int64")],
    )
    shape = site.emit(relax.op.tensor_to_shape(total))
    many = tirx.Var("num_unique", "int64")
    site.builder.match_cast(shape, relax.ShapeType([many]))

    def head(value: relax.Var, kind: str) -> relax.Var:
        func = cpu.first_elements(kind).func
        (kept,) = site.call(func, "first_elements", [value], [site.tensor([many], kind)])
        return kept

    return relax.Tuple([head(values, dtype), head(first, "int64"), inverse, head(counts, "int64")])
