"""Boxes, and the test for their overlap, exact to the last bit as in ONNX Runtime.

The answer becomes indices, which have to be equal on every device. So arithmetic is pinned: no
product is contracted with a sum. Quotients count as if they were rounded correctly, which GPUs do
not promise of their division.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx

from tvm_edge.schedules.emit import hold

__all__ = ["BOX_DTYPE", "NOWHERE", "Box", "Candidates", "Overlap", "exactly", "load_box", "ratio"]

BOX_DTYPE = "float32"
"""Type in which boxes are compared, whatever they are stored in."""

_GREATEST = float(np.finfo(BOX_DTYPE).max)


class Box(NamedTuple):
    """Beginning and end of a box on its two axes, and its area.

    A box without a positive finite area (of equal, infinite or undefined coordinates) ends before
    it begins, and so overlaps nothing.
    """

    low_y: Any
    high_y: Any
    low_x: Any
    high_x: Any
    area: Any


def _const(number: float) -> tirx.Expr:
    return tirx.const(float(number), BOX_DTYPE)


def exactly(number: float) -> tirx.Expr:
    """Return an exact constant; TVM writes seven digits into the sources of GPU kernels."""
    if number == 0:
        return _const(0)  # LLVM's code generator would treat it as a pointer
    return tirx.reinterpret(
        BOX_DTYPE, tirx.const(int(np.float32(number).view(np.uint32)), "uint32")
    )


NOWHERE = Box(*(_const(x) for x in (np.inf, -np.inf, np.inf, -np.inf, 0.0)))
"""Box that overlaps nothing."""


def load_box(read: Callable[[int], tirx.Expr], *, center: bool) -> Box:
    """Decode the box of four numbers.

    Parameters
    ----------
    read : callable
        The numbers: two corners y, x, y, x (or x, y, x, y), of which either may be the lower one;
        or centre and size x, y, width, height.
    center : bool
        Whether they are centre and size.
    """
    number = [hold(read(i).astype(BOX_DTYPE)) for i in range(4)]
    if center:
        # Halves are exact, so that contracting them with the sum changes nothing.
        half = [hold(number[i] * _const(0.5)) for i in (3, 2)]
        low_y, high_y = hold(number[1] - half[0]), hold(number[1] + half[0])
        low_x, high_x = hold(number[0] - half[1]), hold(number[0] + half[1])
    else:
        low_y, high_y = hold(tirx.min(number[0], number[2])), hold(tirx.max(number[0], number[2]))
        low_x, high_x = hold(tirx.min(number[1], number[3])), hold(tirx.max(number[1], number[3]))
    area = hold((high_x - low_x) * (high_y - low_y))
    # Where minimum and maximum lose a NaN, they leave a box without extent.
    positive = tirx.all(high_x > low_x, high_y > low_y, area > _const(0), area <= _const(_GREATEST))
    real = hold(positive.astype("int32"))
    found = Box(low_y, high_y, low_x, high_x, area)
    return Box(*(hold(tirx.Select(real != 0, x, y)) for x, y in zip(found, NOWHERE, strict=True)))


def _intersect(a: Box, b: Box) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr]:
    """Return height, width and area of the intersection, and the area of the union."""
    height = tirx.min(a.high_y, b.high_y) - tirx.max(a.low_y, b.low_y)
    width = tirx.min(a.high_x, b.high_x) - tirx.max(a.low_x, b.low_x)
    # Areas are finite; the minimum keeps compilers from contracting product and difference.
    shared = tirx.min(height * width, _const(_GREATEST))
    return height, width, shared, a.area + b.area - shared


def ratio(a: Box, b: Box) -> tirx.Expr:
    """Return the intersection of two boxes over their union; as exact as a device's division."""
    height, width, shared, union = _intersect(a, b)
    overlap = tirx.all(height > _const(0), width > _const(0), shared > _const(0))
    return tirx.if_then_else(overlap, shared / union, _const(0))


class Overlap:
    """Test of the intersection of two boxes over their union against a threshold.

    Parameters
    ----------
    threshold : float
        From 0 to 1; rounded to float32, as ONNX has it.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = np.float32(threshold)
        # Quotients from half way to the next number on are rounded to that. Half way itself is the
        # quotient of no two numbers: it has a digit more than they have.
        following = np.nextafter(self._threshold, np.float32(2))
        self._half = np.float32((float(following) - float(self._threshold)) / 2)
        # Whatever is left of rounding, ratios above the threshold are above this.
        self._surely = float(self._threshold) * (1 - 1e-5)

    def might(self, a: Box, b: Box) -> tirx.Expr:
        """Return true wherever the boxes overlap, and hardly anywhere else; without a division."""
        height, width, shared, union = _intersect(a, b)
        meet = tirx.all(height > _const(0), width > _const(0))
        return tirx.all(meet, shared >= union * _const(self._surely))

    def by_division(self, a: Box, b: Box) -> tirx.Expr:
        """Compare on devices whose division is rounded correctly."""
        height, width, shared, union = _intersect(a, b)
        above = shared / union > exactly(self._threshold)
        return tirx.all(height > _const(0), width > _const(0), shared > _const(0), above)

    def by_residual(self, a: Box, b: Box) -> tirx.Expr:
        """Compare on other devices, if they have a fused multiplication and addition.

        ``shared / union`` is rounded to above the threshold where it is greater than the middle
        between that and the next number. The residual ``shared - threshold * union`` is exact near
        half of their distance times the union, so that the comparison with that is, too.
        """
        height, width, shared, union = (hold(x) for x in _intersect(a, b))
        threshold = exactly(-self._threshold)
        residual = tirx.call_pure_extern(BOX_DTYPE, "fma", threshold, union, shared)
        half = union * exactly(self._half)
        meet = tirx.all(height > _const(0), width > _const(0), shared > _const(0))
        return tirx.all(meet, residual > half)


@dataclass(frozen=True)
class Candidates:
    """Candidates of a suppression; all functions are given a list and a position in it.

    Attributes
    ----------
    takes_part : callable or None
        A boolean; ``None``: all do.
    key : callable
        32 bits: what is less comes first; equal ones by their position.
    box : callable
    group : callable or None
        An int32: only boxes of one group suppress each other.
    """

    takes_part: Callable[[Any, Any], tirx.Expr] | None
    key: Callable[[Any, Any], tirx.Expr]
    box: Callable[[Any, Any], Box]
    group: Callable[[Any, Any], tirx.Expr] | None = None
