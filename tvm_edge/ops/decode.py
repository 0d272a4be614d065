"""Decoding of what single-shot detectors predict."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tvm_edge.ops import registry

__all__ = [
    "MULTIBOX_TRANSFORM_LOC",
    "SSD_DECODE",
    "YOLO_DECODE",
    "multibox_transform_loc",
    "ssd_decode",
    "yolo_decode",
]

MULTIBOX_TRANSFORM_LOC = "tvm_edge.multibox_transform_loc"
SSD_DECODE = "tvm_edge.ssd_decode"
YOLO_DECODE = "tvm_edge.yolo_decode"


def multibox_transform_loc(
    cls_prob: relax.Expr,
    loc_pred: relax.Expr,
    anchor: relax.Expr,
    *,
    clip: bool = True,
    threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
) -> relax.Call:
    """Boxes of anchors that show anything but background, as MXNet's ``MultiBoxDetection`` begins.

    Liu et al., SSD, ECCV 2016, equation 2. What Relay called ``multibox_transform_loc``, and other
    than ``relax.vision.multibox_transform_loc``, which keeps all anchors and all classes.

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
        What encodings are multiplied by.

    Returns
    -------
    relax.Call
        ``rows``, ``(batch, anchors, 6)``: class without the background, score, x1, y1, x2, y2, in
        the order of the anchors, and -1 in the rows behind them; ``valid_count``, ``(batch,)``
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
        variances=_four(MULTIBOX_TRANSFORM_LOC, variances),
    )


def ssd_decode(
    encodings: relax.Expr,
    anchors: relax.Expr,
    *,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    anchor_format: str = "center",
) -> relax.Call:
    """Boxes from encodings relative to anchors.

    Liu et al., SSD, ECCV 2016, equation 2. The axes may come in either order, in anchors, encodings
    and boxes alike.

    Parameters
    ----------
    encodings : relax.Expr
        ``(..., anchors, 4)``: shifts on both axes, then the logarithms of the sizes.
    anchors : relax.Expr
        ``(anchors, 4)``, or with more axes in front that `encodings` have or that are 1.
    variances : sequence of float
        What encodings are multiplied by: one over TensorFlow's box scales.
    anchor_format : {"center", "corner"}
        Whether anchors are centre and size or two corners.

    Returns
    -------
    relax.Call
        Of the shape of `encodings`: the lower corner, then the upper. A NaN or an infinity stays in
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
        variances=_four(SSD_DECODE, variances),
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
    """Boxes and scores from one map of a YOLO detector.

    Redmon and Farhadi, YOLOv3, arXiv:1804.02767, section 2.1. `scale_x_y` is YOLOv4's
    (arXiv:2004.10934, section 3.4, "eliminate grid sensitivity"): it lets centres reach the cell's
    edge. YOLOv5 has ``scale_x_y=2, growth="squared sigmoid"``.

    Parameters
    ----------
    features : relax.Expr
        ``(batch, A * (5 + classes), height, width)``, of each anchor x, y, width, height,
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


def _four(name: str, variances: Sequence[float]) -> list[float]:
    if len(variances) != 4:
        raise ValueError(f"{name}: variances must be four numbers, not {variances}")
    return [float(variance) for variance in variances]


def _is_other(a: object, b: object) -> bool:
    """Whether two lengths are known to differ."""
    return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) != int(b)


def _refuse(name: str, what: str, tensors: Sequence[relax.TensorType]) -> ValueError:
    each = ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in tensors)
    return ValueError(f"{name}: {what}, not {each}")


def _infer_transform(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    tensors = [arg.ty for arg in call.args]
    probabilities, locations, anchors = tensors
    wanted = "it takes floats (batch, classes, anchors), (batch, 4 * anchors), (1, anchors, 4)"
    dtype = str(probabilities.dtype)
    kinds = {str(tensor.dtype) for tensor in tensors}
    if [t.ndim for t in tensors] != [3, 2, 3] or kinds != {dtype} or dtype[:5] != "float":
        raise _refuse(MULTIBOX_TRANSFORM_LOC, wanted, tensors)
    device = probabilities.vdevice
    if any(tensor.shape is None for tensor in tensors):
        rows = relax.TensorType(dtype=dtype, vdevice=device, ndim=3)
        return relax.TupleType([rows, relax.TensorType(dtype="int32", vdevice=device, ndim=1)])
    batch, classes, count = probabilities.shape
    if isinstance(classes, tirx.IntImm) and int(classes) == 0:
        raise _refuse(MULTIBOX_TRANSFORM_LOC, "there must be a class, the background", tensors)
    pairs = [
        (locations.shape[0], batch),
        (anchors.shape[1], count),
        (locations.shape[1], _times_four(count)),
        (anchors.shape[0], tirx.IntImm("int64", 1)),
        (anchors.shape[2], tirx.IntImm("int64", 4)),
    ]
    if any(_is_other(a, b) for a, b in pairs):
        raise _refuse(MULTIBOX_TRANSFORM_LOC, wanted, tensors)
    return relax.TupleType(
        [
            relax.TensorType([batch, count, 6], dtype, device),
            relax.TensorType([batch], "int32", device),
        ]
    )


def _times_four(count: tirx.Expr) -> tirx.Expr:
    return tirx.IntImm("int64", 4 * int(count)) if isinstance(count, tirx.IntImm) else count * 4


def _infer_ssd(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    tensors = [arg.ty for arg in call.args]
    encodings, anchors = tensors
    dtype = str(encodings.dtype)
    if dtype[:5] != "float" or dtype != str(anchors.dtype) or anchors.ndim < 2:
        raise _refuse(SSD_DECODE, "encodings and anchors must be floats of one type", tensors)
    if encodings.shape is None or anchors.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=encodings.vdevice, ndim=encodings.ndim)
    own = list(encodings.shape)[encodings.ndim - anchors.ndim :]
    four = tirx.IntImm("int64", 4)
    fits = encodings.ndim >= anchors.ndim and not any(
        _is_other(shape[-1], four) for shape in (encodings.shape, anchors.shape)
    )
    if not fits or any(
        _is_other(a, b) and int(a) != 1 for a, b in zip(anchors.shape, own, strict=True)
    ):
        raise _refuse(SSD_DECODE, "it takes (..., anchors, 4) and (anchors, 4)", tensors)
    return relax.TensorType(encodings.shape, dtype, encodings.vdevice)


def _infer_yolo(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    (features,) = (arg.ty for arg in call.args)
    classes, count = int(call.attrs["classes"]), len(call.attrs["anchors"]) // 2
    channels = count * (5 + classes)
    wanted = f"features must be floats (batch, {channels}, height, width)"
    dtype, device = str(features.dtype), features.vdevice
    if features.ndim != 4 or dtype[:5] != "float":
        raise _refuse(YOLO_DECODE, wanted, [features])
    if features.shape is None:
        shapeless = relax.TensorType(dtype=dtype, vdevice=device, ndim=3)
        return relax.TupleType([shapeless, shapeless])
    batch, found, height, width = features.shape
    if _is_other(found, tirx.IntImm("int64", channels)):
        raise _refuse(YOLO_DECODE, wanted, [features])
    boxes = height * width * count
    return relax.TupleType(
        [
            relax.TensorType([batch, boxes, 4], dtype, device),
            relax.TensorType([batch, classes, boxes], dtype, device),
        ]
    )


registry.register(MULTIBOX_TRANSFORM_LOC, _infer_transform)
registry.register(SSD_DECODE, _infer_ssd)
registry.register(YOLO_DECODE, _infer_yolo)
