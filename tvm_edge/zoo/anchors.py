"""Anchor boxes of single-shot detectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shapes", "gluon_shapes", "ssd_anchors", "ssd_shapes"]

Shapes: TypeAlias = Sequence[tuple[float, float]]
"""``(scale, aspect ratio)`` of every anchor of a cell; the ratio is width to height."""

_MIN_SCALE, _MAX_SCALE = 0.2, 0.95
_ASPECT_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)


def ssd_shapes(maps: int = 6) -> list[Shapes]:
    """Return ``(scale, aspect ratio)`` of every anchor of a cell, one list per feature map.

    Liu et al., SSD, ECCV 2016, section 2.2, with the settings of TensorFlow's
    ``ssd_mobilenet_v1_coco``: scales evenly spaced from 0.2 to 0.95, five aspect ratios and one
    square of the geometric mean of this scale and the next; on the first map three anchors only.
    """
    scales = [*np.linspace(_MIN_SCALE, _MAX_SCALE, maps).tolist(), 1.0]
    shapes: list[Shapes] = [[(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]]
    for scale, following in pairwise(scales[1:]):
        between = (float(np.sqrt(scale * following)), 1.0)
        shapes.append([*((scale, ratio) for ratio in _ASPECT_RATIOS), between])
    return shapes


def gluon_shapes() -> list[Shapes]:
    """Return :func:`ssd_shapes` with the settings of GluonCV's ``ssd_512_resnet50_v1_voc``.

    On each map a square of its size and one of the geometric mean of its and the next size; then
    the other aspect ratios: 2 and 1/2 and, on the second to fourth map, 3 and 1/3.
    """
    sizes = np.array([51.2, 102.4, 189.4, 276.4, 363.52, 450.6, 492]) / 512
    shapes: list[Shapes] = []
    for index, (size, following) in enumerate(pairwise(sizes.tolist())):
        between = float(np.sqrt(size * following))
        ratios = (2.0, 0.5, 3.0, 1 / 3) if index in (1, 2, 3) else (2.0, 0.5)
        shapes.append([(size, 1.0), (between, 1.0), *((size, ratio) for ratio in ratios)])
    return shapes


def ssd_anchors(
    feature_maps: Sequence[tuple[int, int]],
    image_size: tuple[int, int],
    shapes: Sequence[Shapes] | None = None,
) -> NDArray[np.float32]:
    """Lay anchors over feature maps.

    Parameters
    ----------
    feature_maps : Sequence[tuple[int, int]]
        Height and width of each map, finest first.
    image_size : tuple[int, int]
        Height and width of the picture. Scales are fractions of its shorter side, so a square
        anchor is square in pixels.
    shapes : Sequence[Shapes], optional
        Of each map; by default those of :func:`ssd_shapes`.

    Returns
    -------
    NDArray[np.float32]
        ``[anchors, 4]``: centre y, centre x, height, width as fractions of the picture; ordered by
        map, row, column, shape.
    """
    unit_height, unit_width = min(image_size) / np.array(image_size)
    anchors = []
    every = ssd_shapes(len(feature_maps)) if shapes is None else shapes
    for (rows, columns), of_cell in zip(feature_maps, every, strict=True):
        scale, ratio = np.array(of_cell).T
        grid = np.empty((rows, columns, len(of_cell), 4))
        grid[..., 0] = ((np.arange(rows) + 0.5) / rows)[:, None, None]
        grid[..., 1] = ((np.arange(columns) + 0.5) / columns)[:, None]
        grid[..., 2] = scale / np.sqrt(ratio) * unit_height
        grid[..., 3] = scale * np.sqrt(ratio) * unit_width
        anchors.append(grid.reshape(-1, 4))
    return np.concatenate(anchors).astype(np.float32)
