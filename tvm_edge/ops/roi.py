"""Regions of a feature map brought to one size: ROIAlign and ROI pooling.

TVM's RoiAlign shifts regions by half a pixel of the picture where ONNX means one of the feature
map, and takes the maximum of other numbers; both of its operators trust the batch index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.elements import ensure
from tvm_edge.ops.flops import Operation, UnknownShape, elements
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.relay_passes.ir.expressions import lengths_of, static_shape
from tvm_edge.schedules.emit import Kernel
from tvm_edge.schedules.vision import roi

__all__ = ["ROI_ALIGN", "ROI_POOL", "roi_align", "roi_pool"]

ROI_ALIGN = "tvm_edge.roi_align"
ROI_POOL = "tvm_edge.roi_pool"

_MODES = ("avg", "max")
_COORDINATES = ("half_pixel", "output_half_pixel")


def roi_align(
    data: relax.Expr,
    rois: relax.Expr,
    batch_indices: relax.Expr,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    mode: str = "avg",
    coordinate_transformation_mode: str = "half_pixel",
) -> relax.Call:
    """Interpolate a grid of points in each region, and reduce it to bins (Mask R-CNN, ICCV 2017).

    The semantics of ONNX ``RoiAlign`` as ONNX Runtime computes it. Where those leave off: a batch
    index out of range takes the nearest picture, and a point whose coordinates are NaN or infinite
    is 0, as any point more than a pixel outside of the feature map.

    Parameters
    ----------
    data : relax.Expr
        ``(batch, channels, height, width)``, floating point.
    rois : relax.Expr
        ``(regions, 4)`` of ``x1, y1, x2, y2`` in pixels of the picture, of the type of `data`.
    batch_indices : relax.Expr
        ``(regions,)`` integers.
    output_height, output_width : int
        Bins of a region.
    sampling_ratio : int
        Points of a bin in each direction; 0: as many as a bin has pixels of the feature map,
        rounded up, and none if a region's end is not after its start.
    spatial_scale : float
        Pixels of the feature map to one of the picture.
    mode : {"avg", "max"}
        Mean of a bin's points, or the greatest of the four weighted corners of all its points.
    coordinate_transformation_mode : {"half_pixel", "output_half_pixel"}
        Whether coordinates are moved by half a pixel of the feature map. Without, as opset 10
        defined, regions have at least the size of one pixel.

    Returns
    -------
    relax.Call
        ``(regions, channels, output_height, output_width)``.

    Raises
    ------
    ValueError
        No such mode, or sizes below 1.
    """
    if mode not in _MODES:
        raise ValueError(f"{ROI_ALIGN}: mode {mode!r} is none of {', '.join(_MODES)}")
    if coordinate_transformation_mode not in _COORDINATES:
        raise ValueError(
            f"{ROI_ALIGN}: coordinate_transformation_mode {coordinate_transformation_mode!r} "
            f"is none of {', '.join(_COORDINATES)}"
        )
    if sampling_ratio < 0:
        raise ValueError(f"{ROI_ALIGN}: sampling_ratio {sampling_ratio} is negative")
    _check_bins(ROI_ALIGN, output_height, output_width)
    return registry.call(
        ROI_ALIGN,
        [data, rois, batch_indices],
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
        mode=mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
    )


def roi_pool(
    data: relax.Expr, rois: relax.Expr, pooled_size: tuple[int, int], spatial_scale: float = 1.0
) -> relax.Call:
    """Maximum of each bin of each region (Fast R-CNN, ICCV 2015).

    The semantics of ONNX ``MaxRoiPool`` as ONNX Runtime computes it: corners are rounded to pixels
    of the feature map, halves away from zero, and both belong to the region. A bin without pixels
    is 0. Where those leave off: a batch index out of range takes the nearest picture, NaN as a
    coordinate is 0, and a NaN in `data` is never the maximum.

    Parameters
    ----------
    data : relax.Expr
        ``(batch, channels, height, width)``, floating point.
    rois : relax.Expr
        ``(regions, 5)`` of batch index and ``x1, y1, x2, y2`` in pixels of the picture, of the
        type of `data`.
    pooled_size : tuple of int
        Rows and columns of bins.
    spatial_scale : float
        Pixels of the feature map to one of the picture.

    Returns
    -------
    relax.Call
        ``(regions, channels, *pooled_size)``.

    Raises
    ------
    ValueError
        Sizes below 1.
    """
    height, width = pooled_size
    _check_bins(ROI_POOL, height, width)
    return registry.call(
        ROI_POOL,
        [data, rois],
        output_height=height,
        output_width=width,
        spatial_scale=spatial_scale,
    )


def _check_bins(name: str, height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"{name}: {height}x{width} is no size of a result")


def _infer_align_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    rois, pictures = (arg.ty for arg in call.args[1:])
    if pictures.ndim != 1 or "int" not in str(pictures.dtype):
        raise ValueError(f"{ROI_ALIGN}: batch_indices must be a vector of integers")
    if rois.shape is not None and pictures.shape is not None:
        counts = (rois.shape[0], pictures.shape[0])
        if all(isinstance(n, tirx.IntImm) for n in counts) and int(counts[0]) != int(counts[1]):
            raise ValueError(
                f"{ROI_ALIGN}: {int(counts[0])} regions and {int(counts[1])} batch indices"
            )
    return _pooled_type(call, columns=4)


def _infer_pool_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    return _pooled_type(call, columns=5)


def _pooled_type(call: relax.Call, columns: int) -> relax.Type:
    name = call.op.name
    data, rois = (arg.ty for arg in call.args[:2])
    if data.ndim != 4 or rois.ndim != 2:
        raise ValueError(
            f"{name}: the data must have four dimensions and the regions two, "
            f"not {data.ndim} and {rois.ndim}"
        )
    if data.dtype != rois.dtype or not str(data.dtype).startswith("float"):
        raise ValueError(
            f"{name}: data and regions must be of one floating-point type, "
            f"not {data.dtype} and {rois.dtype}"
        )
    if data.shape is None or rois.shape is None:
        return relax.TensorType(dtype=data.dtype, vdevice=data.vdevice, ndim=4)
    width = rois.shape[1]
    if isinstance(width, tirx.IntImm) and int(width) != columns:
        raise ValueError(f"{name}: a region has {columns} numbers, not {int(width)}")
    bins = [int(call.attrs[size]) for size in ("output_height", "output_width")]
    return relax.TensorType([rois.shape[0], data.shape[1], *bins], data.dtype, data.vdevice)


# Points of a bin in one direction. Users of RoiAlign take 2; loops of any length are no result.
_MOST_SAMPLES = 1024


def _convert_roi_align(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    default = b"half_pixel" if attrs["opset"] >= 16 else b"output_half_pixel"
    samples = int(attrs.get("sampling_ratio", 0))
    if samples > _MOST_SAMPLES:
        raise NotImplementedError(f"RoiAlign with sampling_ratio {samples} above {_MOST_SAMPLES}")
    data, regions, pictures = inputs
    _ensure_pixels(bb, data, regions)
    return roi_align(
        data,
        regions,
        pictures,
        output_height=int(attrs.get("output_height", 1)),
        output_width=int(attrs.get("output_width", 1)),
        sampling_ratio=samples,
        spatial_scale=float(attrs.get("spatial_scale", 1.0)),
        mode=attrs.get("mode", b"avg").decode(),
        coordinate_transformation_mode=attrs.get(
            "coordinate_transformation_mode", default
        ).decode(),
    )


def _convert_max_roi_pool(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    data, regions = inputs
    _ensure_pixels(bb, data, regions)
    height, width = (int(size) for size in attrs["pooled_shape"])
    return roi_pool(data, regions, (height, width), float(attrs.get("spatial_scale", 1.0)))


def _ensure_pixels(bb: relax.BlockBuilder, data: relax.Expr, regions: relax.Expr) -> None:
    """End a run with regions of maps that turn out to have no pixel."""
    lengths, count = lengths_of(data.ty), lengths_of(regions.ty)
    if lengths is None or count is None:
        raise NotImplementedError("regions of a tensor of a rank that only the run tells")
    if any(isinstance(length, tirx.Expr) for length in lengths):
        some = [tirx.IntImm("int64", 0) < length for length in lengths]
        ensure(bb, tirx.any(tirx.IntImm("int64", 0) == count[0], tirx.all(*some)))


def _lower_roi_align(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``tvm_edge.roi_align``."""
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


def _lower_roi_pool(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``tvm_edge.roi_pool``."""
    scale = float(call.attrs["spatial_scale"])
    return _pooled(
        site, call, "roi_pool", lambda maps, bins: roi.roi_pool(maps, bins, site.spec, scale=scale)
    )


def _lower_relax_roi_align(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.vision.roi_align``; leave TVM's own where it reduces points by their maximum.

    Its "aligned" leaves regions smaller than a pixel alone, and moves none by half a pixel.
    """
    attrs, shape = call.attrs, static_shape(call.args[0].ty)
    if str(attrs.layout) != "NCHW" or str(attrs.mode) != "avg" or shape is None:
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


def _lower_relax_roi_pool(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.vision.roi_pool``."""
    attrs, shape = call.attrs, static_shape(call.args[0].ty)
    if str(attrs.layout) != "NCHW" or shape is None:
        return call
    scale = float(attrs.spatial_scale)
    return _pooled(
        site,
        call,
        "roi_pool",
        lambda maps, bins: roi.roi_pool(maps, bins, site.spec, scale=scale, halves="up"),
    )


def _pooled(site: KernelSite, call: relax.Call, name: str, kernel: Any) -> relax.Expr:
    """Call the kernel for a call's tensors; the result is ``(regions, channels, *bins)``."""
    data, *regions = call.args
    shape, dtype = list(call.ty.shape), str(data.ty.dtype)
    if is_empty(data.ty.shape) or is_empty(shape):
        return site.zeros(shape, dtype)
    count = shape[0]
    maps = roi.Maps(
        [_of_kernel(size, f"size{axis}") for axis, size in enumerate(data.ty.shape)],
        dtype,
        _of_kernel(count, "regions"),
        str(regions[1].ty.dtype) if len(regions) > 1 else None,
    )
    made = kernel(maps, [int(size) for size in shape[2:]])
    results = [site.tensor(size, kind) for size, kind in made.outputs]
    return site.call(made.func, name, call.args, [site.tensor(shape, dtype), *results[1:]])[0]


def _of_kernel(size: tirx.Expr, name: str) -> Any:
    """Return a number, or a variable of the kernel's own for a length of the run."""
    return int(size) if isinstance(size, tirx.IntImm) else tirx.Var(name, "int64")


def _roi_align_flops(op: Operation) -> int:
    """Count four weighted neighbours and the pooling, per sample."""
    ratio = op.attributes.get("sampling_ratio", 0)
    if not ratio:  # as many samples as the box is large
        raise UnknownShape
    return 9 * ratio**2 * elements(op.outputs[0])


register("MaxRoiPool", convert=_convert_max_roi_pool)
register("RoiAlign", convert=_convert_roi_align, flops=_roi_align_flops)

register(ROI_ALIGN, infer_type=_infer_align_type, lower=_lower_roi_align, gpu=PERFORMS)
register(ROI_POOL, infer_type=_infer_pool_type, lower=_lower_roi_pool, gpu=PERFORMS)
register("relax.vision.roi_align", lower=_lower_relax_roi_align, gpu=PERFORMS)
register("relax.vision.roi_pool", lower=_lower_relax_roi_pool, gpu=PERFORMS)
