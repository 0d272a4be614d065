"""Detections of an SSD as MXNet has them: anchors decoded, then suppressed."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.detection.box_nms import box_nms
from tvm_edge.ops.detection.checks import four_variances, is_other, refusal
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS_STATIC, register
from tvm_edge.relay_passes.ir.expressions import static_shape
from tvm_edge.schedules.vision import compaction, decode

__all__ = ["MULTIBOX_TRANSFORM_LOC", "multibox_detection", "multibox_transform_loc"]

MULTIBOX_TRANSFORM_LOC = "tvm_edge.multibox_transform_loc"


def multibox_transform_loc(
    cls_prob: relax.Expr,
    loc_pred: relax.Expr,
    anchor: relax.Expr,
    *,
    clip: bool = True,
    threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
) -> relax.Call:
    """Decode anchors that show anything but background, as MXNet's ``MultiBoxDetection`` begins.

    Liu et al., SSD, ECCV 2016, equation 2. Relay's ``multibox_transform_loc`` did the same;
    ``relax.vision.multibox_transform_loc`` keeps all anchors and all classes.

    Parameters
    ----------
    cls_prob : relax.Expr
        ``(batch, classes, anchors)`` probabilities; class 0 is the background.
    loc_pred : relax.Expr
        ``(batch, 4 * anchors)`` encodings x, y, width, height of one anchor after the other.
    anchor : relax.Expr
        ``(1, anchors, 4)`` corners x1, y1, x2, y2 as fractions of the picture.
    clip : bool
        Whether boxes are cut off at 0 and 1.
    threshold : float
        An anchor whose best class other than the background is below this is left out. A NaN is
        nobody's best and below everything; so is a score of -1 or less. The first of equal classes
        is the best.
    variances : sequence of float
        Factors of the encodings.

    Returns
    -------
    relax.Call
        ``rows``, ``(batch, anchors, 6)``: class without the background, score, x1, y1, x2, y2, in
        the order of the anchors, and -1 in the rows after them; ``valid_count``, ``(batch,)``
        int32: how many there are.

    Raises
    ------
    ValueError
        Not four variances; shapes or types that do not fit each other.
    """
    return registry.call(
        MULTIBOX_TRANSFORM_LOC,
        [cls_prob, loc_pred, anchor],
        clip=clip,
        threshold=float(threshold),
        variances=four_variances(MULTIBOX_TRANSFORM_LOC, variances),
    )


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    tensors = [arg.ty for arg in call.args]
    probabilities, locations, anchors = tensors
    wanted = "it takes floats (batch, classes, anchors), (batch, 4 * anchors), (1, anchors, 4)"
    dtype = str(probabilities.dtype)
    kinds = {str(tensor.dtype) for tensor in tensors}
    if [t.ndim for t in tensors] != [3, 2, 3] or kinds != {dtype} or dtype[:5] != "float":
        raise refusal(MULTIBOX_TRANSFORM_LOC, wanted, tensors)
    device = probabilities.vdevice
    if any(tensor.shape is None for tensor in tensors):
        rows = relax.TensorType(dtype=dtype, vdevice=device, ndim=3)
        return relax.TupleType([rows, relax.TensorType(dtype="int32", vdevice=device, ndim=1)])
    batch, classes, count = probabilities.shape
    if isinstance(classes, tirx.IntImm) and int(classes) == 0:
        raise refusal(MULTIBOX_TRANSFORM_LOC, "there must be a class, the background", tensors)
    pairs = [
        (locations.shape[0], batch),
        (anchors.shape[1], count),
        (locations.shape[1], _times_four(count)),
        (anchors.shape[0], tirx.IntImm("int64", 1)),
        (anchors.shape[2], tirx.IntImm("int64", 4)),
    ]
    if any(is_other(a, b) for a, b in pairs):
        raise refusal(MULTIBOX_TRANSFORM_LOC, wanted, tensors)
    return relax.TupleType(
        [
            relax.TensorType([batch, count, 6], dtype, device),
            relax.TensorType([batch], "int32", device),
        ]
    )


def _times_four(count: tirx.Expr) -> tirx.Expr:
    return tirx.IntImm("int64", 4 * int(count)) if isinstance(count, tirx.IntImm) else count * 4


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
    """Detect by an SSD, as MXNet's ``MultiBoxDetection`` does (Liu et al., ECCV 2016).

    :func:`~tvm_edge.ops.multibox_transform_loc`, and :func:`~tvm_edge.ops.box_nms` of its rows;
    their parameters are explained there.

    Returns
    -------
    relax.Expr
        ``(batch, anchors, 6)``: class without the background, score, x1, y1, x2, y2, by descending
        score, and -1 in all rows after the last detection.
    """
    decoded = multibox_transform_loc(
        cls_prob, loc_pred, anchor, clip=clip, threshold=threshold, variances=variances
    )
    kept = box_nms(
        relax.TupleGetItem(decoded, 0),
        overlap_thresh=nms_threshold,
        valid_thresh=-1.0,  # of the rows after the valid ones
        topk=nms_topk,
        id_index=0,
        force_suppress=force_suppress,
    )
    return relax.TupleGetItem(kept, 0)


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    probabilities, attrs = call.args[0].ty, call.attrs
    if static_shape(probabilities) is None:
        raise ValueError(
            f"multibox_transform_loc takes class probabilities of a constant shape, not "
            f"{probabilities.shape}; fix the model's shapes with input_shapes="
        )
    batch, classes, count = (int(size) for size in probabilities.shape)
    dtype = str(probabilities.dtype)
    if 0 in (batch, count):
        return relax.Tuple([site.zeros((batch, count, 6), dtype), site.zeros((batch,), "int32")])
    kernel = decode.decode_locations(
        batch,
        classes,
        count,
        dtype,
        site.spec,
        clip=bool(attrs["clip"]),
        threshold=float(attrs["threshold"]),
        variances=[float(v) for v in attrs["variances"]],
    )
    rows, counts, *_ = site.run(kernel, "multibox_transform_loc", call.args)
    return relax.Tuple([rows, counts])


def _lower_valid_counts(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.vision.get_valid_counts``, which moves valid rows to the front."""
    data, attrs = call.args[0].ty, call.attrs
    if static_shape(data) is None:
        return call  # TVM's own, which has no kernel for a GPU
    shape, dtype = [int(size) for size in data.shape], str(data.dtype)
    batch, count, width = shape
    if is_empty(shape):
        shapes = [((batch,), "int32"), (shape, dtype), ((batch, count), "int32")]
        return relax.Tuple([site.zeros(*each) for each in shapes])
    kernel = compaction.valid_rows(
        batch,
        count,
        width,
        dtype,
        site.spec,
        score_threshold=float(attrs.score_threshold),
        id_index=int(attrs.id_index),
        score_index=int(attrs.score_index),
    )
    counts, rows, indices, *_ = site.run(kernel, "get_valid_counts", call.args)
    return relax.Tuple([counts, rows, indices])


register(MULTIBOX_TRANSFORM_LOC, infer_type=_infer_type, lower=_lower, gpu=PERFORMS_STATIC)
register("relax.vision.get_valid_counts", lower=_lower_valid_counts, gpu=PERFORMS_STATIC)
