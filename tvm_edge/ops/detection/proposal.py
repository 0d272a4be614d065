"""Regions of a region proposal network, as MXNet has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import relax

from tvm_edge.ops import registry
from tvm_edge.ops.detection.checks import check_threshold, is_known
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.schedules.vision.proposal import propose

__all__ = ["PROPOSAL", "proposal"]

PROPOSAL = "tvm_edge.proposal"


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
    """Propose regions (Ren et al., Faster R-CNN, NeurIPS 2015, section 3.1).

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


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    attrs = call.attrs
    tensors = [arg.ty for arg in call.args]
    if not all(map(is_known, tensors)):
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
    rows = batch * _regions(call)[1]
    return relax.TensorType([rows, 5], "float32", tensors[0].vdevice)


def _regions(call: relax.Call) -> tuple[int, int]:
    """Return how many regions of a picture enter the suppression, and how many leave it."""
    attrs = call.attrs
    _, _, height, width = (int(size) for size in call.args[0].ty.shape)
    count = height * width * len(attrs["scales"]) * len(attrs["ratios"])
    limits = (int(attrs["rpn_pre_nms_top_n"]), int(attrs["rpn_post_nms_top_n"]))
    before, after = (min(limit, count) if limit > 0 else count for limit in limits)
    return before, min(before, after)


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    attrs, scores = call.attrs, call.args[0]
    batch, _, height, width = (int(size) for size in scores.ty.shape)
    before, after = _regions(call)
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


register(PROPOSAL, infer_type=_infer_type, lower=_lower, gpu=PERFORMS)
