"""Kernels of non-maximum suppression."""

from __future__ import annotations

from tvm import relax, tirx

from tvm_edge.relay_passes.kernel_site import KernelSite
from tvm_edge.schedules.vision import nms

__all__ = ["lower_nms"]


def lower_nms(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Select per class, count, then write rows into a result of just that many."""
    boxes, scores = call.args
    attrs = call.attrs
    batch, classes, count = (int(d) for d in scores.ty.shape)
    most = min(int(attrs["max_output_boxes_per_class"]), count)
    lists = batch * classes
    if most == 0:
        return site.empty((0, 3), "int64")
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
