"""Outputs of networks as people read them: labels with scores, and boxes in the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_edge.errors import InputError
from tvm_edge.frontend.picture import Picture

__all__ = ["BOX_FORMS", "Label", "boxes_in_picture", "top_labels"]

BOX_FORMS = ("xyxy", "yxyx", "cxcywh")


@dataclass(frozen=True)
class Label:
    """A class and its score.

    Attributes
    ----------
    index : int
    name : str
        Its index where no names were given.
    score : float
    """

    index: int
    name: str
    score: float


def top_labels(
    scores: np.ndarray, k: int = 5, labels: Sequence[str] | None = None, *, softmax: bool = True
) -> list[list[Label]]:
    """Return the largest scores of each picture, descending; equal ones by index.

    Parameters
    ----------
    scores : numpy.ndarray
        (pictures, classes), with axes of length 1 after them.
    k : int
    labels : sequence of str, optional
        Names of the classes.
    softmax : bool
        Whether `scores` are logits.

    Raises
    ------
    InputError
        `scores` have no classes, or there are not as many labels.
    """
    values = np.asarray(scores, "float64")
    values = values.reshape(values.shape[0], -1) if values.ndim > 1 else values.reshape(1, -1)
    classes = values.shape[1]
    if not classes or k < 1:
        raise InputError(
            f"there are no {k} largest of scores of the shape {np.shape(scores)}; give scores of "
            "the shape (pictures, classes), and k of 1 or more",
            name="scores",
        )
    if labels is not None and len(labels) != classes:
        raise InputError(
            f"there are {len(labels)} labels, and the model has {classes} classes; give a name for "
            "each class",
            name="labels",
            expected=str(classes),
            got=str(len(labels)),
        )
    if softmax:
        values = np.exp(values - values.max(axis=1, keepdims=True))
        values /= values.sum(axis=1, keepdims=True)
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    return [
        [Label(int(i), str(i) if labels is None else labels[i], float(row[i])) for i in chosen]
        for row, chosen in zip(values, order, strict=True)
    ]


def boxes_in_picture(
    boxes: np.ndarray,
    picture: Picture,
    network: tuple[int, int],
    *,
    form: str = "xyxy",
    relative: bool = False,
) -> np.ndarray:
    """Bring boxes from the input of a network to the pixels of the picture.

    Parameters
    ----------
    boxes : numpy.ndarray
        (…, 4).
    picture : Picture
        As given to :func:`tvm_edge.compile`; its `size` is the picture's.
    network : (int, int)
        Height and width of the network's input.
    form : {"xyxy", "yxyx", "cxcywh"}
        Corners, or the centre with width and height.
    relative : bool
        Whether coordinates are from 0 to 1, and not pixels of the network's input.

    Returns
    -------
    numpy.ndarray
        float32, x and y of the first corner, x and y of the second, inside of the picture.

    Raises
    ------
    InputError
    """
    values = np.asarray(boxes, "float64")
    if form not in BOX_FORMS or values.ndim < 1 or values.shape[-1] != 4:
        raise InputError(
            f"boxes of the shape {np.shape(boxes)} and form={form!r} are none; give (…, 4) and one "
            f"of {', '.join(BOX_FORMS)}",
            name="boxes",
        )
    height, width = network
    placing = picture.placing(height, width)
    old_height, old_width = picture.size or network
    first, second = values[..., :2], values[..., 2:]
    if form == "cxcywh":
        first, second = first - second / 2, first + second / 2
    corners = np.stack([first, second], axis=-2)
    if form == "yxyx":
        corners = corners[..., ::-1]
    if relative:
        corners = corners * (width, height)
    corners = corners - (placing.left, placing.top)
    corners = corners / (placing.scale_x, placing.scale_y)
    corners = np.clip(corners, 0, (old_width, old_height))
    return corners.reshape(values.shape).astype("float32")
