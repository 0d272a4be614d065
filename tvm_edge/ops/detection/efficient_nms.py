"""Heads of detectors as TensorRT has them: the best detections of all classes."""

from __future__ import annotations

from tvm import relax

from tvm_edge.ops import registry
from tvm_edge.ops.detection.checks import check_threshold, is_known
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.ops.sorting.top_k import lower_top_k
from tvm_edge.schedules.vision.efficient_nms import list_detections, score_kept

__all__ = ["EFFICIENT_NMS", "efficient_nms"]

EFFICIENT_NMS = "tvm_edge.efficient_nms"


def efficient_nms(
    boxes: relax.Expr,
    scores: relax.Expr,
    *,
    max_output_boxes: int = 100,
    iou_threshold: float = 0.5,
    score_threshold: float = 0.25,
    background_class: int = -1,
    center_point_box: bool = False,
) -> relax.Call:
    """Select the best detections of all classes, as TensorRT's EfficientNMS does.

    Results have fixed shapes.

    Parameters
    ----------
    boxes : relax.Expr
        ``(batch, boxes, 4)`` float32: two corners in any order, or centre and size x, y, width,
        height if `center_point_box`.
    scores : relax.Expr
        ``(batch, boxes, classes)`` float32.
    max_output_boxes : int
        Detections of a picture, at most; at least 1.
    iou_threshold : float
        From 0 to 1: boxes of one class suppress each other above this.
    score_threshold : float
        Scores above it take part; NaN is above nothing.
    background_class : int
        A class that takes no part; none if negative.
    center_point_box : bool

    Returns
    -------
    relax.Call
        ``number`` ``(batch, 1)`` int32; ``boxes`` ``(batch, max_output_boxes, 4)``, ``scores``
        ``(batch, max_output_boxes)`` and ``classes`` ``(batch, max_output_boxes)`` int32, by
        descending score, equal ones by class and then by index. After ``number`` boxes and scores
        are 0 and classes -1.

    Raises
    ------
    ValueError
        A threshold outside [0, 1], no output boxes, shapes that do not fit each other.
    """
    check_threshold(EFFICIENT_NMS, "iou_threshold", iou_threshold)
    if max_output_boxes < 1:
        raise ValueError(f"{EFFICIENT_NMS}: max_output_boxes is {max_output_boxes}; at least 1")
    return registry.call(
        EFFICIENT_NMS,
        [boxes, scores],
        max_output_boxes=max_output_boxes,
        iou_threshold=float(iou_threshold),
        score_threshold=float(score_threshold),
        background_class=background_class,
        center_point_box=center_point_box,
    )


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    boxes, scores = (arg.ty for arg in call.args)
    wanted = int(call.attrs["max_output_boxes"])
    for name, tensor in (("boxes", boxes), ("scores", scores)):
        if tensor.ndim != 3 or not is_known(tensor):
            raise ValueError(f"{EFFICIENT_NMS}: {name} must be float32 with three known dimensions")
    sizes = [[int(length) for length in tensor.shape] for tensor in (boxes, scores)]
    if sizes[0][:2] != sizes[1][:2] or sizes[0][2] != 4 or 0 in sizes[1]:
        raise ValueError(f"{EFFICIENT_NMS}: boxes {sizes[0]} and scores {sizes[1]} do not fit")
    batch, device = boxes.shape[0], boxes.vdevice
    return relax.TupleType(
        [
            relax.TensorType([batch, 1], "int32", device),
            relax.TensorType([batch, wanted, 4], "float32", device),
            relax.TensorType([batch, wanted], "float32", device),
            relax.TensorType([batch, wanted], "int32", device),
        ]
    )


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Suppress in each class, then take the best of each picture."""
    attrs = call.attrs
    boxes, scores = call.args
    batch, count, classes = (int(size) for size in scores.ty.shape)
    wanted, background = int(attrs["max_output_boxes"]), int(attrs["background_class"])
    most = min(wanted, count)
    best = min(wanted, classes * most)
    flat = site.reshape(boxes, [batch * count * 4])
    select = score_kept(
        batch,
        classes,
        count,
        site.spec,
        most=most,
        iou_threshold=float(attrs["iou_threshold"]),
        score_threshold=float(attrs["score_threshold"]),
        background=None if background < 0 else background,
        center=bool(attrs["center_point_box"]),
    )
    given = [flat, site.reshape(scores, [batch * count * classes])]
    values, kept, *_ = site.run(select, "nms_select", given)
    table = site.reshape(values, [batch, classes * most])
    top = site.builder.normalize(relax.op.topk(table, best, -1, "both", dtype="int32"))
    chosen = lower_top_k(site, top)
    sorted_values, positions = (site.reshape(field, [batch * best]) for field in chosen.fields)
    finish = list_detections(batch, classes, count, site.spec, most=most, best=best, wanted=wanted)
    results = site.run(finish, "nms_list", [flat, kept, sorted_values, positions])
    return relax.Tuple(
        [
            site.reshape(result, list(field.shape))
            for result, field in zip(results, call.ty.fields, strict=True)
        ]
    )


register(EFFICIENT_NMS, infer_type=_infer_type, lower=_lower, gpu=PERFORMS)
