"""Non-maximum suppression: ONNX's, and that of rows as MXNet has it."""

from __future__ import annotations

from tvm import relax, tirx

from tvm_edge.ops import registry

__all__ = ["BOX_NMS", "NON_MAX_SUPPRESSION", "box_nms", "check_threshold", "non_max_suppression"]

NON_MAX_SUPPRESSION = "tvm_edge.non_max_suppression"
BOX_NMS = "tvm_edge.box_nms"


def non_max_suppression(
    boxes: relax.Expr,
    scores: relax.Expr,
    *,
    max_output_boxes_per_class: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> relax.Call:
    """Indices of the boxes that survive, per batch and class in descending score.

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


registry.register(NON_MAX_SUPPRESSION, _infer_type)


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
        order, and -1 in all rows behind them; ``counts``, ``(batch,)`` int32: how many stay. Boxes
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


def check_threshold(operator: str, name: str, value: float) -> None:
    """Refuse a ratio outside [0, 1] with a ValueError."""
    if not 0 <= value <= 1:
        raise ValueError(f"{operator}: {name} is {value}, and not between 0 and 1")


def _infer_box_nms(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
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


registry.register(BOX_NMS, _infer_box_nms)
