"""Filter banks of the mel scale: matrices that spectra of sound are multiplied by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, type_name
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = ["mel_weights"]

# Elements of a matrix.
_LARGEST = 1 << 24


def mel_weights(bands: int, points: int, rate: int, lowest: float, highest: float) -> np.ndarray:
    """Return the matrix that turns a spectrum into bands of the mel scale.

    Parameters
    ----------
    bands : int
        Triangles side by side on the mel scale, of height 1.
    points : int
        Points of the Fourier transform.
    rate : int
        Samples a second.
    lowest, highest : float
        Edges of the lowest and of the highest triangle, in hertz. As in ONNX Runtime the edges
        inside are a ``bands + 2``-th of that apart, not a ``bands + 1``-th.

    Returns
    -------
    numpy.ndarray
        ``(points // 2 + 1, bands)``, float64.

    Raises
    ------
    ValueError
        A number is out of range, or an edge beyond the spectrum.
    """
    if bands < 1 or points < 1 or rate < 1 or not -700 < min(lowest, highest):
        raise ValueError(f"{bands} bands from {lowest} to {highest} Hz of {points} points")
    height = points // 2 + 1
    if bands * height > _LARGEST:
        raise NotImplementedError(f"MelWeightMatrix of {bands} bands and {points} points")
    low, high = (2595 / np.log(10) * np.log1p(np.float64(f) / 700) for f in (lowest, highest))
    mels = low + np.arange(bands + 2) * ((high - low) / (bands + 2))
    hertz = 700 * np.expm1(mels * (np.log(10) / 2595))
    edges = ((points + 1) * hertz // rate).astype("int64")
    if edges.min() < 0 or edges[1:-1].max() >= height:
        raise ValueError(f"{bands} bands up to {highest} Hz in a spectrum of {height} points")
    at = np.arange(height)[:, None]
    lower, center, upper = edges[:-2], edges[1:-1], edges[2:]
    # A triangle without a side begins at its height.
    rising = np.where(center > lower, (at - lower) / np.maximum(center - lower, 1), 1.0)
    falling = np.where(upper > center, (upper - at) / np.maximum(upper - center, 1), 0.0)
    weights = np.where(at < center, rising, np.where(at == center, 1.0, falling))
    return np.where((at >= lower) & ((at < upper) | (at == center)), weights, 0.0)


def _convert(
    _bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    given = [constant_of(value) for value in inputs]
    if any(value is None for value in given):
        raise NotImplementedError("MelWeightMatrix of numbers known only at run time")
    bands, points, rate, lowest, highest = (value.item() for value in given if value is not None)
    kind = type_name(attrs.get("output_datatype", 1))
    made = mel_weights(int(bands), int(points), int(rate), float(lowest), float(highest))
    return relax.const(made.astype(kind), kind)


register("MelWeightMatrix", convert=_convert, forming=(0, 1, 2, 3, 4))
