"""Non-maximum suppression as ONNX has it: indices of the boxes that stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_edge.errors import InvalidModelError
from tvm_edge.ops import registry
from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.detection.checks import check_threshold
from tvm_edge.ops.elements import plain
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import PERFORMS_STATIC, register
from tvm_edge.schedules.vision import nms

__all__ = ["NON_MAX_SUPPRESSION", "non_max_suppression"]

_MOST = (1 << 31) - 1

NON_MAX_SUPPRESSION = "tvm_edge.non_max_suppression"


def non_max_suppression(
    boxes: relax.Expr,
    scores: relax.Expr,
    *,
    max_output_boxes_per_class: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> relax.Call:
    """Select the boxes that survive, per batch and class in descending score.

    Parameters
    ----------
    boxes : relax.Expr
        ``(batch, boxes, 4)`` float32: two corners ``y1, x1, y2, x2`` in any order, or centre and
        size ``x, y, w, h`` if `center_point_box`.
    scores : relax.Expr
        ``(batch, classes, boxes)`` float32.
    max_output_boxes_per_class : int
        0 and less select nothing, as in ONNX Runtime.
    iou_threshold : float
        From 0 to 1: a box goes if its intersection over union with a better one is above this.
    score_threshold : float or None
        Only scores above it take part, and NaN is above nothing; ``None`` means that all do, NaN
        as the least.
    center_point_box : bool

    Returns
    -------
    relax.Call
        ``(selected, 3)`` int64 rows of batch, class and box index; equal scores come in the order
        of their index. Boxes without a positive finite area (NaN and infinite coordinates among
        them) suppress nothing and are never suppressed.

    Raises
    ------
    ValueError
        An `iou_threshold` outside [0, 1].
    """
    check_threshold(NON_MAX_SUPPRESSION, "iou_threshold", iou_threshold)
    return registry.call(
        NON_MAX_SUPPRESSION,
        [boxes, scores],
        max_output_boxes_per_class=max_output_boxes_per_class,
        iou_threshold=iou_threshold,
        has_score_threshold=score_threshold is not None,
        score_threshold=0.0 if score_threshold is None else score_threshold,
        center_point_box=center_point_box,
    )


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    boxes, scores = (arg.ty for arg in call.args)
    if boxes.ndim != 3 or scores.ndim != 3:
        raise ValueError(
            f"{NON_MAX_SUPPRESSION}: boxes and scores must have three dimensions, "
            f"not {boxes.ndim} and {scores.ndim}"
        )
    known = [ty.shape for ty in (boxes, scores) if ty.shape is not None]
    sizes = [[int(d) if isinstance(d, tirx.IntImm) else None for d in shape] for shape in known]
    if len(sizes) == 2:
        (batch, count, four), (pictures, _, scored) = sizes
        if four != 4 or batch != pictures or count != scored:
            raise ValueError(
                f"{NON_MAX_SUPPRESSION}: boxes {sizes[0]} and scores {sizes[1]} do not fit"
            )
    # How many rows is known only after the run; callers name the length with match_cast.
    return relax.TensorType(dtype="int64", vdevice=boxes.vdevice, ndim=2)


def _convert(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Emit the composite operator; TVM's claims a static result and treats 0 boxes as "all"."""
    limits: list[Any] = [0, 0.0, None]
    for i, limit in enumerate(inputs[2:5]):
        if limit is None:
            continue
        if not isinstance(limit, tvm.ir.GenericConst):
            names = "max_output_boxes_per_class, iou_threshold, score_threshold".split(", ")
            raise NotImplementedError(f"NonMaxSuppression needs a constant {names[i]}")
        limits[i] = limit.value.numpy().item()
    if any(not isinstance(d, tirx.IntImm) for d in list(inputs[1].ty.shape)[:2]):
        raise NotImplementedError(
            "NonMaxSuppression of an open number of pictures or classes; fix both with input_shapes"
        )
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


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Select per class, count, then write rows into a result of just that many."""
    boxes, scores = call.args
    attrs = call.attrs
    batch, classes = (int(d) for d in list(scores.ty.shape)[:2])
    count = plain(scores.ty.shape[2])
    known = not isinstance(count, tirx.Expr)
    most = min(int(attrs["max_output_boxes_per_class"]), _MOST)  # positions are of 32 bits
    lists = batch * classes
    if most <= 0:
        return site.zeros((0, 3), "int64")
    most = min(most, count) if known else tirx.min(tirx.IntImm("int64", most), count)
    select = nms.select_boxes(
        batch,
        classes,
        count if known else None,
        site.spec,
        max_selected=most if known else None,
        iou_threshold=float(attrs["iou_threshold"]),
        score_threshold=float(attrs["score_threshold"]) if attrs["has_score_threshold"] else None,
        center_point_box=bool(attrs["center_point_box"]),
    )
    flat = [site.reshape(boxes, [batch * count * 4]), site.reshape(scores, [lists * count])]
    types = [site.tensor([lists * most], "int32"), site.tensor([lists], "int32")]
    if known:
        types = [site.tensor(shape, dtype) for shape, dtype in select.outputs]
    picked, counts, *_ = site.call(select.func, "nms_select", flat, types)
    starts, lengths, *_ = site.run(nms.number_selected(lists, site.spec), "nms_shape", [counts])
    shape = site.emit(relax.op.tensor_to_shape(lengths))
    rows = tirx.Var("num_selected", "int64")
    site.builder.match_cast(shape, relax.ShapeType([rows, 3]))
    fill = nms.fill_indices(batch, classes, most if known else None, site.spec)
    result = site.tensor((rows, 3), "int64")
    (filled,) = site.call(fill.func, "nms_fill", [picked, counts, starts], [result])
    return filled


register("NonMaxSuppression", convert=_convert, forming=(2, 3, 4), settings=(3, 4))
register(NON_MAX_SUPPRESSION, infer_type=_infer_type, lower=_lower, gpu=PERFORMS_STATIC)
