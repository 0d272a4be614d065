"""Knobs of windows over blocked images, their register tiles and tasks, and the best of them.

Depthwise convolutions and pools of :mod:`tvm_edge.schedules.cpu.window_blocked`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import divisors

__all__ = ["WindowKnobs", "WindowSize", "best_window_knobs", "holds_taps", "window_candidates"]

_MAX_COLUMNS = 8

Order = Literal["lines", "blocks"]


@dataclass(frozen=True)
class WindowKnobs:
    """Knobs of windows: their tiles and tasks.

    Attributes
    ----------
    columns : int
        Pixels of a register tile.
    lines : int
        Lines of a task, which has one block of channels.
    order : {"lines", "blocks"}
        What cores share out: lines, each with all blocks one after another, or blocks, each with
        all its lines.
    """

    columns: int
    lines: int
    order: Order


@dataclass(frozen=True)
class WindowSize:
    """The sizes that knobs are chosen by.

    Attributes
    ----------
    batch, blocks : int
        Of images and their blocks of channels.
    lines, columns : int
        Of the result.
    lanes : int
        Channels in a block.
    window : tuple of int
        Steps of a window along lines and columns.
    stride : int
        Along lines.
    line_bytes, image_bytes : int
        Of a line of one block, and of the whole image, padded.
    padded : bool
        Whether tasks pad their lines.
    shifts : int
        Neighbouring results that read the same pixels: a tile has whole groups of them.
    element : int
        Bytes of an accumulator.
    """

    batch: int
    blocks: int
    lines: int
    columns: int
    lanes: int
    window: tuple[int, int]
    stride: int
    line_bytes: int
    image_bytes: int
    padded: bool
    shifts: int = 1
    element: int = 4

    def vectors(self, spec: DeviceSpec) -> int:
        """Vector registers of a block's channels."""
        return max(1, self.lanes // spec.lanes(self.element))

    @property
    def taps(self) -> int:
        """Steps of a window."""
        return self.window[0] * self.window[1]


def best_window_knobs(size: WindowSize, spec: DeviceSpec) -> WindowKnobs:
    """A tile that the registers hold, and tasks whose padded lines stay in the first cache.

    Tiles of one line are as fast as taller ones, which reuse what they load. Tasks of few lines
    copy many of them twice: twice as many lines as a window reaches beyond its own are enough.
    """
    lines, stride = size.lines, size.stride
    columns = min(_columns(size, spec), key=lambda c: (_row_cost(size, c), -c))
    beyond = max(size.window[0] - stride, 0)
    held = spec.l1_cache // 3 // size.line_bytes - beyond  # lines of the image
    fits = [d for d in divisors(lines) if d * stride <= held]
    if size.padded:
        enough = [d for d in divisors(lines) if d * stride >= 2 * beyond]
        fits = [max(fits[-1:] + enough[:1], default=lines)]
    chunk = fits[-1] if fits else 1
    while chunk > 1 and size.batch * size.blocks * (lines // chunk) % spec.cores:
        chunk = divisors(lines, chunk - 1)[-1]  # tasks of equal number for all cores
    # Large images come from a convolution whose cores had lines of them, small ones from one
    # whose cores had channels: what a core wrote is in its own cache.
    by_lines = size.image_bytes > spec.l2_cache // 4 and chunk < lines
    return WindowKnobs(columns, chunk, "lines" if by_lines else "blocks")


def window_candidates(size: WindowSize, spec: DeviceSpec) -> list[WindowKnobs]:
    """Knobs that are legal, :func:`best_window_knobs` first and what is like it before the rest."""
    best = best_window_knobs(size, spec)
    found = [
        WindowKnobs(columns, lines, order)
        for columns in _columns(size, spec)
        for lines in divisors(size.lines)
        # Tasks of all lines are the same in either order.
        for order in (("lines", "blocks") if lines < size.lines else ("blocks",))
    ]

    def unlike(knobs: WindowKnobs) -> tuple[float, ...]:
        return (
            knobs != best,
            _row_cost(size, knobs.columns) / _row_cost(size, best.columns)
            + abs(log2(knobs.lines / best.lines)) / 4,
            knobs.order != best.order,
        )

    return sorted(found, key=unlike)


def holds_taps(size: WindowSize, spec: DeviceSpec) -> bool:
    """Return whether taps stay in registers; if not, the lines of a window are a loop.

    16 channels of 8-bit numbers have four accumulators of NEON. Their pixels, those half transposed
    and the taps of a step are four registers each: with all taps unrolled LLVM ran out of them.
    """
    return size.vectors(spec) <= 2


def _columns(size: WindowSize, spec: DeviceSpec) -> list[int]:
    """Columns of a tile: whole groups of those that share pixels, or all.

    The taps stay in registers beside the accumulators if they fit.
    """
    vectors = size.vectors(spec)
    taps = min(size.taps, spec.vector_registers // 3)
    beside = taps if holds_taps(size, spec) else 3 * vectors
    room = (spec.vector_registers - beside - 2) // vectors
    most = min(size.columns, max(size.shifts, min(_MAX_COLUMNS, room)))
    groups = list(range(size.shifts, most + 1, size.shifts))
    return groups if most < size.columns or most in groups else [*groups, most]


def _row_cost(size: WindowSize, columns: int) -> int:
    """Cost of a line in tiles of so many columns."""
    return ceil(size.columns / columns) * (columns * size.taps + 4)
