"""Resize of pictures on a CPU: by columns, line by line, and then by rows.

The operand's elements that make a result are the same in every plane and, for columns, in every
row: tables list them. A line of the operand is resized by columns once, when the first row needs
it. It stays in the nearest cache for the other rows that need it. Rows are weighted sums of lines,
in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, Tensor, function, hold, in_pieces, register, when

__all__ = ["resize_planes", "resize_tables"]

# Tasks of a core, so that late cores do not hold up the others.
_TASKS = 4

_LANES = 16


def resize_tables(
    rows: tuple[np.ndarray, np.ndarray], columns: tuple[np.ndarray, np.ndarray], kind: str
) -> list[np.ndarray]:
    """Return the parameters of :func:`resize_planes` after its operand.

    Parameters
    ----------
    rows, columns : (indices, weights)
        Two arrays ``[length, taps]`` each, of an axis of the result. Indices of an element ascend,
        and those of elements that follow do not go back.
    """
    (row_at, row_weight), (column_at, column_weight) = rows, columns
    return [
        row_at.astype("int32"),
        row_weight.astype(kind),
        np.ascontiguousarray(column_at.T.astype("int32")),
        np.ascontiguousarray(column_weight.T.astype(kind)),
    ]


def resize_planes(
    planes: Any,
    size: tuple[int, int],
    dtype: str,
    tables: Sequence[np.ndarray],
    spec: DeviceSpec,
) -> Kernel:
    """Build the kernel of ``[planes, height, width]`` and the tables.

    Parameters
    ----------
    planes : int or tirx.Var
        Number of planes.
    size : (int, int)
        Height and width of the operand.
    tables : sequence of numpy.ndarray
        As :func:`resize_tables` makes them; the kernel is for their shapes, and for the distance
        of rows in them.
    """
    row_at, row_weight, column_at, _ = tables
    (height, row_taps), (column_taps, width) = row_at.shape, column_at.shape
    kind = str(row_weight.dtype)
    # Lines that one row depends on; their names repeat after so many.
    kept = int((row_at.max(1) - row_at.min(1)).max()) + 1
    bands = _bands(planes, height, spec)
    rows_of_band = -(-height // bands)

    def body(data: Any, rows: Any, row_weights: Any, columns: Any, weights: Any, out: Any) -> None:
        with T.parallel(0, planes * bands) as task:
            plane = hold(tirx.floordiv(task, bands))
            band = hold(tirx.floormod(task, bands))
            lines = T.buffer_proxy(T.decl_buffer([kept * width], kind))
            last = register(tirx.const(-1, "int32"))
            first = hold(band * rows_of_band)
            with T.serial(0, tirx.min(rows_of_band, height - first)) as i:
                y = hold(first + i)
                found = []
                for tap in range(row_taps):
                    line = hold(rows[y, tap])
                    at = hold(tirx.floormod(line, kept) * width)
                    with when(line > last[0]):
                        last[0] = line
                        with T.serial(0, width) as x:
                            lines[at + x] = sum(
                                weights[k, x] * data[plane, line, columns[k, x]].astype(kind)
                                for k in range(column_taps)
                            )
                    found.append((at, hold(row_weights[y, tap])))

                def columns_from(x: Any, lanes: int, y: Any = y, found: Any = found) -> None:
                    with T.vectorized(0, lanes) as lane:
                        total = sum(weight * lines[at + x + lane] for at, weight in found)
                        out[plane, y, x + lane] = total.astype(dtype)

                in_pieces(width, _LANES, columns_from)

    given: list[Tensor] = [([planes, *size], dtype)]
    given += [(table.shape, str(table.dtype)) for table in tables]
    return function(given, [([planes, height, width], dtype)], body)


def _bands(planes: Any, height: int, spec: DeviceSpec) -> int:
    """Count the parts of a plane for different cores; lines between them are resized by both."""
    if not isinstance(planes, int):
        return 1
    return max(1, min(height, -(-_TASKS * max(spec.cores, 1) // planes)))
