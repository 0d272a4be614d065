"""Resize and Upsample: converters where TVM leaves ONNX's definition, kernels for a CPU.

TVM resizes the last axes by the ratio of the lengths. ONNX divides coordinates by the given scale,
which differs where the new length was rounded; may name any axes; and may widen the filter
(antialias). And TVM's kernels calculate coordinates on the device, where the last bit, and with it
the nearest element, is another on another device. There a resize is, axis by axis, a weighted sum
of elements taken at constant indices, which are calculated here as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, operand, spread, text
from tvm_edge.ops.flops import Operation, UnknownShape, elements, known
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import FOLLOWS, PERFORMS, register
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape
from tvm_edge.schedules.vision.resize import resize_planes, resize_tables
from tvm_edge.schedules.vision.resize_taps import LONGEST, Axis, Filter, positions_of, taps_of

__all__ = ["FLOATS", "interpolation_flops"]

FLOATS = ("float16", "float32", "float64")
"""Types that kernels of a CPU interpolate."""

_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")

_MOST_TAPS = 32


def _resize(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    x, shape = inputs[0], static_shape(inputs[0].ty)
    roi = None
    if attrs["opset"] < 11:
        scales, sizes = constant_of(operand(inputs, 1)), None
        how = Filter(text(attrs, "mode", "nearest"), "asymmetric", "floor", -0.75, False, False)
    else:
        roi = operand(inputs, 1)
        scales, sizes = constant_of(operand(inputs, 2)), constant_of(operand(inputs, 3))
        how = Filter(
            text(attrs, "mode", "nearest"),
            text(attrs, "coordinate_transformation_mode", "half_pixel"),
            text(attrs, "nearest_mode", "round_prefer_floor"),
            float(attrs.get("cubic_coeff_a", -0.75)),
            bool(attrs.get("antialias", 0)),
            bool(attrs.get("exclude_outside", 0)),
        )
    scales = None if scales is None or not scales.size else scales
    sizes = None if sizes is None or not sizes.size else sizes
    if shape is None or (scales is None and sizes is None):
        raise NotImplementedError("Resize of, or to, a shape known only at run time")
    named = [int(a) % len(shape) for a in attrs.get("axes", range(len(shape)))]
    axes = _target(shape, named, scales, sizes, attrs)
    if max(axis.new for axis in axes) > LONGEST:
        raise NotImplementedError(f"Resize to {[axis.new for axis in axes]}")
    crops = how.coordinates == "tf_crop_and_resize"
    region = constant_of(roi)
    if crops and region is not None:
        axes = _cropped(axes, named, region)
    elif _tvm_agrees(axes, how, attrs) and (sizes is None or operand(inputs, 2) is None):
        return None  # to TVM, which takes no empty scales beside sizes as opsets 11 and 12 do
    elif crops:
        raise NotImplementedError("Resize with tf_crop_and_resize of a region from the run")
    return _by_tables(bb, x, axes, how, float(attrs.get("extrapolation_value", 0.0)))


def _by_tables(
    bb: relax.BlockBuilder, x: relax.Expr, axes: Sequence[Axis], how: Filter, outside: float
) -> relax.Expr:
    """Sum elements at constant indices; `outside` is the value of a crop beyond the picture."""
    dtype = str(x.ty.dtype)
    interpolates = how.mode != "nearest" and not all(axis.is_kept for axis in axes)
    calculated = dtype if "float" in dtype or not interpolates else "float32"
    if calculated != dtype:
        x = bb.emit(relax.op.astype(x, calculated))
    empty = np.zeros([1] * len(axes), "bool")
    for number, axis in enumerate(axes):
        if axis.is_kept:
            continue
        x = _resize_axis(bb, x, number, axis, how)
        if how.coordinates == "tf_crop_and_resize":
            position = positions_of(axis, how.coordinates)
            beyond = ~((position >= 0) & (position <= axis.old - 1))
            empty = empty | spread(beyond, number, len(axes))
    if empty.any():
        value = relax.const(np.asarray(outside, calculated), calculated)
        x = bb.emit(relax.op.where(relax.const(empty, "bool"), value, x))
    return x if calculated == dtype else bb.emit(relax.op.astype(x, dtype))


def _upsample(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Convert Resize of opset 10 under its old name; its scales were an attribute once."""
    scales = operand(inputs, 1)
    if scales is None:
        scales = relax.const(np.asarray(attrs["scales"], "float32"), "float32")
    return _resize(bb, [inputs[0], scales], {**attrs, "opset": 10})


def _target(
    shape: Sequence[int],
    named: Sequence[int],
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    attrs: Attributes,
) -> list[Axis]:
    """Return scale and new length of every axis."""
    axes = [Axis(length, length, 1.0) for length in shape]
    if scales is not None:
        for axis, scale in zip(named, scales.astype("float32"), strict=True):
            # In float32, as ONNX: 2.3 times 10 is 23.
            new = math.floor(scale * np.float32(shape[axis]))
            axes[axis] = Axis(shape[axis], new, float(scale))
        return axes
    assert sizes is not None
    wanted = [int(size) for size in sizes]
    ratios = [size / shape[axis] for axis, size in zip(named, wanted, strict=True)]
    policy = text(attrs, "keep_aspect_ratio_policy", "stretch")
    for axis, size, ratio in zip(named, wanted, ratios, strict=True):
        if policy == "stretch":
            axes[axis] = Axis(shape[axis], size, ratio)
        else:
            scale = min(ratios) if policy == "not_larger" else max(ratios)
            axes[axis] = Axis(shape[axis], math.floor(scale * shape[axis] + 0.5), scale)
    return axes


def _cropped(axes: Sequence[Axis], named: Sequence[int], roi: np.ndarray) -> list[Axis]:
    """Give the axes their starts and ends; the operand has all starts first."""
    if roi.shape != (2 * len(named),):
        raise ValueError(f"the roi of a Resize has {2 * len(named)} numbers, not {roi.size}")
    result = list(axes)
    for i, axis in enumerate(named):
        start, end = float(roi[i]), float(roi[i + len(named)])
        result[axis] = replace(axes[axis], start=start, end=end)
    return result


def _tvm_agrees(axes: Sequence[Axis], how: Filter, attrs: Attributes) -> bool:
    """Return whether TVM's converter gives the same results, on any device."""
    exact = all(abs(axis.scale * axis.old - axis.new) < 1e-4 * axis.new for axis in axes)
    if how.mode == "nearest":
        exact = all(map(_is_exact_in_binary, axes)) and how.coordinates != "align_corners"
    return (
        attrs["opset"] >= 11
        and len(axes) in (3, 4, 5)
        and exact
        and all(axis.is_kept for axis in axes[:2])
        and "axes" not in attrs
        and not how.antialias
        and how.coordinates != "half_pixel_symmetric"
        and text(attrs, "keep_aspect_ratio_policy", "stretch") == "stretch"
    )


def _is_exact_in_binary(axis: Axis) -> bool:
    """Return whether coordinates have few bits, so that every device calculates the same."""
    if axis.scale * axis.old != axis.new:
        return False
    mantissa, exponent = math.frexp(axis.scale)
    return mantissa == 0.5 and abs(exponent) < 10


def _resize_axis(
    bb: relax.BlockBuilder, x: relax.Expr, number: int, axis: Axis, how: Filter
) -> relax.Expr:
    indices, weights = taps_of(axis, how)
    if indices.shape[1] > _MOST_TAPS:
        raise NotImplementedError(f"Resize with antialias from {axis.old} to {axis.new}")
    dtype = str(x.ty.dtype)
    terms = []
    for k in range(indices.shape[1]):
        term = relax.op.take(x, relax.const(indices[:, k], "int64"), number, mode="clip")
        if how.mode != "nearest":
            weight = spread(weights[:, k], number, x.ty.ndim).astype(dtype)
            term = relax.op.multiply(term, relax.const(weight, dtype))
        terms.append(bb.emit(term))
    total = terms[0]
    for term in terms[1:]:
        total = bb.emit(relax.op.add(total, term))
    return total


def _lower_resize2d(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Interpolate planes on a CPU; a GPU has a work-item for each element of TVM's kernel."""
    data, attrs = call.args[0], call.attrs
    coordinates, dtype = str(attrs.coordinate_transformation_mode), str(data.ty.dtype)
    if (
        site.spec.launches_grids
        or str(attrs.method) not in ("linear", "cubic")
        or coordinates not in _COORDINATES
        or str(attrs.layout) != "NCHW"
        or dtype not in FLOATS
        or is_empty(call.ty.shape)
    ):
        return call
    batch, channels, *old = data.ty.shape
    new = list(call.ty.shape)[2:]
    if not all(isinstance(size, tirx.IntImm) for size in (*old, *new)):
        return call
    axes = [Axis(int(o), int(n), int(n) / int(o)) for o, n in zip(old, new, strict=True)]
    alpha, exclude = float(attrs.cubic_alpha), bool(attrs.cubic_exclude)
    how = Filter(str(attrs.method), coordinates, "", alpha, False, exclude)
    kind = "float64" if dtype == "float64" else "float32"
    tables = resize_tables(taps_of(axes[0], how), taps_of(axes[1], how), kind)
    count = batch * channels
    planes = int(count) if isinstance(count, int | tirx.IntImm) else count
    kernel = resize_planes(planes, (axes[0].old, axes[1].old), dtype, tables, site.spec)
    flat = site.reshape(data, [planes, *old])
    given = [flat, *(relax.const(table, str(table.dtype)) for table in tables)]
    return site.reshape(site.run(kernel, "resize", given)[0], call.ty.shape)


def _resize_flops(op: Operation) -> int:
    axes = sum(a != b for a, b in zip(known(op.inputs[0]), known(op.outputs[0]), strict=True))
    return interpolation_flops(op, b"nearest", axes)


def interpolation_flops(op: Operation, default: bytes, axes: int) -> int:
    """Count the weighted sum of each element's neighbours along `axes` axes."""
    mode = op.attributes.get("mode", default).removeprefix(b"bi")
    taps = {b"nearest": 0, b"linear": 2, b"cubic": 4}.get(mode)
    if taps is None:
        raise UnknownShape
    return 2 * taps**axes * elements(op.outputs[0]) if taps and axes else 0


register("Resize", convert=_resize, forming=(1, 2, 3), settings=(1, 2), flops=_resize_flops)
register("Upsample", convert=_upsample, forming=(1,), settings=(1,), flops=_resize_flops)

register(
    "relax.image.resize2d",
    lower=_lower_resize2d,
    gpu=PERFORMS,
    float16=FOLLOWS,
    blocks="image",
)
register("relax.image.resize3d", gpu=PERFORMS)
