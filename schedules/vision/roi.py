"""ROIAlign (Mask R-CNN, ICCV 2017) and ROI pooling (Fast R-CNN, ICCV 2015).

A GPU has a work-item for each element of the result, which finds its bin itself. A CPU finds the
bins of a region once, and computes many channels at a time; of maps of an open size it does as a
GPU does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold, register
from tvm_edge.schedules.vision.roi_bins import Pixels, Points, calculated_in
from tvm_edge.schedules.vision.roi_channels import pool_channels
from tvm_edge.schedules.vision.roi_operation import Maps, Operation

__all__ = ["Maps", "roi_align", "roi_pool"]


def roi_align(
    maps: Maps,
    bins: Sequence[int],
    spec: DeviceSpec,
    *,
    ratio: int,
    scale: float,
    offset: float,
    at_least_one: bool,
    mode: str = "avg",
) -> Kernel:
    """Build the kernel of ROIAlign.

    Parameters
    ----------
    maps : Maps
    bins : sequence of int
        Rows and columns of the result.
    spec : DeviceSpec
        Decides between one work-item an element and all cores.
    ratio : int
        Points of a bin in each direction; 0: by the region's size.
    scale, offset : float
        From a coordinate ``c`` to the pixel ``c * scale - offset``.
    at_least_one : bool
        Whether regions are never smaller than a pixel.
    mode : {"avg", "max"}
        Mean of points, or the greatest weighted corner of any (as ONNX).

    Returns
    -------
    Kernel
        Of maps, regions and, if they are a vector of their own, batch indices. The result is
        ``(regions, channels, *bins)``; what follows it is workspace.
    """
    rows, columns = (Points(count, ratio, scale, offset, at_least_one) for count in bins)
    reduction = "greatest corner" if mode == "max" else "mean"
    return _kernel(maps, Operation(calculated_in(maps.dtype), rows, columns, reduction), spec)


def roi_pool(
    maps: Maps, bins: Sequence[int], spec: DeviceSpec, *, scale: float, halves: str = "away"
) -> Kernel:
    """Build the kernel of ROI pooling.

    Parameters
    ----------
    maps, bins, spec
        As of :func:`roi_align`.
    scale : float
        Pixels of the map to one of the picture.
    halves : {"away", "up"}
        Where coordinates in the middle of two pixels are rounded to: away from zero, or up.

    Returns
    -------
    Kernel
        As of :func:`roi_align`.
    """
    rows, columns = (Pixels(count, scale, halves) for count in bins)
    kind = calculated_in(maps.dtype)
    return _kernel(maps, Operation(kind, rows, columns, "greatest pixel"), spec)


def _kernel(maps: Maps, operation: Operation, spec: DeviceSpec) -> Kernel:
    sizes_are_known = all(isinstance(size, int) for size in maps.shape)
    if not spec.launches_grids and sizes_are_known:
        return pool_channels(maps, operation, spec)
    return _by_elements(maps, operation, spec)


def _by_elements(maps: Maps, operation: Operation, spec: DeviceSpec) -> Kernel:
    """Build the kernel with a work-item for each element of the result."""
    _, channels, height, width = maps.shape
    rows, columns = operation.rows.bins, operation.columns.bins
    shape = [maps.regions, channels, rows, columns]

    def body(data: Any, *tensors: Any) -> None:
        *regions, result = tensors

        def element(at: tirx.Expr) -> None:
            bin_y = hold(tirx.floormod(tirx.floordiv(at, columns), rows))
            bin_x = hold(tirx.floormod(at, columns))
            plane = hold(tirx.floordiv(at, rows * columns))
            channel = hold(tirx.floormod(plane, channels))
            region = hold(tirx.floordiv(plane, channels))
            picture = maps.picture(regions, region)
            x1, y1, x2, y2 = maps.corners(regions, region)
            ys = operation.rows.of(y1, y2, height, operation.kind)
            xs = operation.columns.of(x1, x2, width, operation.kind)
            total = register(operation.start(ys, xs, bin_y, bin_x))

            def tap(y: tirx.Expr, x: tirx.Expr, weight: tirx.Expr) -> None:
                value = data[picture, channel, y, x].astype(operation.kind)
                total[0] = operation.combine(total[0], weight, value)

            operation.visit(ys, xs, (bin_y, bin_x), tap)
            reduced = total[0] * operation.factor(ys, xs)
            result[region, channel, bin_y, bin_x] = reduced.astype(maps.dtype)

        each(spec, maps.regions * (channels * rows * columns), element)

    return function(maps.inputs, [(shape, maps.dtype)], body)
