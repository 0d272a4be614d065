"""Which anchor answers for which object (SSD, section 2.2), in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tvm_edge.zoo.average_precision import box_iou
from tvm_edge.zoo.detection import BOX_SCALES

# An anchor answers for an object that it overlaps by the first, for none below the second, and
# counts for nothing between: the smallest objects overlap no anchor by more than 0.4 or so.
FOUND, NONE = 0.45, 0.35


def targets(
    anchors: NDArray[np.float32], boxes: NDArray[np.float32], classes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return what a network should say of a picture's `anchors`.

    Parameters
    ----------
    anchors : NDArray[np.float32]
        ``[P, 4]``: centre y, centre x, height, width.
    boxes, classes : NDArray
        The picture's objects, as in :class:`tvm_edge.zoo.shapes.Scene`.

    Returns
    -------
    labels : NDArray[np.int64]
        ``[P]``: 1 + class, 0 for the background, -1 for what counts for nothing.
    encodings : NDArray[np.float32]
        ``[P, 4]``: centre and size relative to the anchor's, scaled as in SSD.
    """
    half = anchors[:, 2:] / 2
    overlap = box_iou(np.concatenate([anchors[:, :2] - half, anchors[:, :2] + half], 1), boxes)
    best = overlap.argmax(0)
    nearest = overlap.argmax(1)
    # Each object has its best anchor at least; small ones choose last, as they have fewest.
    for index in np.argsort(-(boxes[:, 2:] - boxes[:, :2]).prod(1)):
        nearest[best[index]] = index
    value = overlap.max(1)
    value[best] = 1.0
    labels = np.where(value >= FOUND, 1 + classes[nearest], np.where(value < NONE, 0, -1))
    own = boxes[nearest]
    centre, size = (own[:, :2] + own[:, 2:]) / 2, own[:, 2:] - own[:, :2]
    shift = (centre - anchors[:, :2]) / anchors[:, 2:]
    encodings = np.concatenate([shift, np.log(size / anchors[:, 2:])], 1) * BOX_SCALES
    return labels, encodings.astype(np.float32)
