"""ONNX operators that TVM's importer gets wrong or slow, converted here instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_edge.ops import non_max_suppression

__all__ = ["CONVERTERS"]

Converter = Callable[[relax.BlockBuilder, Sequence[relax.Expr], dict[str, Any]], relax.Expr | None]


def _sum(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: dict[str, Any]
) -> relax.Expr:
    """A chain of adds; TVM stacks the terms into a new tensor, which no fusion takes apart."""
    return reduce(lambda a, b: bb.normalize(relax.op.add(a, b)), inputs)


def _clip(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: dict[str, Any]
) -> relax.Expr | None:
    """``relax.clip`` for constant bounds; TVM tests them for NaN at run time."""
    bounds = [attrs.get("min"), attrs.get("max")]
    for i, bound in enumerate(inputs[1:3]):
        if bound is None:
            continue
        if not isinstance(bound, tvm.ir.GenericConst):
            return None
        bounds[i] = bound.value.numpy().item()
    dtype = str(inputs[0].ty.dtype)
    if not dtype.startswith("float") or any(b is not None and math.isnan(b) for b in bounds):
        return None
    low = -math.inf if bounds[0] is None else bounds[0]
    high = math.inf if bounds[1] is None else bounds[1]
    return bb.normalize(relax.op.clip(inputs[0], low, high))


def _gather(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: dict[str, Any]
) -> relax.Expr | None:
    """``take`` for constant indices; TVM adds six kernels in case some are negative."""
    data, indices = inputs[:2]
    if not isinstance(indices, tvm.ir.GenericConst) or not isinstance(data.ty, relax.TensorType):
        return None
    axis = int(attrs.get("axis", 0)) % data.ty.ndim
    length = data.ty.shape[axis] if data.ty.shape is not None else None
    values = indices.value.numpy()
    if not isinstance(length, tirx.IntImm) or not values.size:
        return None
    if (values < -int(length)).any() or (values >= int(length)).any():
        return None  # out of range: TVM's converter decides
    positive = relax.const(np.where(values < 0, values + int(length), values), str(values.dtype))
    # "fast" mode warns on standard error although these are in range.
    return bb.normalize(relax.op.take(data, positive, axis, mode="clip"))


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


CONVERTERS: dict[str, Converter] = {
    "Clip": _clip,
    "Gather": _gather,
    "NonMaxSuppression": _non_max_suppression,
    "Sum": _sum,
}
"""ONNX operator type → converter, asked before TVM's own; ``None`` means "take TVM's"."""
