"""Synthetic pictures: smooth light, objects with edges and texture, and sensor noise.

White noise has neither the spatial correlation nor the variety of a photograph; pooled over a
feature map, every white-noise input looks alike to a network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["pictures"]

_OBJECTS = 12
_NOISE = 0.03


def pictures(count: int, size: tuple[int, int], seed: Sequence[int]) -> NDArray[np.float32]:
    """Draw `count` pictures.

    Parameters
    ----------
    count : int
        How many.
    size : tuple[int, int]
        Height and width, in pixels.
    seed : Sequence[int]
        Non-negative integers; equal seeds give equal pictures on every machine.

    Returns
    -------
    NDArray[np.float32]
        ``[count, 3, height, width]``, 8-bit pixels normalised to (p / 255 - 0.5) / 0.25: within
        [-2, 2], about unit scale.
    """
    rng = np.random.default_rng(list(seed))
    drawn = np.stack([_picture(rng, size) for _ in range(count)])
    # Whole grey levels also absorb the last-bit differences between libm implementations.
    levels = np.round(np.clip(drawn, 0, 1) * 255)
    return ((levels / 255 - 0.5) / 0.25).astype(np.float32)


def _picture(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float64]:
    """One picture ``[3, height, width]``, nominally within [0, 1]."""
    height, width = size
    y, x = np.mgrid[0:height, 0:width] / min(size)
    canvas = rng.uniform(0.2, 0.8, (3, 1, 1)) + np.zeros((3, height, width))
    for _ in range(3):
        canvas += rng.normal(0, 0.12, (3, 1, 1)) * _waves(rng, y, x, frequency=(0.2, 1.5))
    for _ in range(_OBJECTS):
        inside = _outline(rng, y, x)
        colour = rng.uniform(0, 1, (3, 1, 1))
        texture = rng.uniform(0, 0.25) * _waves(rng, y, x, frequency=(4, 25))
        canvas = np.where(inside, colour + texture, canvas)
    return canvas + rng.normal(0, _NOISE, canvas.shape)


def _waves(
    rng: np.random.Generator,
    y: NDArray[np.float64],
    x: NDArray[np.float64],
    frequency: tuple[float, float],
) -> NDArray[np.float64]:
    """A plane wave of random direction and phase, `frequency` in periods per shorter side."""
    angle, phase = rng.uniform(0, 2 * np.pi, 2)
    along = y * np.sin(angle) + x * np.cos(angle)
    wave: NDArray[np.float64] = np.sin(2 * np.pi * rng.uniform(*frequency) * along + phase)
    return wave


def _outline(
    rng: np.random.Generator, y: NDArray[np.float64], x: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """The pixels of a random ellipse or rectangle."""
    centre_y, centre_x = rng.uniform(0, y.max()), rng.uniform(0, x.max())
    half_height, half_width = rng.uniform(0.03, 0.25, 2)
    dy, dx = np.abs(y - centre_y) / half_height, np.abs(x - centre_x) / half_width
    inside: NDArray[np.bool_] = dy**2 + dx**2 < 1 if rng.random() < 0.5 else (dy < 1) & (dx < 1)
    return inside
