"""Resize of pictures whose channels lie beside each other, into planes, on a CPU.

A camera's picture is larger than what a network takes, so rows come first: the lines that make a
row are added up as they lie, in vectors. The columns of each plane are then taken out of that one
line, which stays in the nearest cache. Nothing as large as the picture is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, Tensor, function, hold, in_pieces

__all__ = ["resize_pictures"]

# Tasks of a core, so that late cores do not hold up the others.
_TASKS = 4

_LANES = 16


def resize_pictures(
    batch: int,
    size: tuple[int, int],
    order: Sequence[int],
    dtype: str,
    tables: Sequence[np.ndarray],
    spec: DeviceSpec,
) -> Kernel:
    """Build the kernel of ``[batch, height, width·channels]`` and the tables.

    Parameters
    ----------
    batch : int
    size : (int, int)
        Height and width of the operand.
    order : sequence of int
        The channel that each plane of the result is of.
    dtype : str
        Of the operand; the result is float32.
    tables : sequence of numpy.ndarray
        As :func:`~tvm_edge.schedules.vision.resize.resize_tables` makes them; the kernel is for
        their shapes.
    """
    row_at, _, column_at, _ = tables
    (height, row_taps), (column_taps, width) = row_at.shape, column_at.shape
    channels = len(order)
    length = size[1] * channels
    bands = max(1, min(height, -(-_TASKS * max(spec.cores, 1) // batch)))
    rows_of_band = -(-height // bands)

    def body(data: Any, rows: Any, row_weights: Any, columns: Any, weights: Any, out: Any) -> None:
        with T.parallel(0, batch * bands) as task:
            picture = hold(tirx.floordiv(task, bands))
            first = hold(tirx.floormod(task, bands) * rows_of_band)
            line = T.buffer_proxy(T.decl_buffer([length], "float32"))
            with T.serial(0, tirx.min(rows_of_band, height - first)) as i:
                y = hold(first + i)
                taps = [(hold(rows[y, k]), hold(row_weights[y, k])) for k in range(row_taps)]

                def add_lines(x: Any, lanes: int, taps: Any = taps) -> None:
                    with T.vectorized(0, lanes) as lane:
                        line[x + lane] = sum(
                            weight * data[picture, at, x + lane].astype("float32")
                            for at, weight in taps
                        )

                in_pieces(length, _LANES, add_lines)
                for plane, channel in enumerate(order):
                    with T.serial(0, width) as x:
                        out[picture * channels + plane, y, x] = sum(
                            weights[k, x] * line[columns[k, x] * channels + channel]
                            for k in range(column_taps)
                        )

    given: list[Tensor] = [([batch, size[0], length], dtype)]
    given += [(table.shape, str(table.dtype)) for table in tables]
    return function(given, [([batch * channels, height, width], "float32")], body)
