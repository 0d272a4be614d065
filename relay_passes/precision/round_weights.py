"""Weights as float16 or bfloat16 of which those that are added up are right on average.

Rounded one by one, the errors of a filter add up to something: a smooth image and channels after
a ReLU, whose mean is not zero, shift its result. As in the correction of a quantised network's
biases (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
ICCV'19, §4.2), but without data and without cost: some of the weights that lie nearly in the middle
between two such numbers are rounded the other way, until the errors add up to nothing. On the zoo's
networks that is a half to two thirds of the weights' error (``benchmarks/RESULTS.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_edge.schedules.float16 import HALVES

__all__ = ["round_weights"]

Array = NDArray[Any]

_PIECE = 1 << 20  # elements, so that what is worked with stays in caches


def round_weights(weights: Array, axes: Sequence[int], dtype: str = "float16") -> Array:
    """Weights as `dtype`, each one of its two neighbours there.

    Parameters
    ----------
    weights : NDArray[np.float32]
    axes : sequence of int
        Along which weights are added up with data that is alike: those of a window, else that of
        the channels.
    dtype : {"float16", "bfloat16"}

    Returns
    -------
    NDArray
        The errors along `axes` add up to less than a unit in the last place of a weight, if there
        is a weight to take the difference.
    """
    ends = range(-len(axes), 0)
    last = np.moveaxis(weights, axes, ends)
    lines = np.ascontiguousarray(last).reshape(-1, prod(last.shape[-len(axes) :]))
    rounded = _round_lines(lines, HALVES[dtype]).reshape(last.shape)
    return np.ascontiguousarray(np.moveaxis(rounded, ends, axes))


def _round_lines(lines: Array, dtype: type) -> Array:
    result: Array = np.empty(lines.shape, dtype)
    step = max(1, _PIECE // max(1, lines.shape[1]))
    for first in range(0, len(lines), step):
        result[first : first + step] = _rounded(lines[first : first + step], dtype)
    return result


def _rounded(lines: Array, dtype: type) -> Array:
    nearest: Array = lines.astype(dtype)
    error = lines - nearest.astype("float32")  # exact
    total = error.sum(axis=1, dtype="float64", keepdims=True)
    towards: Array = np.where(total > 0, np.inf, -np.inf).astype(dtype)
    other = np.nextafter(nearest, towards)
    step = other.astype("float32") - nearest.astype("float32")
    may = (error * np.sign(total) > 0) & np.isfinite(step)
    # By how little the weight is nearer to the one than to the other: those in the middle first.
    distance = np.where(may, -np.abs(error / np.where(may, step, 1)), 1)
    length = lines.shape[1]
    # A sum of errors is of some square root of them.
    count = min(length, 16 + int(4 * sqrt(length)))
    chosen = np.argpartition(distance, count - 1, axis=1)[:, :count] if count < length else None
    if chosen is None:
        chosen = np.argsort(distance, axis=1)
    else:
        order = np.argsort(np.take_along_axis(distance, chosen, 1), axis=1)
        chosen = np.take_along_axis(chosen, order, 1)
    steps = np.take_along_axis(np.where(may, step, 0), chosen, 1).astype("float64")
    left = np.abs(np.concatenate([total, total - steps.cumsum(axis=1)], axis=1))
    flipped = np.arange(count) < left.argmin(axis=1)[:, None]
    values = np.take_along_axis(nearest, chosen, 1)
    others = np.take_along_axis(np.where(may, other, nearest), chosen, 1)
    np.put_along_axis(nearest, chosen, np.where(flipped, others, values), 1)
    return nearest
