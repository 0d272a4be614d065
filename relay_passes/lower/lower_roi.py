"""Kernels of ROIAlign and ROI pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from tvm_edge.relay_passes.lower.kernel_site import KernelSite, is_empty
from tvm_edge.schedules.emit import Kernel
from tvm_edge.schedules.vision import roi

__all__ = ["lower_relax_roi_align", "lower_relax_roi_pool", "lower_roi_align", "lower_roi_pool"]


def lower_roi_align(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.roi_align``."""
    attrs = call.attrs
    half_pixel = str(attrs["coordinate_transformation_mode"]) == "half_pixel"

    def kernel(maps: roi.Maps, bins: Sequence[int]) -> Kernel:
        return roi.roi_align(
            maps,
            bins,
            site.spec,
            ratio=int(attrs["sampling_ratio"]),
            scale=float(attrs["spatial_scale"]),
            offset=0.5 if half_pixel else 0.0,
            at_least_one=not half_pixel,
            mode=str(attrs["mode"]),
        )

    return _pooled(site, call, "roi_align", kernel)


def lower_roi_pool(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.roi_pool``."""
    scale = float(call.attrs["spatial_scale"])
    return _pooled(
        site, call, "roi_pool", lambda maps, bins: roi.roi_pool(maps, bins, site.spec, scale=scale)
    )


def lower_relax_roi_align(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.vision.roi_align``; TVM's own where it reduces points by their maximum.

    Its "aligned" leaves regions smaller than a pixel alone, and moves none by half a pixel.
    """
    attrs = call.attrs
    if str(attrs.layout) != "NCHW" or str(attrs.mode) != "avg" or not _is_static(call.args[0]):
        return call

    def kernel(maps: roi.Maps, bins: Sequence[int]) -> Kernel:
        return roi.roi_align(
            maps,
            bins,
            site.spec,
            ratio=max(int(attrs.sample_ratio), 0),
            scale=float(attrs.spatial_scale),
            offset=0.0,
            at_least_one=not attrs.aligned,
        )

    return _pooled(site, call, "roi_align", kernel)


def lower_relax_roi_pool(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.vision.roi_pool``."""
    attrs = call.attrs
    if str(attrs.layout) != "NCHW" or not _is_static(call.args[0]):
        return call
    scale = float(attrs.spatial_scale)
    return _pooled(
        site,
        call,
        "roi_pool",
        lambda maps, bins: roi.roi_pool(maps, bins, site.spec, scale=scale, halves="up"),
    )


def _pooled(site: KernelSite, call: relax.Call, name: str, kernel: Any) -> relax.Expr:
    """The kernel for a call's tensors; their result is ``(regions, channels, *bins)``."""
    data, *regions = call.args
    shape, dtype = list(call.ty.shape), str(data.ty.dtype)
    if is_empty(data.ty.shape) or is_empty(shape):
        return site.zeros(shape, dtype)
    count = shape[0]
    maps = roi.Maps(
        [int(size) for size in data.ty.shape],
        dtype,
        int(count) if isinstance(count, tirx.IntImm) else count,
        str(regions[1].ty.dtype) if len(regions) > 1 else None,
    )
    made = kernel(maps, [int(size) for size in shape[2:]])
    return site.run(made, name, call.args)[0]


def _is_static(value: relax.Expr) -> bool:
    shape = value.ty.shape
    return shape is not None and all(isinstance(size, tirx.IntImm) for size in shape)
