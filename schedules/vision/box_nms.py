"""Suppression of rows that hold a class, a score and a box, as MXNet's ``box_nms`` does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, Box, Candidates, Overlap, exactly, load_box
from tvm_edge.schedules.vision.keys import ordered_words
from tvm_edge.schedules.vision.nms import suppression

__all__ = ["Rows", "box_nms"]


@dataclass(frozen=True)
class Rows:
    """Tables of candidates, and the meaning of their columns.

    Attributes
    ----------
    batch, length, width : int
        ``(batch, length, width)`` is the shape of the data, each at least 1.
    dtype : str
        Of the data; it is compared in float32.
    first_coordinate, score : int
        Columns; the box's four numbers stand next to each other.
    label : int or None
        Column of the class, ``None`` where classes do not matter.
    background : int or None
        A class whose rows do not take part.
    threshold : float
        Scores above it take part.
    center : bool
        Whether boxes are centre and size, and not two corners.
    """

    batch: int
    length: int
    width: int
    dtype: str
    first_coordinate: int
    score: int
    label: int | None
    background: int | None
    threshold: float
    center: bool

    def candidates(self, data: Any, grouped: bool) -> Candidates:
        """Return the candidates; with `grouped` only boxes of one class suppress each other."""

        def number(line: Any, at: Any, column: Any) -> tirx.Expr:
            found = data[(line * self.length + at) * self.width + column]
            return found if self.dtype == BOX_DTYPE else found.astype(BOX_DTYPE)

        def takes_part(line: Any, at: Any) -> tirx.Expr:
            part = number(line, at, self.score) > exactly(self.threshold)
            if self.background is None or self.label is None:
                return part
            return tirx.all(part, number(line, at, self.label) != exactly(self.background))

        def key(line: Any, at: Any) -> tirx.Expr:
            return ordered_words(number(line, at, self.score), BOX_DTYPE, True)[0]

        def box(line: Any, at: Any) -> Box:
            return load_box(
                lambda i: number(line, at, self.first_coordinate + i),
                center=self.center,
            )

        def group(line: Any, at: Any) -> tirx.Expr:
            return tirx.reinterpret("int32", number(line, at, self.label))

        return Candidates(takes_part, key, box, group if grouped else None)


def box_nms(
    rows: Rows,
    spec: DeviceSpec,
    *,
    iou_threshold: float,
    by_class: bool,
    considered: int | None,
) -> Kernel:
    """Build the kernel that keeps rows in descending score.

    Parameters
    ----------
    rows : Rows
    spec : DeviceSpec
    iou_threshold : float
        From 0 to 1.
    by_class : bool
        Whether only rows of one class suppress each other.
    considered : int or None
        How many rows with the best scores take part at most.

    Returns
    -------
    Kernel
        ``(data, result, counts[batch], kept[batch * length], workspace...)``, all flat: of each
        table of `result` the first ``counts`` rows stay, the others are -1 everywhere.
    """
    batch, length, width = rows.batch, rows.length, rows.width
    plan = suppression(spec)(
        batch,
        length,
        length,
        Overlap(iou_threshold),
        spec,
        grouped=by_class,
        considered=considered,
    )

    def body(data: Any, result: Any, counts: Any, kept: Any, *space: Any) -> None:
        plan.write(rows.candidates(data, by_class), kept, counts, space)
        copy_rows(rows, spec, data, kept, counts, result)

    return function(
        [([batch * length * width], rows.dtype)],
        [
            ([batch * length * width], rows.dtype),
            ([batch], "int32"),
            ([batch * length], "int32"),
            *plan.workspace,
        ],
        body,
    )


def copy_rows(rows: Rows, spec: DeviceSpec, data: Any, kept: Any, counts: Any, result: Any) -> None:
    """Copy the rows that stay, and -1 after them: no branch writes the suppressed rows."""
    length, width = rows.length, rows.width
    nothing = tirx.const(-1, rows.dtype)

    def copy(index: tirx.Expr) -> None:
        line = tirx.floordiv(index, length * width)
        rank = tirx.floordiv(tirx.floormod(index, length * width), width)
        source = (line * length + kept[line * length + rank]) * width + tirx.floormod(index, width)
        result[index] = tirx.if_then_else(rank < counts[line], data[source], nothing)

    each(spec, rows.batch * length * width, copy)
