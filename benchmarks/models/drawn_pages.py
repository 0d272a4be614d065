"""Pages of text, one of four ways up: pictures for a classifier of their orientation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Page", "draw_page"]

_SEED = 7
_LETTERS = 26
_WORDS = 12


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes
    ----------
    pixels : NDArray[np.uint8]
        ``[height, width, 3]``, red first.
    label : int
        Quarter turns, clockwise.
    """

    pixels: NDArray[np.uint8]
    label: int


def draw_page(index: int) -> Page:
    """Draw a page by its number: size, font size, colours, words and turn are seeded by it."""
    from PIL import Image, ImageDraw, ImageFont

    random = np.random.default_rng([_SEED, index])
    width, height = int(random.integers(360, 560)), int(random.integers(360, 700))
    paper, ink = (
        tuple(map(int, random.integers(low, high, 3))) for low, high in ((200, 256), (0, 90))
    )
    image = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(image)
    size = int(random.integers(14, 28))
    font = ImageFont.load_default(size)
    y = int(random.integers(10, 40))
    while y < height - size:
        words = (
            bytes(97 + random.integers(0, _LETTERS, int(random.integers(2, 10))).astype("uint8"))
            for _ in range(_WORDS)
        )
        line = b" ".join(words).decode().capitalize()
        filled = 1.0 if random.random() > 0.2 else random.uniform(0.3, 1)
        fits = int((width - 24) / (size * 0.52) * filled)
        draw.text((12, y), line[:fits], fill=ink, font=font)
        y += int(size * random.uniform(1.3, 1.7))
    turns = int(random.integers(4))
    return Page(np.ascontiguousarray(np.rot90(np.asarray(image), -turns)), turns)
