"""Kernels of prefix sums and other scans."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from tvm_edge.relay_passes.lower.kernel_site import KernelSite, is_empty
from tvm_edge.schedules.vision import cpu, gpu

__all__ = ["lower_cumprod", "lower_cumsum", "lower_scan"]


def lower_scan(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.scan``."""
    attrs = call.attrs
    return _scan(
        site,
        call,
        int(attrs["axis"]),
        operator=str(attrs["operator"]),
        exclusive=bool(attrs["exclusive"]),
        reverse=bool(attrs["reverse"]),
    )


def lower_cumsum(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.cumsum``."""
    return _cumulative(site, call, "add")


def lower_cumprod(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.cumprod``."""
    return _cumulative(site, call, "multiply")


def _cumulative(site: KernelSite, call: relax.Call, operator: str) -> relax.Expr:
    axis = call.attrs.axis
    exclusive = bool(call.attrs.exclusive)
    return _scan(
        site,
        call,
        None if axis is None else int(axis),
        operator=operator,
        exclusive=exclusive,
        reverse=False,
    )


def _scan(site: KernelSite, call: relax.Call, axis: int | None, **how: Any) -> relax.Expr:
    """Along an axis, or over all elements one after the other."""
    data = call.args[0]
    shape, dtype, out_dtype = list(data.ty.shape), str(data.ty.dtype), str(call.ty.dtype)
    if is_empty(shape):
        return site.zeros(call.ty.shape, out_dtype)
    if axis is None:
        shape, axis = [prod(shape)], 0
    axis %= len(shape)
    lines = [prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])]
    if not site.spec.launches_grids:
        kernel = cpu.scan_lines(dtype, out_dtype, site.spec, **how)
        (result,) = site.call(
            kernel.func, "scan", [site.reshape(data, lines)], [site.tensor(lines, out_dtype)]
        )
    else:
        outer, length, inner = (int(size) for size in lines)
        kernel = gpu.scan_lines(outer, length, inner, dtype, out_dtype, site.spec, **how)
        result, *_ = site.run(kernel, "scan", [site.reshape(data, [outer * length * inner])])
    return site.reshape(result, call.ty.shape)
