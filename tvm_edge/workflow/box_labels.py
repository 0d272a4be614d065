"""Labels of a detector's pictures, and its mean average precision by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_edge.errors import InputError, one_line
from tvm_edge.frontend.picture import Picture
from tvm_edge.workflow.calibration_data import Samples
from tvm_edge.workflow.postprocess import BOX_FORMS, boxes_in_picture
from tvm_edge.zoo.average_precision import Detections, Truth, mean_average_precision

__all__ = ["BoxLabels", "Judge"]

_LEAST = 0.01  # a detector below finds the labelled objects by chance
_COLUMNS = 6  # corners, score and class in one row
_SLACK = 1e-3  # of fractions that were rounded when they were written


@dataclass(frozen=True)
class BoxLabels:
    """Objects in the pictures that a detector is judged by.

    Attributes
    ----------
    objects : path or sequence of (boxes, classes)
        A folder with a text file of the name of each picture, as ultralytics has them: a line
        ``CLASS X Y WIDTH HEIGHT`` for each object, its centre and size in fractions of the picture.
        A picture without one has no objects. Or boxes (objects, 4), as x and y of both corners in
        fractions of the picture, and classes for each sample.
    form : {"xyxy", "yxyx", "cxcywh"}
        Form of the boxes that the model returns.
    relative : bool
        Whether those are fractions of the network's input, and not pixels of it.
    """

    objects: Any
    form: str = "xyxy"
    relative: bool = False


class Judge:
    """Mean average precision of a detector over labelled samples.

    Parameters
    ----------
    labels : BoxLabels
    samples : Samples

    Raises
    ------
    InputError
        The labels cannot be read, or do not fit the samples.
    """

    def __init__(self, labels: BoxLabels, samples: Samples) -> None:
        if labels.form not in BOX_FORMS:
            raise InputError(
                f"labels: form={labels.form!r} is not a valid value; use one of "
                f"{', '.join(BOX_FORMS)}",
                name="form",
                got=repr(labels.form),
            )
        self._labels = labels
        shapes = [next(iter(each.values())).shape for each in samples.inputs]
        self._networks = [_network_size(shape) for shape in shapes]
        self._pictures = [file.picture for file in samples.files] or [Picture()] * len(shapes)
        if isinstance(labels.objects, Sequence) and not isinstance(labels.objects, (str, bytes)):
            truth = _given(labels.objects, len(shapes))
        else:
            truth = _from_folder(Path(labels.objects), samples)
        if not any(len(classes) for _, classes in truth):
            raise _refused("no picture has an object in them", "name another folder")
        sizes = zip(self._pictures, self._networks, strict=True)
        self._truth = [
            (boxes * np.tile((picture.size or network)[::-1], 2), classes)
            for (boxes, classes), (picture, network) in zip(truth, sizes, strict=True)
        ]

    def __call__(self, outputs: Sequence[Mapping[str, np.ndarray]]) -> float:
        """Return the mAP at an IoU of 0.5 of what a model finds in each sample."""
        places = zip(outputs, self._pictures, self._networks, strict=True)
        return mean_average_precision([self._detections(*each) for each in places], self._truth)

    def checked(self, outputs: Sequence[Mapping[str, np.ndarray]]) -> float:
        """Return the mAP of the float32 model.

        Raises
        ------
        InputError
            It finds next to nothing: labels, classes or boxes are others than the model's.
        """
        found = self(outputs)
        if found < _LEAST:
            raise _refused(
                f"the float32 model finds none of the labelled objects (mAP {found:.4f})",
                "check that classes are numbered as the model's, from 0, and say how the model "
                f"returns boxes (now form={self._labels.form!r}, relative={self._labels.relative})",
            )
        return found

    def _detections(
        self, outputs: Mapping[str, np.ndarray], picture: Picture, network: tuple[int, int]
    ) -> Detections:
        boxes, scores, classes = _fields(outputs)
        form, relative = self._labels.form, self._labels.relative
        placed = boxes_in_picture(boxes, picture, network, form=form, relative=relative)
        return placed, scores, classes


def _network_size(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) != 4 or shape[0] != 1:
        raise _refused(
            f"a sample has the shape {tuple(shape)}, and labels are of one picture each",
            "give samples of the shape (1, channels, height, width)",
        )
    height, width = shape[2:] if shape[1] in (1, 3) else shape[1:3]
    return height, width


def _fields(outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes, scores and classes among the outputs of a detector."""
    for columns in (_COLUMNS, 4):
        rows = [v for v in outputs.values() if v.ndim in (2, 3) and v.shape[-1] == columns]
        if len(rows) != 1 or (rows[0].ndim == 3 and rows[0].shape[0] != 1):
            continue
        (found,) = rows
        table = found.reshape(-1, columns)
        if columns == _COLUMNS:
            return table[:, :4], table[:, 4], table[:, 5]
        beside = {n: v.ravel() for n, v in outputs.items() if v.shape == found.shape[:-1]}
        classes = [v for n, v in beside.items() if _is_class(n, v)]
        scores = [v for n, v in beside.items() if not _is_class(n, v)]
        if len(classes) == 1 and len(scores) == 1:
            return table, scores[0], classes[0]
    shown = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
    raise _refused(
        "the model does not return boxes (n, 4), scores (n) and classes (n), nor all in one output "
        f"(n, 6); it returns {shown}",
        "leave them out, or export the model with its suppression",
    )


def _is_class(name: str, value: np.ndarray) -> bool:
    return value.dtype.kind in "iu" or any(word in name.lower() for word in ("class", "label"))


def _given(objects: Sequence[Any], count: int) -> list[Truth]:
    if len(objects) != count:
        raise _refused(
            f"there are {len(objects)} of them, and {count} samples",
            "give boxes and classes for each sample",
        )
    truth = []
    for number, pair in enumerate(objects):
        try:
            boxes, classes = (np.asarray(each) for each in pair)
            boxes = boxes.astype("float64").reshape(-1, 4)
        except (TypeError, ValueError) as err:
            raise _refused(
                f"those of sample {number} are no boxes and classes: {one_line(err)}",
                "give arrays of the shapes (objects, 4) and (objects,)",
            ) from err
        if classes.shape != boxes.shape[:1]:
            raise _refused(
                f"sample {number} has {len(boxes)} boxes and classes of the shape {classes.shape}",
                "give a class for each box",
            )
        _check_fractions(boxes, f"sample {number}")
        truth.append((boxes, classes))
    return truth


def _from_folder(folder: Path, samples: Samples) -> list[Truth]:
    if not samples.files:
        raise _refused(
            "a folder of them goes with a folder of pictures",
            "give boxes and classes for each sample, in Python",
        )
    if not folder.is_dir():
        raise _refused(f"{str(folder)!r} is no folder", "name the folder of the text files")
    paths = [folder / f"{file.stem}.txt" for file in samples.files]
    if not any(path.exists() for path in paths):
        raise _refused(
            f"{str(folder)!r} has no file for any of the pictures, as {paths[0].name!r}",
            "name another folder",
        )
    return [_read(path) if path.exists() else (np.zeros((0, 4)), np.zeros(0)) for path in paths]


def _read(path: Path) -> Truth:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise _refused(f"cannot read {str(path)!r}: {one_line(err)}", "replace the file") from err
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = [float(word) for word in line.split()]
        except ValueError:
            row = []
        if len(row) != 5 or row[0] < 0 or not row[0].is_integer():
            raise _refused(
                f"line {number} of {str(path)!r} is {line.strip()[:60]!r}",
                "write CLASS X Y WIDTH HEIGHT, the class as a number from 0",
            )
        rows.append(row)
    table = np.asarray(rows).reshape(-1, 5)
    centre, half = table[:, 1:3], table[:, 3:] / 2
    boxes = np.concatenate([centre - half, centre + half], axis=1)
    _check_fractions(boxes, repr(str(path)))
    return boxes, table[:, 0]


def _check_fractions(boxes: np.ndarray, where: str) -> None:
    # An object may reach beyond its picture, but not by far.
    if boxes.size and not (boxes.min() >= -1 - _SLACK and boxes.max() <= 2 + _SLACK):
        raise _refused(
            f"a box of {where} has coordinates from {boxes.min():g} to {boxes.max():g}",
            "give fractions of the picture, from 0 to 1",
        )


def _refused(what: str, advice: str) -> InputError:
    return InputError(f"the labels do not fit: {what}; {advice}", name="labels")
