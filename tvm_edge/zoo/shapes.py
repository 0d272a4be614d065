"""Pictures of shapes with their boxes: what ``shapes_ssd`` is trained and evaluated on.

No download, no files, nothing but NumPy: training, tests and the demo draw the same pictures
anywhere. They are not easy: objects of 10 to 90 of 128 pixels overlap, turn, stretch, and may look
much like what is behind them; there are gradients, stripes, lines and noise.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSES", "SIZE", "Scene", "draw", "network_input"]

CLASSES = ("circle", "square", "triangle", "star", "cross", "ring")
SIZE = 128
"""Height and width of a picture, in pixels."""

# 1 was looked at while the recipe was being chosen.
_SPLITS = {"train": 0, "held-out": 3, "sample": 2}
_SEED = 0x5348A9E5
_SMALLEST, _LARGEST = 10.0, 90.0  # pixels, the longer side of a box
_MOST_HIDDEN = 0.4  # of an object's pixels, by those drawn after it
_ROUND = 36  # corners of what passes for a circle

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """A picture and what is in it.

    Attributes
    ----------
    pixels : NDArray[np.uint8]
        ``[128, 128, 3]``: rows, columns, red-green-blue.
    boxes : NDArray[np.float32]
        ``[objects, 4]``: y1, x1, y2, x2 as fractions of the picture, of whole objects: parts that
        others hide count.
    classes : NDArray[np.int64]
        ``[objects]``: indices into :data:`CLASSES`.
    """

    pixels: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]


def draw(index: int, split: Literal["train", "held-out", "sample"] = "sample") -> Scene:
    """Draw one picture.

    Parameters
    ----------
    index : int
        Of the picture in its set, from 0. Each picture has random numbers of its own, so that the
        first pictures of a large set are those of a small one.
    split : {"train", "held-out", "sample"}
        The set. Pictures of different sets have nothing in common.

    Returns
    -------
    Scene
        One to eight objects; equal arguments give equal scenes.
    """
    rng = np.random.default_rng([_SEED, _SPLITS[split], index])
    canvas = _background(rng)
    boxes: list[Floats] = []
    classes: list[int] = []
    visible: list[tuple[NDArray[np.bool_], int]] = []  # pixels left, and how many there were
    for _ in range(int(rng.integers(1, 9))):
        kind = int(rng.integers(len(CLASSES)))
        outlines = _place(rng, _outlines(rng, CLASSES[kind]))
        coverage = _coverage(outlines)
        mask = coverage > 0.5
        if any((left & ~mask).sum() < (1 - _MOST_HIDDEN) * whole for left, whole in visible):
            continue
        visible = [(left & ~mask, whole) for left, whole in visible]
        visible.append((mask, int(mask.sum())))
        _paint(rng, canvas, coverage)
        boxes.append(np.concatenate([outlines[0].min(0), outlines[0].max(0)]))
        classes.append(kind)
    canvas += rng.normal(0, rng.uniform(0.01, 0.05), canvas.shape)
    # Whole grey levels also absorb the last-bit differences between libm implementations.
    pixels = np.round(np.clip(canvas, 0, 1) * 255).astype(np.uint8)
    return Scene(pixels, (np.stack(boxes) / SIZE).astype(np.float32), np.array(classes, np.int64))


def network_input(*scenes: Scene) -> NDArray[np.float32]:
    """Turn pictures into a network's input: ``[pictures, 3, 128, 128]``, from 0 to 1."""
    pixels = np.stack([scene.pixels for scene in scenes])
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32) / np.float32(255)


def _background(rng: np.random.Generator) -> Floats:
    """Light that changes slowly, stripes, and lines that are no objects: ``[128, 128, 3]``."""
    canvas = np.broadcast_to(rng.uniform(0.1, 0.9, 3), (SIZE, SIZE, 3)).copy()
    for periods in ((0.2, 1.0), (0.5, 2.0), (3.0, 20.0)):
        amplitude = rng.normal(0, 0.08, 3)
        canvas += _wave(rng, periods)[..., None] * amplitude
    for _ in range(int(rng.integers(0, 5))):
        start, end = rng.uniform(-10, SIZE + 10, (2, 2))
        distance = _distance_to_edge(*_grid(), start, end)
        line = np.clip(rng.uniform(0.5, 2.5) - distance + 0.5, 0, 1)[..., None]
        canvas += line * (rng.uniform(0, 1, 3) - canvas)
    return canvas


def _paint(rng: np.random.Generator, canvas: Floats, coverage: Floats) -> None:
    """Lay an object of a random colour, half of them striped, on `canvas`."""
    behind = canvas[coverage > 0.5].mean(0)
    colour = rng.uniform(0, 1, 3)
    while np.abs(colour - behind).max() < 0.2:
        colour = rng.uniform(0, 1, 3)
    stripes = max(0.0, rng.uniform(-0.15, 0.15)) * _wave(rng, (4.0, 25.0))
    canvas += coverage[..., None] * (colour + stripes[..., None] - canvas)


def _outlines(rng: np.random.Generator, kind: str) -> list[Floats]:
    """Corners ``[n, 2]`` of a shape about the origin; a second list is a hole."""
    if kind == "square":
        return [_spokes(1.0, count=4)]
    if kind == "triangle":
        return [_spokes(1.0, count=3)]
    if kind == "star":
        return [_spokes(1.0, rng.uniform(0.38, 0.5), count=5)]
    if kind == "cross":
        w = rng.uniform(0.22, 0.38)
        arm = np.array([(1.0, -w), (1.0, w), (w, w)])
        turns = [arm @ np.array([(c, s), (-s, c)]) for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1))]
        return [np.concatenate(turns)]
    circle = _spokes(1.0, count=_ROUND)
    return [circle, circle * rng.uniform(0.4, 0.7)] if kind == "ring" else [circle]


def _spokes(*radii: float, count: int) -> Floats:
    """Corners at `radii` in turn, evenly around the origin."""
    angle = np.arange(count * len(radii)) * (2 * np.pi / (count * len(radii)))
    return np.tile(radii, count)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _place(rng: np.random.Generator, outlines: list[Floats]) -> list[Floats]:
    """Stretch, turn, scale and move a shape into the picture: pixels ``(y, x)``."""
    c, s = np.cos(turn := rng.uniform(0, 2 * np.pi)), np.sin(turn)
    stretch = np.diag([1.0, rng.uniform(0.7, 1.0)])
    transform = stretch @ np.array([(c, s), (-s, c)])
    low, high = (outlines[0] @ transform).min(0), (outlines[0] @ transform).max(0)
    size = rng.uniform(_SMALLEST**0.5, _LARGEST**0.5) ** 2  # more small ones than large ones
    scale = size / (high - low).max()
    low, high = low * scale, high * scale
    corner = rng.uniform(1, SIZE - 1 - (high - low))
    return [(outline @ transform) * scale - low + corner for outline in outlines]


def _coverage(outlines: list[Floats]) -> Floats:
    """Share of each pixel that a shape covers, 0 to 1: ``[128, 128]``."""
    shape, *holes = (_covered(outline) for outline in outlines)
    for hole in holes:
        shape = shape - hole
    return shape


def _covered(corners: Floats) -> Floats:
    """:func:`_coverage` of a polygon: its signed distance, half a pixel to either side."""
    whole = np.zeros((SIZE, SIZE))
    top, left = np.maximum(np.floor(corners.min(0)).astype(int) - 1, 0)
    bottom, right = np.ceil(corners.max(0)).astype(int) + 1
    part = (slice(top, bottom), slice(left, right))
    y, x = (axis[part] for axis in _grid())
    distance = np.full(y.shape, np.inf)
    inside = np.zeros(y.shape, bool)
    for a, b in pairwise([*corners, corners[0]]):
        distance = np.minimum(distance, _distance_to_edge(y, x, a, b))
        if a[0] != b[0]:
            crosses = (a[0] > y) != (b[0] > y)
            inside ^= crosses & (x < (b[1] - a[1]) * (y - a[0]) / (b[0] - a[0]) + a[1])
    whole[part] = np.clip(0.5 + np.where(inside, distance, -distance), 0, 1)
    return whole


def _distance_to_edge(y: Floats, x: Floats, a: Floats, b: Floats) -> Floats:
    """From each pixel to the line from `a` to `b`."""
    along = b - a
    dy, dx = y - a[0], x - a[1]
    t = np.clip((dy * along[0] + dx * along[1]) / (along @ along), 0, 1)
    distance: Floats = np.hypot(dy - t * along[0], dx - t * along[1])
    return distance


@functools.cache
def _grid() -> tuple[Floats, Floats]:
    """Rows and columns of the pixels' centres; nobody writes them."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] + 0.5
    return y, x


def _wave(rng: np.random.Generator, periods: tuple[float, float]) -> Floats:
    """A plane wave of random direction and phase, with so many periods across the picture."""
    angle, phase = rng.uniform(0, 2 * np.pi, 2)
    y, x = _grid()
    along = (y * np.sin(angle) + x * np.cos(angle)) / SIZE
    wave: Floats = np.sin(2 * np.pi * rng.uniform(*periods) * along + phase)
    return wave
