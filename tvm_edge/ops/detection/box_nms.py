"""Suppression of rows that hold a class, a score and a box, as MXNet has it."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.detection.checks import check_threshold
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.schedules.vision.box_nms import Rows
from tvm_edge.schedules.vision.box_nms import box_nms as rows_kernel
from tvm_edge.schedules.vision.soft_nms import soft_nms

__all__ = ["BOX_NMS", "box_nms"]

BOX_NMS = "tvm_edge.box_nms"


def box_nms(
    data: relax.Expr,
    *,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = "corner",
    soft_nms_sigma: float = 0.0,
) -> relax.Call:
    """Suppress rows that hold a class, a score and a box: MXNet's ``box_nms``.

    Parameters
    ----------
    data : relax.Expr
        ``(batch, boxes, columns)``, float32 or float16.
    overlap_thresh : float
        From 0 to 1: a row goes if its intersection over union with a better one is above this.
    valid_thresh : float
        Only rows with a score above it take part; NaN is above nothing.
    topk : int
        How many rows with the best scores take part at most; all if negative.
    coord_start : int
        The first of the box's four columns.
    score_index, id_index : int
        Columns of the score and of the class; no class if negative.
    background_id : int
        A class whose rows do not take part; none if negative.
    force_suppress : bool
        Whether rows of different classes suppress each other.
    in_format : {"corner", "center"}
        Two corners x, y, x, y, or centre and size.
    soft_nms_sigma : float
        If positive, scores decay by ``exp(-iou**2 / (2 * sigma))`` where rows overlap, and rows
        stay while their score is above `valid_thresh` (Bodla et al., Soft-NMS, ICCV 2017, whose
        sigma is twice this one; TensorFlow has this one).

    Returns
    -------
    relax.Call
        ``rows`` of the shape of `data`: those that stay, by descending score, equal ones in their
        order, and -1 in all rows after them; ``counts``, ``(batch,)`` int32: how many stay. Boxes
        without a positive finite area suppress nothing and stay.

    Raises
    ------
    ValueError
        Columns that are not there, a threshold outside [0, 1], a `topk` of a soft suppression.
    """
    if in_format not in ("corner", "center"):
        raise ValueError(f"{BOX_NMS}: in_format {in_format!r} is neither corner nor center")
    check_threshold(BOX_NMS, "overlap_thresh", overlap_thresh)
    if soft_nms_sigma > 0 and topk >= 0:
        raise ValueError(f"{BOX_NMS}: a soft suppression has no topk; cut its rows instead")
    return registry.call(
        BOX_NMS,
        [data],
        overlap_thresh=float(overlap_thresh),
        valid_thresh=float(valid_thresh),
        topk=topk,
        coord_start=coord_start,
        score_index=score_index,
        id_index=id_index,
        background_id=background_id,
        force_suppress=force_suppress,
        in_format=in_format,
        soft_nms_sigma=float(soft_nms_sigma),
    )


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    data, attrs = call.args[0].ty, call.attrs
    if data.ndim != 3 or str(data.dtype) not in ("float16", "float32"):
        raise ValueError(f"{BOX_NMS}: data must be a float16 or float32 tensor of three dimensions")
    if data.shape is None or not all(isinstance(d, tirx.IntImm) for d in data.shape):
        raise ValueError(f"{BOX_NMS}: the shape of data must be known before the run")
    width = int(data.shape[2])
    columns = {name: int(attrs[name]) for name in ("coord_start", "score_index", "id_index")}
    last = {"coord_start": width - 4, "score_index": width - 1, "id_index": width - 1}
    for name, column in columns.items():
        if column > last[name] or (column < 0 and name != "id_index"):
            raise ValueError(f"{BOX_NMS}: rows of {width} columns have no {name} {column}")
    counts = relax.TensorType([data.shape[0]], "int32", data.vdevice)
    return relax.TupleType([relax.TensorType(data.shape, data.dtype, data.vdevice), counts])


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
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
        kernel = rows_kernel(rows, site.spec, considered=None if topk < 0 else topk, **how)
    flat = site.reshape(data, [batch * length * width])
    result, counts, *_ = site.run(kernel, "box_nms", [flat])
    return relax.Tuple([site.reshape(result, [batch, length, width]), counts])


register(BOX_NMS, infer_type=_infer_type, lower=_lower, gpu=PERFORMS)
