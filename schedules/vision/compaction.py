"""Compaction: moves the wanted elements to the front, in their order.

On a GPU an exclusive prefix sum of flags is the place of every element (ICPP'19 §3.1.1). An
unwanted element gets a place from the end, so that each place is written once. A CPU makes one pass
over each line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import (
    Kernel,
    Tensor,
    function,
    hold,
    register,
    spread,
    when,
)
from tvm_edge.schedules.vision.gpu.scan import LineScan
from tvm_edge.schedules.vision.operators import OPERATORS

__all__ = ["Compaction", "valid_rows"]

Wanted = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
"""Predicate: the element of a line at a position is wanted; may be called more than once."""
Keep = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], None]
"""Write the element of a line at a position to a place."""
Place = Callable[[tirx.Expr, tirx.Expr], None]
"""Write to a place of a line that no element got; or a line's count."""


class Compaction:
    """Compaction of lines on a device, and its kernels.

    Parameters
    ----------
    lines, length : int
        At least 1.
    spec : DeviceSpec

    Attributes
    ----------
    workspace : list[Tensor]
        Further outputs of the kernel.
    """

    def __init__(self, lines: int, length: int, spec: DeviceSpec) -> None:
        self._lines, self._length, self._spec = lines, length, spec
        self._scan = LineScan(lines, length, "int32", OPERATORS["add"], True, spec)
        self.workspace: list[Tensor] = self._scan.workspace if spec.launches_grids else []

    def write(
        self, wanted: Wanted, keep: Keep, fill: Place | None, count: Place, space: Any
    ) -> None:
        """Write the kernels.

        Parameters
        ----------
        wanted, keep : callable
            Selects the elements, and writes an element to its place.
        fill : callable or None
            Called for each place after the last element; ``None`` leaves these places as they are.
        count : callable
            Called once for a line with the number of kept elements, int32.
        space : sequence of Buffer
            For :attr:`workspace`.
        """
        if not self._spec.launches_grids:
            self._one_pass(wanted, keep, fill, count)
            return
        last = self._length - 1

        def flag(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return wanted(line, at).astype("int32")

        def store(line: tirx.Expr, at: tirx.Expr, before: tirx.Expr) -> None:
            front, is_wanted = hold(before), hold(flag(line, at))
            with when(is_wanted > 0):
                keep(line, at, front)
            if fill is not None:
                with when(is_wanted == 0):
                    fill(line, last - (at - front))
            with when(at == last):
                count(line, front + is_wanted)

        self._scan.write(flag, store, space)

    def _one_pass(self, wanted: Wanted, keep: Keep, fill: Place | None, count: Place) -> None:
        def one(line: tirx.Expr) -> None:
            front = register(tirx.const(0, "int32"))
            with T.serial(0, self._length) as at, when(wanted(line, at)):
                keep(line, at, front[0])
                front[0] = front[0] + 1
            if fill is not None:
                with T.serial(0, self._length - front[0]) as rest:
                    fill(line, front[0] + rest)
            count(line, front[0])

        lines, length = (tirx.const(size, "int32") for size in (self._lines, self._length))
        spread(lines, tirx.const(self._lines, "int64") * length.astype("int64"), one)


def valid_rows(
    batch: int,
    anchors: int,
    width: int,
    dtype: str,
    spec: DeviceSpec,
    *,
    score_threshold: float,
    id_index: int,
    score_index: int,
) -> Kernel:
    """Move rows whose score is above a threshold to the front (``relax.vision.get_valid_counts``).

    Parameters
    ----------
    batch, anchors, width : int
        Shape of the data, at least 1 each.
    dtype : str
        Of floats. A score that is NaN is above no threshold.
    spec : DeviceSpec
    score_threshold : float
    id_index : int
        Column of a row's class, which must be at least 0 in a valid row; -1 if it has none.
    score_index : int

    Returns
    -------
    Kernel
        ``(data, counts, rows, indices, workspace...)``: int32 counts and positions; rows and
        positions after the valid ones are -1.
    """
    plan = Compaction(batch, anchors, spec)
    threshold, minus = tirx.const(score_threshold, dtype), tirx.const(-1, dtype)

    def body(data: Any, counts: Any, rows: Any, indices: Any, *space: Any) -> None:
        def wanted(b: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            is_valid = data[b, at, score_index] > threshold
            if id_index < 0:
                return is_valid
            return tirx.all(is_valid, data[b, at, id_index] >= tirx.const(0, dtype))

        def keep(b: tirx.Expr, at: tirx.Expr, slot: tirx.Expr) -> None:
            with T.serial(0, width) as k:
                rows[b, slot, k] = data[b, at, k]
            indices[b, slot] = at.astype("int32")

        def fill(b: tirx.Expr, slot: tirx.Expr) -> None:
            with T.serial(0, width) as k:
                rows[b, slot, k] = minus
            indices[b, slot] = tirx.const(-1, "int32")

        def count(b: tirx.Expr, kept: tirx.Expr) -> None:
            counts[b] = kept

        plan.write(wanted, keep, fill, count, space)

    shape = [batch, anchors, width]
    outputs = [([batch], "int32"), (shape, dtype), ([batch, anchors], "int32")]
    return function([(shape, dtype)], [*outputs, *plan.workspace], body)
