"""Kernels that make boxes: prior boxes, decoding, and moving valid ones to the front."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from tvm_edge.relay_passes.lower.kernel_site import KernelSite, is_empty
from tvm_edge.schedules.vision import anchors, compaction, decode

__all__ = [
    "lower_multibox_prior",
    "lower_multibox_transform_loc",
    "lower_ssd_decode",
    "lower_valid_counts",
    "lower_yolo_decode",
]


def lower_multibox_prior(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.multibox_prior``: a constant."""
    attrs, shape, dtype = call.attrs, call.args[0].ty.shape, str(call.ty.dtype)
    if is_empty(call.ty.shape):
        return site.zeros(call.ty.shape, dtype)
    height, width = (int(size) for size in list(shape)[2:])
    names = ("sizes", "ratios", "steps", "offsets")
    how: dict[str, Any] = {name: [float(v) for v in attrs[name]] for name in names}
    boxes = anchors.prior_boxes(height, width, **how, clip=bool(attrs["clip"]))
    return relax.const(boxes.astype(dtype), dtype)


def lower_ssd_decode(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.ssd_decode``."""
    attrs = call.attrs
    if is_empty(call.ty.shape):
        return site.zeros(call.ty.shape, str(call.ty.dtype))
    how = ([float(v) for v in attrs["variances"]], str(attrs["anchor_format"]))
    return site.builder.call_te(decode.ssd_boxes, *call.args, *how, primfunc_name_hint="ssd_decode")


def lower_yolo_decode(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.yolo_decode``: two kernels, either of which others can be fused with."""
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


def lower_multibox_transform_loc(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``tvm_edge.multibox_transform_loc``."""
    probabilities, attrs = call.args[0].ty, call.attrs
    if not _is_static(probabilities):
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


def lower_valid_counts(site: KernelSite, call: relax.Call) -> relax.Expr:
    """``relax.vision.get_valid_counts``."""
    data, attrs = call.args[0].ty, call.attrs
    if not _is_static(data):
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


def _is_static(tensor: relax.TensorType) -> bool:
    shape = tensor.shape
    return isinstance(shape, relax.ShapeExpr) and all(
        isinstance(size, tirx.IntImm) for size in shape.values
    )
