"""Transposed convolutions of blocked images, phase by phase.

With stride `s` every `s`-th pixel of the output has the same taps: such a phase is a convolution of
stride 1 with a part of the filters. All phases are one kernel, a batch of convolutions whose
results are stored `s` pixels apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_edge.schedules.blocked import (
    CONV2D,
    number_or_length,
    pack_filters,
    pad_image,
    staged,
)
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.taps import CHANNELS, PHASES

__all__ = ["TransposedConv", "conv2d_transposed", "pack_phases", "phase_filters"]


@dataclass(frozen=True)
class TransposedAxis:
    """A transposed convolution along lines or columns.

    Attributes
    ----------
    stride, taps, padding : int
        `padding` is what is cut off before the result.
    beyond : int
        Pixels of the result beyond `stride` for each pixel of the image; may be negative.
    """

    stride: int
    taps: int
    padding: int
    beyond: int

    @property
    def window(self) -> int:
        """Taps of the phase that has most of them."""
        return -(-self.taps // self.stride)

    @property
    def shift(self) -> int:
        """Pixels by which the windows of some phases start later."""
        return (self.stride - 1 + self.padding) // self.stride - self.padding // self.stride

    @property
    def before(self) -> int:
        """Zeros before the image; negative where it has too many pixels."""
        return self.window - 1 - self.padding // self.stride

    def start(self, phase: Any) -> Any:
        """Pixels by which the windows of a phase start later than those of the first."""
        return (phase + self.padding % self.stride) // self.stride if self.shift else 0

    def taps_of(self, phase: int) -> list[int]:
        """Taps of a phase in the order of the image; those beyond the last do not exist."""
        first = (phase + self.padding) % self.stride
        return [first + self.stride * step for step in reversed(range(self.window))]

    def outputs(self, length: Any) -> Any:
        """Pixels of the result."""
        return length * self.stride + self.beyond

    def positions(self, length: Any) -> Any:
        """Pixels of a phase."""
        return length + -(-self.beyond // self.stride)

    @property
    def after(self) -> int:
        """Zeros after the image."""
        last = -(-self.beyond // self.stride) - 1 + self.window - 1 + self.shift
        return max(0, last + 1 - self.before)


@dataclass(frozen=True)
class TransposedConv:
    """A transposed convolution, by its axes.

    Attributes
    ----------
    lines, columns : TransposedAxis
    workload : ConvWorkload
        The convolutions of its phases, as a batch.
    """

    lines: TransposedAxis
    columns: TransposedAxis
    workload: ConvWorkload

    @classmethod
    def of(
        cls,
        image: Sequence[int],
        filters: int,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        output_padding: Sequence[int],
    ) -> TransposedConv | None:
        """Describe one of typical lengths; ``None`` if more is cut off than a window reaches."""
        axes = [
            TransposedAxis(s, k, before, k - s - before - after + more)
            for s, k, before, after, more in zip(
                strides, kernel, padding[:2], padding[2:], output_padding, strict=True
            )
        ]
        batch, channels, *size = image
        if any(a.before < 0 or a.positions(n) < 1 for a, n in zip(axes, size, strict=True)):
            return None
        lines, columns = axes
        workload = ConvWorkload(
            batch * lines.stride * columns.stride,
            channels,
            size[0],
            size[1],
            filters=filters,
            kernel=(lines.window, columns.window),
            strides=(1, 1),
            padding=(lines.before, columns.before, lines.after, columns.after),
            dilation=(1, 1),
            groups=1,
        )
        return cls(lines, columns, workload)


def pack_phases(weights: np.ndarray, conv: TransposedConv, depth: int, block: int) -> np.ndarray:
    """Filters ``[C, O, KH, KW]`` as ``[phases, O/l, C/b, window, window, b, l]``.

    A window goes through an image forwards, and through the taps backwards. Taps that a phase does
    not have are zero.
    """
    phases = np.ndindex(conv.lines.stride, conv.columns.stride)
    own = (_filters(weights, conv, phase) for phase in phases)
    return np.stack([pack_filters(filters, depth, block) for filters in own])


def phase_filters(weights: np.ndarray, conv: TransposedConv) -> np.ndarray:
    """Filters ``[C, O, KH, KW]`` as ``[phases * O, C, KH', KW']``, whose windows start together."""
    axes = (conv.lines, conv.columns)
    sizes = [axis.window + axis.shift for axis in axes]
    channels, filters = weights.shape[:2]
    strides = [axis.stride for axis in axes]
    made = np.zeros((*strides, filters, channels, *sizes), weights.dtype)
    for phase in np.ndindex(*strides):
        y, x = (axis.start(number) for axis, number in zip(axes, phase, strict=True))
        own = _filters(weights, conv, phase)
        made[phase][:, :, y : y + own.shape[2], x : x + own.shape[3]] = own
    return made.reshape(-1, channels, *sizes)


def _filters(weights: np.ndarray, conv: TransposedConv, phase: tuple[int, ...]) -> np.ndarray:
    """Filters ``[O, C, window, window]`` of a phase."""
    lines, columns = conv.lines.taps_of(phase[0]), conv.columns.taps_of(phase[1])
    own = np.zeros((*weights.shape[:2], len(lines), len(columns)), weights.dtype)
    for at in np.ndindex(*own.shape[2:]):
        y, x = lines[at[0]], columns[at[1]]
        if y < conv.lines.taps and x < conv.columns.taps:
            own[:, :, at[0], at[1]] = weights[:, :, y, x]
    return own.transpose(1, 0, 2, 3)


def conv2d_transposed(image: te.Tensor, filters: te.Tensor, conv: TransposedConv) -> te.Tensor:
    """Convolve a blocked image, transposed, with filters of :func:`pack_phases`.

    Parameters
    ----------
    image : te.Tensor
        ``[N, C/b, H, W, b]``.
    filters : te.Tensor
    conv : TransposedConv

    Returns
    -------
    te.Tensor
        ``[N, O/l, OH, OW, l]``.
    """
    lines, columns = conv.lines, conv.columns
    batch, _, *size, _ = map(number_or_length, image.shape)
    phases, blocks, depth, taps_y, taps_x, block, lanes = map(int, filters.shape)
    padding = (lines.before, columns.before, lines.after, columns.after)
    padded = staged(image, pad_image(image, padding))
    ky, kx = (te.reduce_axis((0, n), name=k) for n, k in ((taps_y, "ky"), (taps_x, "kx")))
    co, ci = (te.reduce_axis((0, n), name=c) for n, c in ((depth, "co"), (block, "ci")))

    def term(n: Any, o: Any, y: Any, x: Any, v: Any) -> tirx.Expr:
        phase = tirx.floormod(n, phases)
        row = y + ky + lines.start(tirx.floordiv(phase, columns.stride))
        column = x + kx + columns.start(tirx.floormod(phase, columns.stride))
        pixel = padded[tirx.floordiv(n, phases), co, row, column, ci]
        return te.sum(pixel * filters[phase, o, co, ky, kx, ci, v], axis=[co, ky, kx, ci])

    channels = conv.workload.channels
    filled_up = {CHANNELS: channels} if channels % block else {}
    numbers = [n for axis in (lines, columns) for n in (axis.stride, axis.padding, axis.taps)]
    made = te.compute(
        (batch * phases, blocks, lines.positions(size[0]), columns.positions(size[1]), lanes),
        term,
        name=CONV2D,
        attrs={PHASES: " ".join(map(str, numbers)), **filled_up},
    )

    if phases == 1:
        return made

    def element(n: Any, o: Any, y: Any, x: Any, v: Any) -> tirx.Expr:
        phase = tirx.floormod(y, lines.stride) * columns.stride + tirx.floormod(x, columns.stride)
        row, column = tirx.floordiv(y, lines.stride), tirx.floordiv(x, columns.stride)
        return made[n * phases + phase, o, row, column, v]

    result = (lines.outputs(size[0]), columns.outputs(size[1]))
    return te.compute((batch, blocks, *result, lanes), element, name="phases")
