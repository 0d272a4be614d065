"""Regions of interest: RoiAlign and MaxRoiPool.

TVM's RoiAlign shifts regions by half a pixel of the picture where ONNX means one of the feature
map, and takes the maximum of other numbers; both of its operators trust the batch index.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.frontend.operators.base import Attributes, Converter, static_shape
from tvm_edge.ops import roi_align, roi_pool

__all__ = ["REGIONS"]

# Points of a bin in one direction. Users of RoiAlign take 2; loops of any length are no result.
_MOST_SAMPLES = 1024


def _roi_align(
    _bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    default = b"half_pixel" if attrs["opset"] >= 16 else b"output_half_pixel"
    samples = int(attrs.get("sampling_ratio", 0))
    if samples > _MOST_SAMPLES:
        raise NotImplementedError(f"RoiAlign with sampling_ratio {samples} above {_MOST_SAMPLES}")
    data, regions, pictures = inputs
    _require_known(data, "RoiAlign")
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


def _max_roi_pool(
    _bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    data, regions = inputs
    _require_known(data, "MaxRoiPool")
    height, width = (int(size) for size in attrs["pooled_shape"])
    return roi_pool(data, regions, (height, width), float(attrs.get("spatial_scale", 1.0)))


def _require_known(data: relax.Expr, operator: str) -> None:
    if static_shape(data) is None:
        raise NotImplementedError(f"{operator} of a feature map of a size known only at run time")


REGIONS: dict[str, Converter] = {"MaxRoiPool": _max_roi_pool, "RoiAlign": _roi_align}
