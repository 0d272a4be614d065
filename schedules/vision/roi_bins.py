"""Bins of a region in a feature map: the definition of ROIAlign and ROI pooling.

Both are separable: rows and columns of bins are found by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx

from tvm_edge.schedules.emit import hold

__all__ = ["Axis", "PixelBins", "Pixels", "PointBins", "Points", "Tap", "calculated_in", "nearest"]

# Bounds of numbers converted to an integer, so that sums of two stay in 32 bits.
_FAR = 1 << 28


def calculated_in(dtype: str) -> str:
    """Return the type of coordinates and accumulators for elements of a type."""
    return "float64" if dtype == "float64" else "float32"


def _number(value: Any, kind: str) -> tirx.Expr:
    """Return a number, or a length of the run, in the type of coordinates."""
    return tirx.Cast(kind, value) if isinstance(value, tirx.Expr) else tirx.const(value, kind)


def nearest(index: tirx.Expr, count: Any) -> tirx.Expr:
    """Clip `index`, a number of any type, to one of `count` positions; NaN becomes the first."""
    kind = index.ty.dtype
    last = _number(count - 1, kind)
    # Comparisons with NaN are false; maximum and minimum differ between devices.
    low = tirx.Select(index > tirx.const(0, kind), index, tirx.const(0, kind))
    return tirx.Select(low < last, low, last).astype("int32")


def _clipped(value: tirx.Expr, low: Any, high: Any) -> tirx.Expr:
    """Clip `value` to two bounds; NaN becomes the lower one."""
    above = tirx.Select(value > low, value, low)
    return tirx.Select(above < high, above, high)


Tap = tuple[tirx.Expr, tirx.Expr]
"""Pixel, ``int32`` and always inside of the axis, and its weight."""


class Axis(Protocol):
    """Bins of one region on one axis: each has taps, some at a step."""

    def span(self, bin_: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Return the first step of a bin, and how many it has inside of the axis."""

    def taps(self, bin_: tirx.Expr, step: tirx.Expr) -> Sequence[Tap]:
        """Return the taps of a step."""

    def whole(self, bin_: tirx.Expr) -> tirx.Expr:
        """Return whether a bin has steps, and all are inside of the axis."""


@dataclass(frozen=True)
class Points:
    """Placement of ROIAlign's points on an axis.

    Attributes
    ----------
    bins : int
        Of a region.
    ratio : int
        Points of a bin; 0: by the region's size.
    scale, offset : float
        From a coordinate ``c`` to the pixel ``c * scale - offset``.
    at_least_one : bool
        Whether regions are never smaller than a pixel.
    """

    bins: int
    ratio: int
    scale: float
    offset: float
    at_least_one: bool

    def most(self, size: int) -> int:
        """Return the maximum number of points of a region inside of an axis of `size` pixels."""
        # Where a bin's length decides, its points are at least half a pixel apart, unless it has
        # one; some more at the ends of each are looked at.
        return self.bins * self.ratio if self.ratio else 2 * (size + 2) + 8 * self.bins

    def of(self, start: tirx.Expr, end: tirx.Expr, size: int, kind: str) -> PointBins:
        """Compute the bins of a region, in the order and type of ONNX Runtime."""

        def number(value: Any) -> tirx.Expr:
            return _number(value, kind)

        first = hold(start.astype(kind) * number(self.scale) - number(self.offset))
        last = end.astype(kind) * number(self.scale) - number(self.offset)
        length = last - first
        if self.at_least_one:
            length = tirx.Select(length > number(1), length, number(1))
        step = hold(length / number(self.bins))
        if self.ratio:
            return PointBins(self, size, kind, first, step, number(self.ratio))
        count = tirx.ceil(step)
        count = hold(tirx.Select(count > number(0), count, number(0)))
        return PointBins(self, size, kind, first, step, count)


@dataclass(frozen=True)
class PointBins:
    """Bins of one region on one axis, by points.

    Attributes
    ----------
    points : Points
    size : int
        Pixels of the axis.
    kind : str
        Type of the coordinates.
    first, step : tirx.Expr
        Where the region begins, and the length of a bin, in pixels.
    count : tirx.Expr
        Points of a bin, those outside of the axis included; a floating-point number.
    """

    points: Points
    size: int
    kind: str
    first: tirx.Expr
    step: tirx.Expr
    count: tirx.Expr

    def span(self, bin_: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Return the first point of a bin that may be inside of the axis, and how many may be.

        A region can be any number of times as large as the feature map.
        """
        if self.points.ratio:
            return tirx.const(0, "int32"), tirx.const(self.points.ratio, "int32")
        zero, two = tirx.const(0, self.kind), tirx.const(2, self.kind)
        start = self.first + bin_.astype(self.kind) * self.step
        density = self.count / self.step
        most = 2 * (self.size + 2) + 8
        top = _clipped(self.count, zero, tirx.const(_FAR, self.kind))
        low = tirx.floor((tirx.const(-1, self.kind) - start) * density) - two
        high = tirx.ceil((_number(self.size, self.kind) - start) * density) + two
        from_ = hold(_clipped(low, zero, top).astype("int32"))
        until = _clipped(high, zero, top).astype("int32")
        count = hold(tirx.min(tirx.max(until - from_, 0), most))
        return from_, count

    def whole(self, bin_: tirx.Expr) -> tirx.Expr:
        """Return whether a bin has points, and all are visited."""
        _, count = self.span(bin_)
        return tirx.all(
            self.count > tirx.const(0, self.kind), count.astype(self.kind) >= self.count
        )

    def taps(self, bin_: tirx.Expr, step: tirx.Expr) -> Sequence[Tap]:
        """Return the pixels around a point; their weights are 0 if it is outside of the axis."""

        def number(value: Any) -> tirx.Expr:
            return _number(value, self.kind)

        middle = (step.astype(self.kind) + number(0.5)) * self.step / self.count
        position = hold(self.first + bin_.astype(self.kind) * self.step + middle)
        inside = tirx.all(position >= number(-1), position <= number(self.size))
        clipped = hold(_clipped(position, number(0), number(self.size - 1)))
        low = hold(clipped.astype("int32"))
        upper = clipped - low.astype(self.kind)
        one, none = number(1), number(0)
        return [
            (low, hold(tirx.Select(inside, one - upper, none))),
            (tirx.min(low + 1, self.size - 1), hold(tirx.Select(inside, upper, none))),
        ]


@dataclass(frozen=True)
class Pixels:
    """Division of whole pixels among bins in ROI pooling.

    Attributes
    ----------
    bins : int
        Of a region.
    scale : float
        Pixels of the feature map to one of the picture.
    halves : {"away", "up"}
        Where coordinates in the middle of two pixels are rounded to.
    """

    bins: int
    scale: float
    halves: str

    def of(self, start: tirx.Expr, end: tirx.Expr, size: int, kind: str) -> PixelBins:
        """Compute the bins of a region."""
        first, last = (self._pixel(corner.astype(kind), kind) for corner in (start, end))
        count = tirx.max(last - first + 1, 1)
        return PixelBins(size, kind, first, hold(count.astype(kind) / tirx.const(self.bins, kind)))

    def _pixel(self, corner: tirx.Expr, kind: str) -> tirx.Expr:
        scaled = hold(corner * tirx.const(self.scale, kind))
        half, zero = tirx.const(0.5, kind), tirx.const(0, kind)
        # A half may not be added: 0.49999997 + 0.5 is 1.
        below = tirx.floor(scaled)
        rest = scaled - below
        up = rest >= half
        if self.halves == "away":
            up = tirx.any(rest > half, tirx.all(rest >= half, scaled > zero))
        far = tirx.const(_FAR, kind)
        rounded = _clipped(below + tirx.Select(up, tirx.const(1, kind), zero), -far, far)
        known = tirx.Select(tirx.isnan(scaled), zero, rounded)
        return hold(known.astype("int32"))


@dataclass(frozen=True)
class PixelBins:
    """Bins of one region on one axis, by pixels.

    Attributes
    ----------
    size : int
        Pixels of the axis.
    kind : str
        Type of the coordinates.
    first : tirx.Expr
        The region's first pixel, which may be outside of the axis; ``int32``.
    step : tirx.Expr
        Pixels of a bin; a floating-point number.
    """

    size: int
    kind: str
    first: tirx.Expr
    step: tirx.Expr

    def span(self, bin_: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Return the first pixel of a bin, and how many it has inside of the axis."""
        start = tirx.floor(bin_.astype(self.kind) * self.step).astype("int32") + self.first
        end = tirx.ceil((bin_ + 1).astype(self.kind) * self.step).astype("int32") + self.first
        from_ = hold(tirx.max(tirx.min(start, self.size), 0))
        count = tirx.max(tirx.min(tirx.max(end, 0), self.size) - from_, 0)
        return from_, hold(count)

    def whole(self, bin_: tirx.Expr) -> tirx.Expr:
        """Return whether a bin has pixels inside of the axis."""
        _, count = self.span(bin_)
        return count > 0

    def taps(self, bin_: tirx.Expr, step: tirx.Expr) -> Sequence[Tap]:
        """Return a pixel of the bin."""
        return [(step, tirx.const(1, self.kind))]
