"""Inputs of cases: pictures, pages, sound, ids, by the words that describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["make_input"]


def make_input(shape: Sequence[int], values: str, dtype: np.dtype[Any], seed: int) -> np.ndarray:
    """Make an input of a case by the words that describe its values."""
    generator = np.random.default_rng(seed)
    kind, *numbers = values.split()
    if kind == "value":
        made = np.full(shape, float(numbers[0]))
    elif kind == "ids":
        made = generator.integers(int(numbers[0]), int(numbers[1]), shape)
    elif kind in ("zeros", "ones"):
        made = np.full(shape, float(kind == "ones"))
    elif kind == "audio":
        time = np.arange(np.prod(shape)).reshape(shape) / 16000
        made = 0.3 * np.sin(2 * np.pi * 220 * time) + 0.05 * generator.standard_normal(shape)
    elif kind in ("image", "pixels"):
        made = _smooth(shape, generator) * (255 if kind == "pixels" else 1)
    elif kind == "page":
        made = _page(shape, generator)
    elif kind == "seal":
        made = _seal(shape)
    elif kind == "normal":
        made = generator.standard_normal(shape)
    else:
        raise ValueError(f"an input's values are not {values!r}")
    return made.astype(dtype)


def _smooth(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Noise of several scales between 0 and 1: detections differ more than on white noise."""
    made = generator.random(shape)
    for axis_step in (4, 16, 64):
        layer = generator.random(shape)
        for axis, size in enumerate(shape):
            if size > 4:  # neither batch nor channels
                points = np.arange(size) / axis_step
                low = np.floor(points).astype(int)
                part = (points - low).reshape([-1 if a == axis else 1 for a in range(len(shape))])
                nodes = np.take(layer, np.minimum(low, size - 1), axis)
                after = np.take(layer, np.minimum(low + 1, size - 1), axis)
                layer = nodes * (1 - part) + after * part
        made = made + 2 * layer
    return (made - made.min()) / max(float(np.ptp(made)), 1e-6)


def _page(shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Lines of strokes like letters: a detector of text finds some, where noise has none."""
    height, width = shape[-2:]
    made = np.ones((height, width))
    step = height if height <= 64 else max(height // 6, 24)  # one line for a recogniser
    for top in range(step // 4, height - step // 2, step):
        for left in range(width // 20, width - width // 20, step // 2):
            if generator.random() < 0.85:  # else a space between words
                letter = made[top : top + step // 2, left : left + step // 3]
                bars = generator.random((2, 3)) < 0.6
                letter[:, :3] = -1
                letter[:: max(len(letter) // 2, 1)][: len(letter)] = -1 if bars[0, 0] else 1
                letter[-3:] = -1 if bars[0, 1] else letter[-3:]
                letter[:, -3:] = -1 if bars[1, 1] else letter[:, -3:]
                letter[:3] = -1 if bars[1, 2] else letter[:3]
    return np.clip(made + 0.02 * generator.standard_normal(shape), -1, 1)


def _seal(shape: Sequence[int]) -> np.ndarray:
    """A red stamp, blue channel first: a ring, and strokes along it."""
    y, x = np.mgrid[: shape[-2], : shape[-1]] - np.array(shape[-2:])[:, None, None] / 2
    radius, angle = np.hypot(y, x) / min(shape[-2:]), np.arctan2(y, x)
    letters = (radius > 0.31) & (radius < 0.41) & (np.floor(6 * angle) % 2 == 0)
    strokes = (np.floor(40 * radius) % 2 == 0) | (np.floor(30 * angle) % 3 == 0)
    marked = (letters & strokes) | ((radius > 0.44) & (radius < 0.46))
    made = np.full(shape, 2.2)
    made[..., :2, :, :] = np.where(marked, -1.8, 2.2)
    return made
