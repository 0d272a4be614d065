"""Operators of object detection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_edge.errors import InvalidModelError
from tvm_edge.frontend.operators.base import Converter, static_shape
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
    if None in map(static_shape, inputs[:2]):
        raise NotImplementedError("NonMaxSuppression of a number of boxes known only at run time")
    if not 0 <= limits[1] <= 1:
        raise InvalidModelError(
            f"a NonMaxSuppression has the iou_threshold {limits[1]:g}; give it one from 0 to 1"
        )
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


DETECTION: dict[str, Converter] = {
    "NonMaxSuppression": _non_max_suppression,
}
