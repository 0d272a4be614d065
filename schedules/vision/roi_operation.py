"""Reductions of the taps of a bin in ROIAlign and ROI pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import Tensor, hold
from tvm_edge.schedules.vision.roi_bins import Axis, Pixels, PointBins, Points, nearest

__all__ = ["Maps", "Operation"]


@dataclass(frozen=True)
class Maps:
    """Feature maps and regions of them.

    Attributes
    ----------
    shape : sequence of (int or tirx.Var)
        Batch, channels, height, width; no number of them is 0.
    dtype : str
        Of maps, regions and result: floating point.
    regions : int or tirx.Var
        How many.
    index_dtype : str or None
        Type of the batch indices, a vector of their own; ``None`` where they come before the
        corners in a region's row.
    """

    shape: Sequence[Any]
    dtype: str
    regions: Any
    index_dtype: str | None = None

    @property
    def inputs(self) -> list[Tensor]:
        """Parameters of a kernel: maps, regions and perhaps batch indices."""
        tensors: list[Tensor] = [
            (self.shape, self.dtype),
            ([self.regions, 5 if self.index_dtype is None else 4], self.dtype),
        ]
        if self.index_dtype is not None:
            tensors.append(([self.regions], self.index_dtype))
        return tensors

    def picture(self, regions: Sequence[Any], at: tirx.Expr) -> tirx.Expr:
        """Return the index of a region's map."""
        index = regions[0][at, 0] if self.index_dtype is None else regions[1][at]
        return hold(nearest(index, self.shape[0]))

    def corners(self, regions: Sequence[Any], at: tirx.Expr) -> list[tirx.Expr]:
        """Return ``x1, y1, x2, y2`` of a region."""
        first = 1 if self.index_dtype is None else 0
        return [regions[0][at, first + i] for i in range(4)]


@dataclass(frozen=True)
class Operation:
    """Reduction of the taps of a bin.

    Attributes
    ----------
    kind : str
        Type of the calculation.
    rows, columns : Points or Pixels
        How a region is divided.
    reduction : {"mean", "greatest corner", "greatest pixel"}
        The mean of points; the greatest tap of points, each with its weight, which is 0 for points
        outside of the map; or the greatest pixel. Where there is nothing to reduce they are 0.
    """

    kind: str
    rows: Points | Pixels
    columns: Points | Pixels
    reduction: Literal["mean", "greatest corner", "greatest pixel"]

    def start(self, ys: Axis, xs: Axis, *bin_: tirx.Expr) -> tirx.Expr:
        """Return the initial value of a reduction."""
        zero = tirx.const(0, self.kind)
        if self.reduction == "mean":
            return zero
        whole = tirx.all(ys.whole(bin_[0]), xs.whole(bin_[1]))
        return tirx.Select(whole, tirx.const(float("-inf"), self.kind), zero)

    def combine(self, sofar: tirx.Expr, weight: tirx.Expr, value: tirx.Expr) -> tirx.Expr:
        """Combine a reduction with one more tap."""
        if self.reduction == "mean":
            return sofar + weight * value
        if self.reduction == "greatest corner":
            value = weight * value
        return tirx.Select(value > sofar, value, sofar)

    def factor(self, ys: Axis, xs: Axis) -> tirx.Expr:
        """Return the final factor of a reduction."""
        one = tirx.const(1, self.kind)
        if not isinstance(ys, PointBins) or not isinstance(xs, PointBins):
            return one
        if self.reduction != "mean":
            return one
        count = ys.count * xs.count
        return one / tirx.Select(count > one, count, one)

    @staticmethod
    def visit(
        ys: Axis,
        xs: Axis,
        bin_: Sequence[tirx.Expr],
        body: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], None],
    ) -> None:
        """Call ``body(y, x, weight)`` for all taps of a bin."""
        (first_y, count_y), (first_x, count_x) = ys.span(bin_[0]), xs.span(bin_[1])
        with T.serial(0, count_y) as i:
            rows = ys.taps(bin_[0], first_y + i)
            with T.serial(0, count_x) as j:
                columns = xs.taps(bin_[1], first_x + j)
                for y, weight_y in rows:
                    for x, weight_x in columns:
                        body(y, x, weight_y * weight_x)
