"""Prior boxes of single-shot detectors: constants, as they depend on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["prior_boxes"]


def prior_boxes(
    height: int,
    width: int,
    *,
    sizes: Sequence[float],
    ratios: Sequence[float],
    steps: Sequence[float],
    offsets: Sequence[float],
    clip: bool,
) -> NDArray[np.float64]:
    """Return the boxes of a map, ``(1, height * width * (len(sizes) + len(ratios) - 1), 4)``.

    Parameters as of :func:`tvm_edge.ops.multibox_prior`, without defaults; `height` and `width` are
    at least 1.
    """
    if min(steps) <= 0:  # one is enough, as in MXNet
        steps = (1 / height, 1 / width)
    roots = np.sqrt(np.asarray([ratios[0]] * len(sizes) + list(ratios[1:]), "float64"))
    every = np.asarray(list(sizes) + [sizes[0]] * (len(ratios) - 1), "float64")
    # Sizes are fractions of the height on both axes: boxes of ratio 1 are square pixel by pixel.
    half = np.stack([every * height / width * roots, every / roots], axis=-1) / 2
    y, x = ((np.arange(n) + o) * s for n, o, s in zip((height, width), offsets, steps, strict=True))
    centre = np.stack(np.meshgrid(x, y), axis=-1)[:, :, None]
    boxes = np.concatenate([centre - half, centre + half], axis=-1).reshape(1, -1, 4)
    return boxes.clip(0, 1) if clip else boxes
