"""Elements of an axis that contribute to those of a resized one, and their weights.

ONNX's definition of Resize, calculated in float32 as ONNX Runtime does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["LONGEST", "Axis", "Filter", "positions_of", "repeated", "taps_of"]

LONGEST = 1 << 24
"""Limit of an axis whose indices are listed."""


@dataclass(frozen=True)
class Filter:
    """Mapping from elements of the operand to elements of the result."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool


@dataclass(frozen=True)
class Axis:
    """Lengths of an axis, and the part of it that is resized.

    Attributes
    ----------
    old, new : int
    scale : float
        Their ratio before the new length was rounded.
    start, end : float
        With tf_crop_and_resize the part of the axis, of which 1 is the whole.
    """

    old: int
    new: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_kept(self) -> bool:
        """Return whether the result is the operand."""
        return self == Axis(self.old, self.old, 1.0)


def repeated(axis: Axis, how: Filter) -> int:
    """Return how often each element stands in the result, one after the other; 0 if it does not."""
    factor = axis.new // max(axis.old, 1)
    if how.mode != "nearest" or not factor or axis.new != axis.old * factor:
        return 0
    places = np.arange(axis.new) // factor
    return factor if np.array_equal(taps_of(axis, how)[0][:, 0], places) else 0


def taps_of(axis: Axis, how: Filter) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements that make each one of the result, and weights: two ``[new, taps]``."""
    position = positions_of(axis, how.coordinates).astype("float64")
    # Far outside is as good as outside, and an integer; NaN is outside of every crop.
    position = np.nan_to_num(np.clip(position, -LONGEST, 2 * LONGEST))
    old, scale = axis.old, axis.scale
    if how.mode == "nearest":
        index = {
            "round_prefer_floor": np.ceil(position - 0.5),
            "round_prefer_ceil": np.floor(position + 0.5),
            "floor": np.floor(position),
            "ceil": np.ceil(position),
            # Of opset 10: its tests, and ONNX Runtime, go up where the axis becomes shorter.
            "simple": np.ceil(position) if scale < 1 else np.floor(position),
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
    weights = _weight((index - position[:, None]) * stretch, how)
    if how.exclude_outside:
        weights = np.where((index < 0) | (index >= old), 0.0, weights)
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(index, 0, old - 1), weights


def _weight(distance: np.ndarray, how: Filter) -> np.ndarray:
    """Evaluate the filter: a triangle, or Keys' cubic."""
    d = np.abs(distance)
    if how.mode == "linear":
        return np.clip(1 - d, 0, 1)
    a = how.cubic
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def positions_of(axis: Axis, coordinates: str) -> np.ndarray:
    """Return the position in the operand of each element of the result."""
    # In float32, as ONNX Runtime: nearest depends on what 0.3 is rounded to.
    old, new, scale = (np.float32(value) for value in (axis.old, axis.new, axis.scale))
    y, one, half = np.arange(axis.new, dtype="float32"), np.float32(1), np.float32(0.5)
    half_pixel = (y + half) / scale - half
    if coordinates == "asymmetric":
        return y / scale
    if coordinates == "half_pixel":
        return half_pixel
    if coordinates == "tf_half_pixel_for_nn":  # of opsets 11 and 12
        return (y + half) / scale
    if coordinates == "pytorch_half_pixel":
        return half_pixel if axis.new > 1 else np.zeros(axis.new, "float32")
    if coordinates == "half_pixel_symmetric":
        offset = old / 2 * (one - new / (scale * old))
        return offset + (y + half) / scale - half
    if coordinates == "align_corners":
        # As in ONNX Runtime, PyTorch and ONNX's text; its tests use the length before rounding.
        return y * (old - one) / (new - one) if axis.new > 1 else np.zeros(axis.new, "float32")
    if coordinates == "tf_crop_and_resize":
        start, end = np.float32(axis.start), np.float32(axis.end)
        if axis.new > 1:
            return start * (old - one) + y * (end - start) * (old - one) / (new - one)
        return np.full(axis.new, half * (start + end) * (old - one))
    raise NotImplementedError(f"Resize with {coordinates}")
