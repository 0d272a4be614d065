"""Operators of object detection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_edge.frontend.operators.base import Converter
from tvm_edge.ops import non_max_suppression

__all__ = ["DETECTION"]


def _non_max_suppression(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: dict[str, Any]
) -> relax.Expr:
    """The composite operator; TVM's claims a static result and treats 0 boxes as "all"."""
    limits: list[Any] = [0, 0.0, None]
    for i, limit in enumerate(inputs[2:5]):
        if limit is None:
            continue
        if not isinstance(limit, tvm.ir.GenericConst):
            names = "max_output_boxes_per_class, iou_threshold, score_threshold".split(", ")
            raise NotImplementedError(f"NonMaxSuppression needs a constant {names[i]}")
        limits[i] = limit.value.numpy().item()
    selected = bb.emit(
        non_max_suppression(
            inputs[0],
            inputs[1],
            max_output_boxes_per_class=limits[0],
            iou_threshold=limits[1],
            score_threshold=limits[2],
            center_point_box=bool(attrs.get("center_point_box", 0)),
        )
    )
    rows = tirx.Var("num_selected", "int64")
    return bb.match_cast(selected, relax.TensorType((rows, 3), "int64"))


def _roi_align(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: dict[str, Any]
) -> relax.Expr | None:
    """Regions half a pixel of the feature map off; TVM takes half a pixel of the picture."""
    if attrs.get("mode", b"avg") == b"max":
        # TVM's maximum is of interpolated values; ONNX's of the weighted corners.
        raise NotImplementedError("RoiAlign with mode max")
    default = b"half_pixel" if attrs["opset"] >= 16 else b"output_half_pixel"
    if attrs.get("coordinate_transformation_mode", default) != b"half_pixel":
        return None
    data, regions, pictures = inputs
    dtype, scale = str(regions.ty.dtype), float(attrs.get("spatial_scale", 1.0))
    shifted = relax.op.subtract(regions, relax.const(0.5 / scale, dtype))
    column = relax.op.astype(relax.op.expand_dims(pictures, axis=1), dtype)
    return bb.normalize(
        relax.op.vision.roi_align(
            data,
            relax.op.concat([column, shifted], axis=1),
            pooled_size=(int(attrs.get("output_height", 1)), int(attrs.get("output_width", 1))),
            spatial_scale=scale,
            sample_ratio=int(attrs.get("sampling_ratio", 0)),
            aligned=True,
            layout="NCHW",
            mode=attrs.get("mode", b"avg").decode(),
        )
    )


DETECTION: dict[str, Converter] = {
    "NonMaxSuppression": _non_max_suppression,
    "RoiAlign": _roi_align,
}
