"""Non-maximum suppression with the semantics of ONNX ``NonMaxSuppression``."""

from __future__ import annotations

from tvm import relax

from tvm_edge.ops import registry

__all__ = ["NON_MAX_SUPPRESSION", "non_max_suppression"]

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
    """Indices of the boxes that survive, per batch and class in descending score.

    Parameters
    ----------
    boxes : relax.Expr
        ``(batch, boxes, 4)`` float32: two corners ``y1, x1, y2, x2`` in any order, or centre and
        size ``x, y, w, h`` if `center_point_box`.
    scores : relax.Expr
        ``(batch, classes, boxes)`` float32.
    max_output_boxes_per_class : int
        0 selects nothing, as ONNX says.
    iou_threshold : float
        A box goes if its intersection over union with a better one is above this.
    score_threshold : float or None
        Only scores above it take part; ``None`` means all do.
    center_point_box : bool

    Returns
    -------
    relax.Call
        ``(selected, 3)`` int64 rows of batch, class and box index; equal scores come in the order
        of their index.
    """
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
    # How many rows is known only after the run; callers name the length with match_cast.
    return relax.TensorType(dtype="int64", vdevice=boxes.vdevice, ndim=2)


registry.register(NON_MAX_SUPPRESSION, _infer_type)
