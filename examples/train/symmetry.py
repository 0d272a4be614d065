"""Turn and mirror a batch of pictures and what a network should say of their anchors.

Anchors are square and lie evenly, so that turned ones are anchors again: targets move with them.
"""

from __future__ import annotations

import torch
from model import ANCHOR_SIZES, MAP_SIZES
from torch import Tensor


def turned_picture(x: Tensor, down: bool, right: bool, swap: bool) -> Tensor:
    """Mirror ``[N, C, H, W]`` up-down, left-right, and swap rows and columns, in this order."""
    x = x.flip([axis for axis, mirrored in ((2, down), (3, right)) if mirrored])
    return x.transpose(2, 3) if swap else x


def turned(
    labels: Tensor, encodings: Tensor, down: bool, right: bool, swap: bool
) -> tuple[Tensor, Tensor]:
    """The same of labels ``[N, P]`` and encodings ``[N, P, 4]``."""
    signs = torch.tensor([-1.0 if down else 1.0, -1.0 if right else 1.0, 1.0, 1.0])
    encodings = encodings * signs
    if swap:
        encodings = encodings[..., [1, 0, 3, 2]]
    return tuple(_anchors(values, down, right, swap) for values in (labels, encodings))


def _anchors(values: Tensor, down: bool, right: bool, swap: bool) -> Tensor:
    """Move ``[N, P, …]`` as the cells of the maps move."""
    parts, start = [], 0
    for size, shapes in zip(MAP_SIZES, ANCHOR_SIZES, strict=True):
        end = start + size * size * len(shapes)
        part = values[:, start:end].unflatten(1, (size, size, len(shapes)))
        part = part.flip([axis for axis, mirrored in ((1, down), (2, right)) if mirrored])
        part = part.transpose(1, 2) if swap else part
        parts.append(part.flatten(1, 3))
        start = end
    return torch.cat(parts, 1)
