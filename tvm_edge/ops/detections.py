"""Whole heads of detectors: what is left when boxes are decoded and suppressed."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.decode import multibox_transform_loc
from tvm_edge.ops.nms import box_nms, check_threshold

__all__ = ["EFFICIENT_NMS", "PROPOSAL", "efficient_nms", "multibox_detection", "proposal"]

EFFICIENT_NMS = "tvm_edge.efficient_nms"
PROPOSAL = "tvm_edge.proposal"


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
    """The best detections of all classes, in tensors of fixed shape, as TensorRT's EfficientNMS.

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
        descending score, equal ones by class and then by index. Behind ``number`` boxes and scores
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


def _is_known(tensor: relax.TensorType) -> bool:
    """Whether a tensor is float32, and its shape known before the run."""
    known = tensor.shape is not None and all(isinstance(d, tirx.IntImm) for d in tensor.shape)
    return known and str(tensor.dtype) == "float32"


def _infer_efficient_nms(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    boxes, scores = (arg.ty for arg in call.args)
    wanted = int(call.attrs["max_output_boxes"])
    for name, tensor in (("boxes", boxes), ("scores", scores)):
        if tensor.ndim != 3 or not _is_known(tensor):
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


registry.register(EFFICIENT_NMS, _infer_efficient_nms)


def multibox_detection(
    cls_prob: relax.Expr,
    loc_pred: relax.Expr,
    anchor: relax.Expr,
    *,
    clip: bool = True,
    threshold: float = 0.01,
    nms_threshold: float = 0.5,
    force_suppress: bool = False,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    nms_topk: int = -1,
) -> relax.Expr:
    """An SSD's detections, as MXNet's ``MultiBoxDetection`` gives them (Liu et al., ECCV 2016).

    :func:`~tvm_edge.ops.multibox_transform_loc`, and :func:`~tvm_edge.ops.box_nms` of its rows;
    their parameters are explained there.

    Returns
    -------
    relax.Expr
        ``(batch, anchors, 6)``: class without the background, score, x1, y1, x2, y2, by descending
        score, and -1 in all rows behind the last detection.
    """
    decoded = multibox_transform_loc(
        cls_prob, loc_pred, anchor, clip=clip, threshold=threshold, variances=variances
    )
    kept = box_nms(
        relax.TupleGetItem(decoded, 0),
        overlap_thresh=nms_threshold,
        valid_thresh=-1.0,  # of the rows behind the valid ones
        topk=nms_topk,
        id_index=0,
        force_suppress=force_suppress,
    )
    return relax.TupleGetItem(kept, 0)


def proposal(
    cls_prob: relax.Expr,
    bbox_pred: relax.Expr,
    im_info: relax.Expr,
    *,
    scales: Sequence[float] = (4, 8, 16, 32),
    ratios: Sequence[float] = (0.5, 1, 2),
    feature_stride: int = 16,
    rpn_pre_nms_top_n: int = 6000,
    rpn_post_nms_top_n: int = 300,
    threshold: float = 0.7,
    rpn_min_size: float = 16,
) -> relax.Call:
    """Regions of a region proposal network (Ren et al., Faster R-CNN, NeurIPS 2015, section 3.1).

    MXNet's ``Proposal``: boxes are in pixels, the last of which belongs to the box.

    Parameters
    ----------
    cls_prob : relax.Expr
        ``(batch, 2 * A, H, W)`` float32: of the A anchors of each cell the probabilities that they
        show nothing, then those that they show an object.
    bbox_pred : relax.Expr
        ``(batch, 4 * A, H, W)`` float32: encodings x, y, width, height of one anchor after the
        other.
    im_info : relax.Expr
        ``(batch, 3)`` float32: height, width and scale of the pictures.
    scales, ratios : sequence of float
        Sizes of the anchors in cells, and height over width; ``A = len(scales) * len(ratios)``.
    feature_stride : int
        Pixels from one cell to the next.
    rpn_pre_nms_top_n, rpn_post_nms_top_n : int
        Regions that enter the suppression and that leave it; all that there are if not positive,
        and never more.
    threshold : float
        From 0 to 1: the intersection over union above which a better region suppresses one.
    rpn_min_size : float
        Regions with shorter sides, in pixels times the picture's scale, have the score -1.

    Returns
    -------
    relax.Call
        ``(batch * rpn_post_nms_top_n, 5)`` float32: picture, x1, y1, x2, y2. Where fewer regions
        stay, they come again from the first one on.

    Raises
    ------
    ValueError
        A threshold outside [0, 1], shapes that do not fit each other.
    """
    check_threshold(PROPOSAL, "threshold", threshold)
    return registry.call(
        PROPOSAL,
        [cls_prob, bbox_pred, im_info],
        scales=[float(scale) for scale in scales],
        ratios=[float(ratio) for ratio in ratios],
        feature_stride=feature_stride,
        rpn_pre_nms_top_n=rpn_pre_nms_top_n,
        rpn_post_nms_top_n=rpn_post_nms_top_n,
        threshold=float(threshold),
        rpn_min_size=float(rpn_min_size),
    )


def _infer_proposal(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    attrs = call.attrs
    tensors = [arg.ty for arg in call.args]
    if not all(map(_is_known, tensors)):
        raise ValueError(f"{PROPOSAL}: its tensors must be float32 and of known shape")
    scores, encodings, pictures = ([int(size) for size in tensor.shape] for tensor in tensors)
    anchors = len(attrs["scales"]) * len(attrs["ratios"])
    batch, cells = scores[0], scores[2:]
    wanted = [[batch, 2 * anchors, *cells], [batch, 4 * anchors, *cells], [batch, 3]]
    if [scores, encodings, pictures] != wanted or len(cells) != 2:
        raise ValueError(
            f"{PROPOSAL}: {anchors} anchors a cell need tensors like {wanted}, "
            f"not {[scores, encodings, pictures]}"
        )
    rows = batch * regions(call)[1]
    return relax.TensorType([rows, 5], "float32", tensors[0].vdevice)


def regions(call: relax.Call) -> tuple[int, int]:
    """Regions of a picture that enter the suppression of a proposal, and that leave it."""
    attrs = call.attrs
    _, _, height, width = (int(size) for size in call.args[0].ty.shape)
    count = height * width * len(attrs["scales"]) * len(attrs["ratios"])
    limits = (int(attrs["rpn_pre_nms_top_n"]), int(attrs["rpn_post_nms_top_n"]))
    before, after = (min(limit, count) if limit > 0 else count for limit in limits)
    return before, min(before, after)


registry.register(PROPOSAL, _infer_proposal)
