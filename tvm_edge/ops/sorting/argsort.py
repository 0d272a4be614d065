"""Sorts and argsorts, of rows and of segments of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from tvm_edge.ops import registry
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS_STATIC, register
from tvm_edge.ops.sorting.rows import Rows, workspace
from tvm_edge.schedules.vision import cpu, gpu

__all__ = ["SEGMENTED_ARGSORT", "segmented_argsort"]

SEGMENTED_ARGSORT = "tvm_edge.segmented_argsort"


def segmented_argsort(
    data: relax.Expr, offsets: relax.Expr, *, descending: bool = False, dtype: str = "int32"
) -> relax.Call:
    """Stable argsort of each segment of a flat tensor (ICPP'19 §3.1.1, Figure 2).

    Its latency depends on the number of elements and not on how they are shared out.

    Parameters
    ----------
    data : relax.Expr
        ``(n,)``, numbers of any type. NaN comes last, also in descending order.
    offsets : relax.Expr
        ``(segments + 1,)``, int32 or int64, from 0 to `n` without decrease: segment ``s`` is
        ``data[offsets[s]:offsets[s + 1]]``. Where they are an input of the model, ``run`` checks
        them; a constant is checked at compile time.
    descending : bool
        Whether greater elements come first; equal ones stay in their order.
    dtype : {"int32", "int64"}
        Type of the result.

    Returns
    -------
    relax.Call
        ``(n,)``: positions in `data`, so that ``data[result]`` has every segment in order.
        Elements before the first offset and after the last keep their place.
    """
    return registry.call(SEGMENTED_ARGSORT, [data, offsets], descending=descending, dtype=dtype)


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    data, offsets = (arg.ty for arg in call.args)
    if data.ndim != 1 or offsets.ndim != 1:
        raise ValueError(
            f"{SEGMENTED_ARGSORT}: data and offsets must have one dimension, "
            f"not {data.ndim} and {offsets.ndim}"
        )
    if str(offsets.dtype) not in ("int32", "int64"):
        raise ValueError(f"{SEGMENTED_ARGSORT}: offsets must be int32 or int64")
    dtype = str(call.attrs["dtype"])
    if dtype not in ("int32", "int64"):
        raise ValueError(f"{SEGMENTED_ARGSORT}: indices are int32 or int64, not {dtype}")
    if data.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=data.vdevice, ndim=1)
    return relax.TensorType(data.shape, dtype, data.vdevice)


def _lower_argsort(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.argsort``."""
    attrs = call.attrs
    index_dtype = str(call.ty.dtype)
    (indices,) = _sorted(site, call, int(attrs.axis), bool(attrs.descending), index_dtype, False)
    return indices


def _lower_sort(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.sort``."""
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
    """Return indices that sort, and with `values` the sorted elements."""
    data = call.args[0]
    dtypes = [index_dtype] + [str(data.ty.dtype)] * values
    if is_empty(data.ty.shape):
        return [site.zeros(data.ty.shape, dtype) for dtype in dtypes]
    rows = Rows(site, data, axis)
    how: dict[str, Any] = {
        "descending": descending,
        "index_dtype": index_dtype,
        "values": values,
    }
    if not site.spec.launches_grids:
        kernel = cpu.argsort_rows(rows.dtype, site.spec, **how)
        types = [site.tensor((rows.count, rows.length), dtype) for dtype in dtypes]
        types += workspace(site, rows.count * rows.length)
        results = site.call(kernel.func, "argsort", [rows.table()], types)
    else:
        kernel = gpu.argsort_rows(int(rows.count), int(rows.length), rows.dtype, site.spec, **how)
        results = site.run(kernel, "argsort", [rows.flat()])
    return [rows.restore(result, rows.length) for result in results[: len(dtypes)]]


def _lower_segmented_argsort(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``tvm_edge.segmented_argsort``."""
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
        types = [call.ty, *workspace(site, data.ty.shape[0])]
        results = site.call(kernel.func, "segmented_argsort", [data, offsets], types)
    else:
        sizes = (int(data.ty.shape[0]), int(offsets.ty.shape[0]))
        kernel = gpu.argsort_segments(*sizes, dtype, offset_dtype, site.spec, **how)
        results = site.run(kernel, "segmented_argsort", [data, offsets])
    return results[0]


register(
    SEGMENTED_ARGSORT,
    infer_type=_infer_type,
    lower=_lower_segmented_argsort,
    gpu=PERFORMS_STATIC,
)
register("relax.argsort", lower=_lower_argsort, gpu=PERFORMS_STATIC)
register("relax.sort", lower=_lower_sort, gpu=PERFORMS_STATIC)
