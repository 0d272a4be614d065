"""Resize and Upsample where TVM's leave ONNX's definition.

TVM resizes the last axes by the ratio of the lengths. ONNX divides coordinates by the given scale,
which differs where the new length was rounded; may name any axes; and may widen the filter
(antialias). There a resize is, axis by axis, a weighted sum of elements taken at constant indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvm_edge.frontend.operators.base import (
    Attributes,
    Converter,
    constant,
    operand,
    static_shape,
)

__all__ = ["RESIZE"]

_MOST_TAPS = 32


@dataclass(frozen=True)
class _Filter:
    """How elements of the result are made of elements of the operand."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool


def _resize(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    x, shape = inputs[0], static_shape(inputs[0])
    if attrs["opset"] < 11:
        scales, sizes = constant(operand(inputs, 1)), None
        how = _Filter(_text(attrs, "mode", "nearest"), "asymmetric", "floor", -0.75, False, False)
    else:
        scales, sizes = constant(operand(inputs, 2)), constant(operand(inputs, 3))
        how = _Filter(
            _text(attrs, "mode", "nearest"),
            _text(attrs, "coordinate_transformation_mode", "half_pixel"),
            _text(attrs, "nearest_mode", "round_prefer_floor"),
            float(attrs.get("cubic_coeff_a", -0.75)),
            bool(attrs.get("antialias", 0)),
            bool(attrs.get("exclude_outside", 0)),
        )
    scales = None if scales is None or not scales.size else scales
    sizes = None if sizes is None or not sizes.size else sizes
    if shape is None or (scales is None and sizes is None):
        raise NotImplementedError("Resize of, or to, a shape known only at run time")
    axes = [int(a) % len(shape) for a in attrs.get("axes", range(len(shape)))]
    factors, lengths = _target(shape, axes, scales, sizes, attrs)
    if _tvm_agrees(shape, factors, lengths, how, attrs):
        return None
    if how.coordinates == "tf_crop_and_resize":
        raise NotImplementedError("Resize with tf_crop_and_resize in this form")
    if how.mode != "nearest" and "float" not in str(x.ty.dtype):
        raise NotImplementedError(f"Resize of {x.ty.dtype} by interpolation in this form")
    for axis, (factor, length) in enumerate(zip(factors, lengths, strict=True)):
        if factor != 1.0 or length != shape[axis]:
            x = _resize_axis(bb, x, axis, shape[axis], length, factor, how)
    return x


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
    axes: Sequence[int],
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    attrs: Attributes,
) -> tuple[list[float], list[int]]:
    """Scale and new length of every axis."""
    factors, lengths = [1.0] * len(shape), list(shape)
    if scales is not None:
        for axis, scale in zip(axes, scales.tolist(), strict=True):
            factors[axis], lengths[axis] = scale, math.floor(scale * shape[axis])
        return factors, lengths
    assert sizes is not None
    wanted = [int(size) for size in sizes]
    ratios = [size / shape[axis] for axis, size in zip(axes, wanted, strict=True)]
    policy = _text(attrs, "keep_aspect_ratio_policy", "stretch")
    for axis, size, ratio in zip(axes, wanted, ratios, strict=True):
        if policy == "stretch":
            factors[axis], lengths[axis] = ratio, size
        else:
            factors[axis] = min(ratios) if policy == "not_larger" else max(ratios)
            lengths[axis] = math.floor(factors[axis] * shape[axis] + 0.5)
    return factors, lengths


def _tvm_agrees(
    shape: Sequence[int],
    factors: Sequence[float],
    lengths: Sequence[int],
    how: _Filter,
    attrs: Attributes,
) -> bool:
    """Whether TVM's converter does the same."""
    exact = all(
        abs(factor * old - new) < 1e-4 * new
        for factor, old, new in zip(factors, shape, lengths, strict=True)
    )
    return (
        attrs["opset"] >= 11
        and len(shape) in (3, 4, 5)
        and exact
        and list(lengths[:2]) == list(shape[:2])
        and "axes" not in attrs
        and not how.antialias
        and how.coordinates != "half_pixel_symmetric"
        and _text(attrs, "keep_aspect_ratio_policy", "stretch") == "stretch"
    )


def _resize_axis(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    axis: int,
    old: int,
    new: int,
    scale: float,
    how: _Filter,
) -> relax.Expr:
    indices, weights = _taps(old, new, scale, how)
    if indices.shape[1] > _MOST_TAPS:
        raise NotImplementedError(f"Resize with antialias from {old} to {new}")
    shape = [1] * x.ty.ndim
    shape[axis] = new
    terms = []
    for k in range(indices.shape[1]):
        term = relax.op.take(x, relax.const(indices[:, k], "int64"), axis, mode="clip")
        if how.mode != "nearest":
            weight = weights[:, k].reshape(shape).astype(str(x.ty.dtype))
            term = relax.op.multiply(term, relax.const(weight, str(x.ty.dtype)))
        terms.append(bb.emit(term))
    total = terms[0]
    for term in terms[1:]:
        total = bb.emit(relax.op.add(total, term))
    return total


def _taps(old: int, new: int, scale: float, how: _Filter) -> tuple[np.ndarray, np.ndarray]:
    """Which elements make each element of the result, and by what weight: two [new, taps]."""
    position = _positions(old, new, scale, how.coordinates).astype("float64")
    if how.mode == "nearest":
        index = {
            "round_prefer_floor": np.ceil(position - 0.5),
            "round_prefer_ceil": np.floor(position + 0.5),
            "floor": np.floor(position),
            "ceil": np.ceil(position),
        }[how.nearest]
        index = np.clip(index.astype("int64"), 0, old - 1)[:, None]
        return index, np.ones(index.shape)
    reach = 2 if how.mode == "cubic" else 1
    stretch = min(scale, 1.0) if how.antialias else 1.0
    # Taps count from the pixel on the left; a position on a pixel is at distance 1 from its left.
    left = np.ceil(position).astype("int64") - 1
    first = math.floor(-reach / stretch) + 1
    offsets = np.arange(first, 2 - first)
    index = left[:, None] + offsets
    weights = _kernel((index - position[:, None]) * stretch, how)
    if how.exclude_outside:
        weights = np.where((index < 0) | (index >= old), 0.0, weights)
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(index, 0, old - 1), weights


def _kernel(distance: np.ndarray, how: _Filter) -> np.ndarray:
    """The filter: a triangle, or Keys' cubic."""
    d = np.abs(distance)
    if how.mode == "linear":
        return np.clip(1 - d, 0, 1)
    a = how.cubic
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _positions(old: int, new: int, scale: Any, coordinates: str) -> np.ndarray:
    """Where in the operand each element of the result lies."""
    # In float32, as ONNX Runtime: nearest depends on what 0.3 is rounded to.
    y, scale = np.arange(new, dtype="float32"), np.float32(scale)
    half_pixel = (y + np.float32(0.5)) / scale - np.float32(0.5)
    if coordinates == "asymmetric":
        return y / scale
    if coordinates == "half_pixel":
        return half_pixel
    if coordinates == "pytorch_half_pixel":
        return half_pixel if new > 1 else np.zeros(new)
    if coordinates == "half_pixel_symmetric":
        return old / 2 * (1 - new / (scale * old)) + half_pixel
    if coordinates == "align_corners":
        # As ONNX Runtime, and ONNX's text; its tests take the length before rounding.
        return y * (old - 1) / (new - 1) if new > 1 else np.zeros(new)
    raise NotImplementedError(f"Resize with {coordinates}")


def _text(attrs: Attributes, name: str, default: str) -> str:
    value = attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


RESIZE: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
