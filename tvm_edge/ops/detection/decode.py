"""Decoding of the predictions of single-shot detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_edge.ops import registry
from tvm_edge.ops.detection.checks import four_variances, is_other, refusal
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.schedules.vision import decode

__all__ = ["SSD_DECODE", "YOLO_DECODE", "ssd_decode", "yolo_decode"]

SSD_DECODE = "tvm_edge.ssd_decode"
YOLO_DECODE = "tvm_edge.yolo_decode"


def ssd_decode(
    encodings: relax.Expr,
    anchors: relax.Expr,
    *,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    anchor_format: str = "center",
) -> relax.Call:
    """Decode boxes from encodings relative to anchors.

    Liu et al., SSD, ECCV 2016, equation 2. The axes may come in either order, in anchors, encodings
    and boxes alike.

    Parameters
    ----------
    encodings : relax.Expr
        ``(..., anchors, 4)``: shifts on both axes, then the logarithms of the sizes.
    anchors : relax.Expr
        ``(anchors, 4)``, or with more axes before that `encodings` have or that are 1.
    variances : sequence of float
        Factors of the encodings: one over TensorFlow's box scales.
    anchor_format : {"center", "corner"}
        Whether anchors are centre and size or two corners.

    Returns
    -------
    relax.Call
        Shaped as `encodings`: the lower corner, then the upper. A NaN or an infinity stays in
        its own box.

    Raises
    ------
    ValueError
        Not four variances; no such format; shapes or types that do not fit each other.
    """
    if anchor_format not in ("center", "corner"):
        raise ValueError(f"{SSD_DECODE}: anchor_format {anchor_format!r} is not center or corner")
    return registry.call(
        SSD_DECODE,
        [encodings, anchors],
        variances=four_variances(SSD_DECODE, variances),
        anchor_format=anchor_format,
    )


def yolo_decode(
    features: relax.Expr,
    *,
    anchors: Sequence[tuple[float, float]],
    classes: int,
    stride: float | tuple[float, float],
    scale_x_y: float = 1.0,
    growth: str = "exp",
) -> relax.Call:
    """Decode boxes and scores from one map of a YOLO detector.

    Redmon and Farhadi, YOLOv3, arXiv:1804.02767, section 2.1. `scale_x_y` is YOLOv4's
    (arXiv:2004.10934, section 3.4, "eliminate grid sensitivity"): it lets centres reach the cell's
    edge. YOLOv5 has ``scale_x_y=2, growth="squared sigmoid"``.

    Parameters
    ----------
    features : relax.Expr
        ``(batch, A * (5 + classes), height, width)``: for each anchor x, y, width, height,
        objectness and classes, before any activation.
    anchors : sequence of (float, float)
        Width and height of each of the A anchors, in pixels.
    classes : int
        At least 1.
    stride : float or (float, float)
        Pixels from one cell to the next; vertically and horizontally if there are two.
    scale_x_y : float
        Stretches the centre's sigmoid about the cell's middle.
    growth : {"exp", "squared sigmoid"}
        How many times its anchor's a size is: ``exp(t)`` or ``(2 * sigmoid(t)) ** 2``.

    Returns
    -------
    relax.Call
        ``boxes``, ``(batch, height * width * A, 4)``: corners y1, x1, y2, x2 in pixels, as
        :func:`non_max_suppression` takes them, the anchors of a cell side by side; ``scores``,
        ``(batch, classes, height * width * A)``: objectness times class. A NaN stays in its own box
        or score.

    Raises
    ------
    ValueError
        No anchors; no such growth; features that do not fit.
    """
    if not anchors or any(len(anchor) != 2 for anchor in anchors):
        raise ValueError(f"{YOLO_DECODE}: anchors must be pairs of width and height")
    if classes < 1:
        raise ValueError(f"{YOLO_DECODE}: there must be a class at least, not {classes}")
    if growth not in ("exp", "squared sigmoid"):
        raise ValueError(f"{YOLO_DECODE}: growth {growth!r} is not 'exp' or 'squared sigmoid'")
    strides = stride if isinstance(stride, tuple) else (stride, stride)
    return registry.call(
        YOLO_DECODE,
        [features],
        anchors=[float(side) for anchor in anchors for side in anchor],
        classes=classes,
        strides=[float(step) for step in strides],
        scale_x_y=float(scale_x_y),
        growth=growth,
    )


def _infer_ssd(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    tensors = [arg.ty for arg in call.args]
    encodings, anchors = tensors
    dtype = str(encodings.dtype)
    if dtype[:5] != "float" or dtype != str(anchors.dtype) or anchors.ndim < 2:
        raise refusal(SSD_DECODE, "encodings and anchors must be floats of one type", tensors)
    if encodings.shape is None or anchors.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=encodings.vdevice, ndim=encodings.ndim)
    own = list(encodings.shape)[encodings.ndim - anchors.ndim :]
    four = tirx.IntImm("int64", 4)
    fits = encodings.ndim >= anchors.ndim and not any(
        is_other(shape[-1], four) for shape in (encodings.shape, anchors.shape)
    )
    if not fits or any(
        is_other(a, b) and int(a) != 1 for a, b in zip(anchors.shape, own, strict=True)
    ):
        raise refusal(SSD_DECODE, "it takes (..., anchors, 4) and (anchors, 4)", tensors)
    return relax.TensorType(encodings.shape, dtype, encodings.vdevice)


def _infer_yolo(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    (features,) = (arg.ty for arg in call.args)
    classes, count = int(call.attrs["classes"]), len(call.attrs["anchors"]) // 2
    channels = count * (5 + classes)
    wanted = f"features must be floats (batch, {channels}, height, width)"
    dtype, device = str(features.dtype), features.vdevice
    if features.ndim != 4 or dtype[:5] != "float":
        raise refusal(YOLO_DECODE, wanted, [features])
    if features.shape is None:
        shapeless = relax.TensorType(dtype=dtype, vdevice=device, ndim=3)
        return relax.TupleType([shapeless, shapeless])
    batch, found, height, width = features.shape
    if is_other(found, tirx.IntImm("int64", channels)):
        raise refusal(YOLO_DECODE, wanted, [features])
    boxes = height * width * count
    return relax.TupleType(
        [
            relax.TensorType([batch, boxes, 4], dtype, device),
            relax.TensorType([batch, classes, boxes], dtype, device),
        ]
    )


def _lower_ssd(site: KernelSite, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    if is_empty(call.ty.shape):
        return site.zeros(call.ty.shape, str(call.ty.dtype))
    how = ([float(v) for v in attrs["variances"]], str(attrs["anchor_format"]))
    return site.builder.call_te(decode.ssd_boxes, *call.args, *how, primfunc_name_hint="ssd_decode")


def _lower_yolo(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Make two kernels, either of which others can be fused with."""
    (features,), attrs = call.args, call.attrs
    if any(is_empty(ty.shape) for ty in call.ty.fields):
        return relax.Tuple([site.zeros(ty.shape, str(ty.dtype)) for ty in call.ty.fields])
    sides = [float(side) for side in attrs["anchors"]]
    pairs = list(zip(sides[::2], sides[1::2], strict=True))
    classes, strides = int(attrs["classes"]), tuple(float(s) for s in attrs["strides"])
    how: dict[str, Any] = {"strides": strides, "growth": str(attrs["growth"])}
    how["scale_x_y"] = float(attrs["scale_x_y"])

    def boxes(x: te.Tensor) -> te.Tensor:
        return decode.yolo_boxes(x, anchors=pairs, classes=classes, **how)

    def scores(x: te.Tensor) -> te.Tensor:
        return decode.yolo_scores(x, anchors=len(pairs), classes=classes)

    call_te = site.builder.call_te
    made = [
        site.emit(call_te(boxes, features, primfunc_name_hint="yolo_boxes")),
        site.emit(call_te(scores, features, primfunc_name_hint="yolo_scores")),
    ]
    return relax.Tuple(made)


register(SSD_DECODE, infer_type=_infer_ssd, lower=_lower_ssd, gpu=PERFORMS)
register(YOLO_DECODE, infer_type=_infer_yolo, lower=_lower_yolo, gpu=PERFORMS)
