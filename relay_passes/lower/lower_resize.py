"""Kernels of Resize and GridSample on a CPU; a GPU has a work-item for each element of theirs."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvm_edge.relay_passes.lower.kernel_site import KernelSite, is_empty
from tvm_edge.schedules.vision.grid_sample import Sampling, grid_sample
from tvm_edge.schedules.vision.resize import resize_planes, resize_tables
from tvm_edge.schedules.vision.resize_taps import Axis, Filter, taps_of

__all__ = ["lower_grid_sample", "lower_resize2d"]

_FLOATS = ("float16", "float32", "float64")
_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")


def lower_resize2d(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.image.resize2d`` of planes that are interpolated."""
    data, attrs = call.args[0], call.attrs
    coordinates, dtype = str(attrs.coordinate_transformation_mode), str(data.ty.dtype)
    if (
        site.spec.launches_grids
        or str(attrs.method) not in ("linear", "cubic")
        or coordinates not in _COORDINATES
        or str(attrs.layout) != "NCHW"
        or dtype not in _FLOATS
        or is_empty(call.ty.shape)
    ):
        return call
    batch, channels, *old = data.ty.shape
    new = list(call.ty.shape)[2:]
    if not all(isinstance(size, tirx.IntImm) for size in (*old, *new)):
        return call
    axes = [Axis(int(o), int(n), int(n) / int(o)) for o, n in zip(old, new, strict=True)]
    alpha, exclude = float(attrs.cubic_alpha), bool(attrs.cubic_exclude)
    how = Filter(str(attrs.method), coordinates, "", alpha, False, exclude)
    kind = "float64" if dtype == "float64" else "float32"
    tables = resize_tables(taps_of(axes[0], how), taps_of(axes[1], how), kind)
    planes = _size(batch * channels)
    kernel = resize_planes(planes, (axes[0].old, axes[1].old), dtype, tables, site.spec)
    flat = site.reshape(data, [planes, *old])
    given = [flat, *(relax.const(table, str(table.dtype)) for table in tables)]
    return site.reshape(site.run(kernel, "resize", given)[0], call.ty.shape)


def lower_grid_sample(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.image.grid_sample`` of pictures."""
    (data, grid), attrs = call.args, call.attrs
    dtypes = str(data.ty.dtype), str(grid.ty.dtype)
    shape, points = list(data.ty.shape), list(grid.ty.shape)
    if (
        site.spec.launches_grids
        or str(attrs.layout) != "NCHW"
        or not all(dtype in _FLOATS for dtype in dtypes)
        or not all(isinstance(size, tirx.IntImm) for size in (*shape, *points))
        or is_empty(data.ty.shape)
        or is_empty(call.ty.shape)
    ):
        return call
    how = Sampling(str(attrs.method), str(attrs.padding_mode), bool(attrs.align_corners))
    batch, channels, height, width = (int(size) for size in shape)
    kernel = grid_sample(
        (batch, channels, height, width), [int(size) for size in points], dtypes, how, site.spec
    )
    flat = [
        site.reshape(data, [batch, channels, height * width]),
        site.reshape(grid, [batch, 2, -1]),
    ]
    return site.reshape(site.run(kernel, "grid_sample", flat)[0], call.ty.shape)


def _size(value: Any) -> Any:
    return int(value) if isinstance(value, (int, tirx.IntImm)) else value
