"""GridSample on a CPU: the pixels of a point are found once, and not in every channel.

A core lists the pixels of some points, with their weights. It then adds up channel after channel by
that list (spatial transformer networks, NIPS 2015, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, function, hold, when

__all__ = ["Sampling", "grid_sample"]

# Points of a list, which stays in the nearest cache with the results of a channel.
_POINTS = 128

# Tasks of a core, so that late cores do not hold up the others.
_TASKS = 4

# Coordinates beyond are as far outside, and exceed 32-bit integers.
_FAR = float(1 << 30)

_CUBIC = -0.75


@dataclass(frozen=True)
class Sampling:
    """Interpolation of a picture, and its continuation beyond the edges.

    Attributes
    ----------
    method : {"nearest", "bilinear", "bicubic"}
    padding : {"zeros", "border", "reflection"}
    align_corners : bool
        Whether -1 and 1 are the middles of the outermost pixels, or the edges of the picture.
    """

    method: str
    padding: str
    align_corners: bool

    @property
    def taps(self) -> int:
        """Pixels of an axis that contribute to a point."""
        return {"nearest": 1, "bilinear": 2, "bicubic": 4}[self.method]

    def axis(self, at: tirx.Expr, size: int, kind: str) -> list[tuple[tirx.Expr, tirx.Expr]]:
        """Return pixels and weights of a coordinate; pixel -1 is zero."""
        if self.align_corners:
            place = (at + 1) * ((size - 1) / 2)
        else:
            place = (at + 1) * (size / 2) - 0.5
        place = hold(tirx.max(tirx.min(place, tirx.const(_FAR, kind)), tirx.const(-_FAR, kind)))
        if self.method == "nearest":
            return [
                (self._inside(tirx.nearbyint(place).astype("int32"), size), tirx.const(1, kind))
            ]
        left = hold(tirx.floor(place))
        rest = hold(place - left)
        if self.method == "bilinear":
            first, weights = 0, [1 - rest, rest]
        else:
            first, weights = -1, _cubic_weights(rest)
        pixel = hold(left.astype("int32"))
        return [
            (self._inside(pixel + first + k, size), hold(weight))
            for k, weight in enumerate(weights)
        ]

    def _inside(self, pixel: tirx.Expr, size: int) -> tirx.Expr:
        """Map any pixel to one of the picture; -1 where there is none."""
        if self.padding == "zeros":
            inside = tirx.all(pixel >= 0, pixel < size)
            return hold(tirx.Select(inside, pixel, tirx.const(-1, "int32")))
        if self.padding == "border":
            return hold(tirx.max(tirx.min(pixel, size - 1), 0))
        # Mirrored at the middle of the outermost pixel, or at its edge: then it is there twice.
        twice = 0 if self.align_corners else 1
        period = max(2 * (size - 1 + twice), 1)
        place = hold(tirx.floormod(pixel, period))
        return hold(tirx.min(place, period - twice - place))


def _cubic_weights(rest: tirx.Expr) -> list[tirx.Expr]:
    """Evaluate Keys' cubic at the four pixels around a point."""
    a = _CUBIC

    def near(d: tirx.Expr) -> tirx.Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: tirx.Expr) -> tirx.Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(rest + 1), near(rest), near(1 - rest), far(2 - rest)]


def _unless_negative(sign: tirx.Expr, value: tirx.Expr, kind: str) -> tirx.Expr:
    """Return `value`, or 0 where `sign` is negative; by bits, as LLVM vectorizes no choice."""
    bits = kind.replace("float", "int")
    kept = tirx.bitwise_not(sign >> 31).astype(bits)
    return tirx.reinterpret(kind, tirx.bitwise_and(tirx.reinterpret(bits, value), kept))


def grid_sample(
    shape: Sequence[int],
    grid: Sequence[int],
    dtypes: tuple[str, str],
    how: Sampling,
    spec: DeviceSpec,
) -> Kernel:
    """Build the kernel that samples pictures at points.

    Parameters
    ----------
    shape : sequence of int
        Batch, channels, height, width.
    grid : sequence of int
        Batch, 2 (x and y), height, width of the result.
    dtypes : (str, str)
        Of pictures and result, and of points: floating point.
    how : Sampling
    spec : DeviceSpec
    """
    batch, channels, height, width = shape
    points = grid[2] * grid[3]
    dtype, point_dtype = dtypes
    kind = "float64" if "float64" in dtypes else "float32"
    chunks = -(-points // _POINTS)
    groups = min(channels, -(-_TASKS * max(spec.cores, 1) // (batch * chunks)))
    each_group = -(-channels // groups)
    taps = how.taps * how.taps

    def body(data: Any, grid: Any, result: Any) -> None:
        with T.parallel(0, batch * chunks * groups) as task:
            group = hold(tirx.floormod(task, groups))
            chunk = hold(tirx.floormod(tirx.floordiv(task, groups), chunks))
            picture = hold(tirx.floordiv(task, groups * chunks))
            pixels = T.buffer_proxy(T.decl_buffer([taps * _POINTS], "int32"))
            weights = T.buffer_proxy(T.decl_buffer([taps * _POINTS], kind))
            start = hold(chunk * _POINTS)
            count = hold(tirx.min(points - start, _POINTS))
            with T.serial(0, count) as i:
                x, y = (grid[picture, axis, start + i].astype(kind) for axis in (0, 1))
                columns, rows = how.axis(x, width, kind), how.axis(y, height, kind)
                for k, (row, row_weight) in enumerate(rows):
                    for j, (column, column_weight) in enumerate(columns):
                        at = (k * len(columns) + j) * _POINTS + i
                        pixel = row * width + column
                        if how.padding == "zeros":
                            inside = tirx.all(row >= 0, column >= 0)
                            pixel = tirx.Select(inside, pixel, tirx.const(-1, "int32"))
                        pixels[at] = pixel
                        weights[at] = row_weight * column_weight
            with T.serial(0, each_group) as number:
                channel = hold(group * each_group + number)
                with when(channel < channels), T.serial(0, count) as i:
                    terms = []
                    for tap in range(taps):
                        pixel = pixels[tap * _POINTS + i]
                        if how.padding == "zeros":
                            value = data[picture, channel, tirx.max(pixel, 0)].astype(kind)
                            value = _unless_negative(pixel, value, kind)
                        else:
                            value = data[picture, channel, pixel].astype(kind)
                        terms.append(value * weights[tap * _POINTS + i] if taps > 1 else value)
                    result[picture, channel, start + i] = sum(terms[1:], terms[0]).astype(dtype)

    flat = ([batch, channels, height * width], dtype), ([batch, 2, points], point_dtype)
    return function(flat, [([batch, channels, points], dtype)], body)
