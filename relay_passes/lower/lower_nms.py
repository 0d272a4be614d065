"""Kernels of non-maximum suppression."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx

from tvm_edge.ops.detections import regions
from tvm_edge.relay_passes.lower.kernel_site import KernelSite, is_empty
from tvm_edge.relay_passes.lower.lower_sort import lower_top_k
from tvm_edge.schedules.vision import nms
from tvm_edge.schedules.vision.box_nms import Rows, box_nms
from tvm_edge.schedules.vision.efficient_nms import list_detections, score_kept
from tvm_edge.schedules.vision.proposal import propose
from tvm_edge.schedules.vision.soft_nms import soft_nms

__all__ = ["lower_box_nms", "lower_efficient_nms", "lower_nms", "lower_proposal"]


def lower_nms(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Select per class, count, then write rows into a result of just that many."""
    boxes, scores = call.args
    attrs = call.attrs
    batch, classes, count = (int(d) for d in scores.ty.shape)
    most = min(int(attrs["max_output_boxes_per_class"]), count)
    lists = batch * classes
    if most <= 0:
        return site.zeros((0, 3), "int64")
    select = nms.select_boxes(
        batch,
        classes,
        count,
        site.spec,
        max_selected=most,
        iou_threshold=float(attrs["iou_threshold"]),
        score_threshold=float(attrs["score_threshold"]) if attrs["has_score_threshold"] else None,
        center_point_box=bool(attrs["center_point_box"]),
    )
    flat = [site.reshape(boxes, [batch * count * 4]), site.reshape(scores, [lists * count])]
    picked, counts, *_ = site.run(select, "nms_select", flat)
    starts, lengths, *_ = site.run(nms.number_selected(lists, site.spec), "nms_shape", [counts])
    shape = site.emit(relax.op.tensor_to_shape(lengths))
    rows = tirx.Var("num_selected", "int64")
    site.builder.match_cast(shape, relax.ShapeType([rows, 3]))
    fill = nms.fill_indices(batch, classes, most, site.spec)
    result = site.tensor((rows, 3), "int64")
    (filled,) = site.call(fill.func, "nms_fill", [picked, counts, starts], [result])
    return filled


def lower_box_nms(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.box_nms``."""
    data, attrs = call.args[0], call.attrs
    batch, length, width = (int(size) for size in data.ty.shape)
    if is_empty(data.ty.shape):
        empty = site.zeros(data.ty.shape, str(data.ty.dtype))
        return relax.Tuple([empty, site.zeros((batch,), "int32")])
    label, background = int(attrs["id_index"]), int(attrs["background_id"])
    topk, sigma = int(attrs["topk"]), float(attrs["soft_nms_sigma"])
    rows = Rows(
        batch,
        length,
        width,
        str(data.ty.dtype),
        first_coordinate=int(attrs["coord_start"]),
        score=int(attrs["score_index"]),
        label=None if label < 0 else label,
        background=None if background < 0 else background,
        threshold=float(attrs["valid_thresh"]),
        center=str(attrs["in_format"]) == "center",
    )
    how: dict[str, Any] = {
        "iou_threshold": float(attrs["overlap_thresh"]),
        "by_class": label >= 0 and not bool(attrs["force_suppress"]),
    }
    if sigma > 0:
        kernel = soft_nms(rows, site.spec, sigma=sigma, **how)
    else:
        kernel = box_nms(rows, site.spec, considered=None if topk < 0 else topk, **how)
    flat = site.reshape(data, [batch * length * width])
    result, counts, *_ = site.run(kernel, "box_nms", [flat])
    return relax.Tuple([site.reshape(result, [batch, length, width]), counts])


def lower_efficient_nms(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.efficient_nms``: suppress in each class, then take the best of each picture."""
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


def lower_proposal(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.proposal``."""
    attrs, scores = call.attrs, call.args[0]
    batch, _, height, width = (int(size) for size in scores.ty.shape)
    before, after = regions(call)
    kernel = propose(
        batch,
        (height, width),
        site.spec,
        scales=[float(scale) for scale in attrs["scales"]],
        ratios=[float(ratio) for ratio in attrs["ratios"]],
        stride=int(attrs["feature_stride"]),
        considered=before,
        most=after,
        iou_threshold=float(attrs["threshold"]),
        min_size=float(attrs["rpn_min_size"]),
    )
    flat = [site.reshape(arg, [prod(arg.ty.shape)]) for arg in call.args]
    result, *_ = site.run(kernel, "proposal", flat)
    return site.reshape(result, [batch * after, 5])
