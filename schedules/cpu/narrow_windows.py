"""Convolutions in NCHW whose filters are zero along borders of their window, each run at its own.

Such are transposed convolutions of few filters: of the 3x3 taps in which all phases of stride two
have a place, each uses 2x2. Runs are groups to the schedule, each reading its own part of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx, topi

__all__ = ["NarrowWindows", "conv2d_narrow"]

_MOST_TAPS = 0.7  # share of a window that is left of it
_MOST_RUNS = 16


@dataclass(frozen=True)
class NarrowWindows:
    """Filters without their zeros.

    Attributes
    ----------
    filters : np.ndarray
        ``[O, C, h, w]``.
    starts : sequence of (int, int)
        Lines and columns by which the windows of each run of filters start later.
    """

    filters: np.ndarray
    starts: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, weights: np.ndarray) -> NarrowWindows | None:
        """Find the runs of filters ``[O, C, KH, KW]``; ``None`` where it is not worth while."""
        used = np.any(weights != 0, axis=1)
        if not used.any(axis=(1, 2)).all():
            return None
        axes = [[np.flatnonzero(taps.any(axis=1 - axis)) for taps in used] for axis in (0, 1)]
        size = tuple(max(int(own[-1] - own[0]) + 1 for own in axis) for axis in axes)
        window = weights.shape[2:]
        if np.prod(size) > _MOST_TAPS * np.prod(window):
            return None
        firsts = [
            tuple(min(int(own[0]), k - n) for own, k, n in zip(each, window, size, strict=True))
            for each in zip(*axes, strict=True)
        ]
        count = len(firsts)
        runs = next(n for n in range(1, count + 1) if count % n == 0 and _are_runs(firsts, n))
        if runs > _MOST_RUNS:
            return None
        own = [
            f[:, y : y + size[0], x : x + size[1]]
            for f, (y, x) in zip(weights, firsts, strict=True)
        ]
        return cls(np.stack(own), firsts[:: count // runs])


def _are_runs(firsts: Sequence[tuple[int, ...]], runs: int) -> bool:
    """Return whether so many runs of one length have one start each."""
    length = len(firsts) // runs
    return all(first == firsts[i // length * length] for i, first in enumerate(firsts))


def conv2d_narrow(
    image: te.Tensor,
    filters: te.Tensor,
    padding: Sequence[int],
    window: Sequence[int],
    starts: Sequence[tuple[int, int]],
) -> te.Tensor:
    """Convolve an image in NCHW, with stride one.

    Parameters
    ----------
    image, filters : te.Tensor
        ``[N, C, H, W]`` and ``[O, C, h, w]``.
    padding : sequence of four int
        Top, left, bottom, right.
    window : sequence of two int
        Lines and columns of the windows with their zeros.
    starts : sequence of (int, int)
        Those of :class:`NarrowWindows`.
    """
    count, channels, high, wide = map(int, filters.shape)
    top, left, bottom, right = padding
    padded = image
    if any(padding):
        padded = topi.nn.pad(image, [0, 0, top, left], [0, 0, bottom, right], name="padded")
    lines, columns = (int(n) - k + 1 for n, k in zip(padded.shape[2:], window, strict=True))
    ci, ky, kx = (
        te.reduce_axis((0, n), name=axis)
        for n, axis in ((channels, "ci"), (high, "ky"), (wide, "kx"))
    )
    length = count // len(starts)

    def start(o: tirx.Var, axis: int) -> tirx.Expr:
        run = tirx.floordiv(o, length)
        found = tirx.const(starts[-1][axis], "int32")
        for number, own in reversed(list(enumerate(starts[:-1]))):
            found = tirx.Select(run == number, tirx.const(own[axis], "int32"), found)
        return found

    return te.compute(
        (image.shape[0], count, lines, columns),
        lambda n, o, y, x: te.sum(
            padded[n, ci, y + ky + start(o, 0), x + kx + start(o, 1)] * filters[o, ci, ky, kx],
            axis=[ci, ky, kx],
        ),
        name="conv2d_narrow",
    )
