"""Resize and Upsample where TVM's leave ONNX's definition.

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
from tvm import relax

from tvm_edge.frontend.operators.base import (
    Attributes,
    Converter,
    constant,
    operand,
    static_shape,
    text,
)
from tvm_edge.schedules.vision.resize_taps import LONGEST, Axis, Filter, positions_of, taps_of

__all__ = ["RESIZE"]

_MOST_TAPS = 32


def _resize(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    x, shape = inputs[0], static_shape(inputs[0])
    roi = None
    if attrs["opset"] < 11:
        scales, sizes = constant(operand(inputs, 1)), None
        how = Filter(text(attrs, "mode", "nearest"), "asymmetric", "floor", -0.75, False, False)
    else:
        roi = operand(inputs, 1)
        scales, sizes = constant(operand(inputs, 2)), constant(operand(inputs, 3))
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
    region = constant(roi)
    if crops and region is not None:
        axes = _cropped(axes, named, region)
    elif _tvm_agrees(axes, how, attrs):
        return None
    elif crops:
        raise NotImplementedError("Resize with tf_crop_and_resize of a region from the run")
    return _by_tables(bb, x, axes, how, float(attrs.get("extrapolation_value", 0.0)))


def _by_tables(
    bb: relax.BlockBuilder, x: relax.Expr, axes: Sequence[Axis], how: Filter, outside: float
) -> relax.Expr:
    """The resize as sums of elements at constant indices; `outside` is what a crop has there."""
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
            empty = empty | _along(beyond, number, len(axes))
    if empty.any():
        value = relax.const(np.asarray(outside, calculated), calculated)
        x = bb.emit(relax.op.where(relax.const(empty, "bool"), value, x))
    return x if calculated == dtype else bb.emit(relax.op.astype(x, dtype))


def _upsample(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Resize of opset 10 under its old name; its scales were an attribute once."""
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
    """Scale and new length of every axis."""
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
    """The axes with their starts and ends, of which the operand has all starts first."""
    if roi.shape != (2 * len(named),):
        raise ValueError(f"the roi of a Resize has {2 * len(named)} numbers, not {roi.size}")
    result = list(axes)
    for i, axis in enumerate(named):
        start, end = float(roi[i]), float(roi[i + len(named)])
        result[axis] = replace(axes[axis], start=start, end=end)
    return result


def _tvm_agrees(axes: Sequence[Axis], how: Filter, attrs: Attributes) -> bool:
    """Whether TVM's converter does the same, on any device."""
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
    """Whether coordinates have few bits, so that every device calculates the same."""
    if axis.scale * axis.old != axis.new:
        return False
    mantissa, exponent = math.frexp(axis.scale)
    return mantissa == 0.5 and abs(exponent) < 10


def _along(values: np.ndarray, axis: int, dimensions: int) -> np.ndarray:
    """A vector as a tensor that is broadcast along all other axes."""
    shape = [1] * dimensions
    shape[axis] = len(values)
    return values.reshape(shape)


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
            weight = _along(weights[:, k], number, x.ty.ndim).astype(dtype)
            term = relax.op.multiply(term, relax.const(weight, dtype))
        terms.append(bb.emit(term))
    total = terms[0]
    for term in terms[1:]:
        total = bb.emit(relax.op.add(total, term))
    return total


RESIZE: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
