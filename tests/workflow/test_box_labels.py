"""Labels of detectors: every form of outputs, and labels that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_edge import InputError, Picture
from tvm_edge.workflow import BoxLabels
from tvm_edge.workflow.box_labels import Judge
from tvm_edge.workflow.calibration_data import PictureFile, Samples

# One object of class 2 in the left upper quarter of a picture of 80×40, letterboxed to 64×64.
CAMERA = Picture(size=(40, 80), resize="letterbox")
SAMPLES = Samples([{"x": np.zeros((1, 3, 64, 64), "float32")}], (PictureFile("a", CAMERA),))
ARRAYS = Samples([{"x": np.zeros((1, 64, 64, 3), "float32")}])
LINE = "2 0.25 0.25 0.5 0.5"
IN_NETWORK = np.asarray([[0, 16, 32, 32]], "float32")  # 0.8 of its pixels, 16 lines lower


def outputs(boxes: np.ndarray, kind: int = 2) -> dict[str, np.ndarray]:
    return {
        "boxes": boxes,
        "scores": np.full(len(boxes), 0.9, "float32"),
        "labels": np.full(len(boxes), kind),
    }


def judge(folder: Path, line: str = LINE, **form: Any) -> Judge:
    (folder / "a.txt").write_text(f"{line}\n\n")
    return Judge(BoxLabels(folder, **form), SAMPLES)


FORMS: Mapping[str, np.ndarray] = {
    "xyxy": IN_NETWORK,
    "yxyx": IN_NETWORK[:, [1, 0, 3, 2]],
    "cxcywh": np.asarray([[16, 24, 32, 16]], "float32"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relative", [False, True])
def test_forms_of_boxes(tmp_path: Path, form: str, relative: bool) -> None:
    boxes = FORMS[form] / (64 if relative else 1)
    judged = judge(tmp_path, form=form, relative=relative)
    assert judged([outputs(boxes)]) == 1
    assert judged([outputs(boxes, kind=1)]) == 0
    moved = judged([outputs(boxes + 20 / (64 if relative else 1))])
    assert moved == 0, "it overlaps too little"


def test_outputs_of_other_exporters(tmp_path: Path) -> None:
    judged = judge(tmp_path)
    row = np.concatenate([IN_NETWORK, [[0.9, 2]]], axis=1)
    assert judged([{"output0": row[None]}]) == 1
    batch = {
        "detection_boxes": IN_NETWORK[None],
        "detection_scores": np.ones((1, 1), "float32"),
        "detection_classes": np.full((1, 1), 2, "float32"),
        "num_detections": np.ones(1, "float32"),
    }
    assert judged([batch]) == 1
    with pytest.raises(InputError, match=r"returns head \(1, 84, 8400\); leave them out, or"):
        judged([{"head": np.zeros((1, 84, 8400), "float32")}])


def test_labels_of_arrays() -> None:
    objects = [([[0, 0.25, 0.5, 0.5]], [2])]
    assert Judge(BoxLabels(objects), ARRAYS)([outputs(IN_NETWORK)]) == 1
    with pytest.raises(InputError, match=r"the float32 model finds none .* check that classes"):
        Judge(BoxLabels(objects), ARRAYS).checked([outputs(IN_NETWORK, kind=3)])


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([], "there are 0 of them, and 1 samples"),
        ([(np.zeros((2, 4)), [1])], "2 boxes and classes of the shape"),
        ([(np.zeros((2, 3)), [1, 1])], "those of sample 0 are no boxes and classes"),
        ([3], "those of sample 0 are no boxes and classes"),
        ([([[0, 0, 40, 40]], [1])], "coordinates from 0 to 40; give fractions"),
        ([([[0, 0, np.nan, 1]], [1])], "coordinates from nan to nan; give fractions"),
        ([(np.zeros((0, 4)), [])], "no picture has an object"),
        ("labels", "a folder of them goes with a folder of pictures"),
    ],
)
def test_arrays_that_do_not_fit(objects: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"^the labels do not fit: .*{said}"):
        Judge(BoxLabels(objects), ARRAYS)


@pytest.mark.parametrize(
    "line",
    ["2 0.5 0.5 0.1", "dog 1 1 1 1", "-1 0 0 1 1", "1.5 0 0 1 1", "inf 0 0 1 1", "nan 0 0 1 1"],
)
def test_lines_that_are_no_labels(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=rf"line 1 of .*a\.txt' is '{line}'; write CLASS"):
        judge(tmp_path, line)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no file for any of the pictures, as 'a\.txt'"):
        Judge(BoxLabels(tmp_path), SAMPLES)
    with pytest.raises(InputError, match="is no folder"):
        Judge(BoxLabels(tmp_path / "none"), SAMPLES)
    with pytest.raises(InputError, match="give fractions of the picture"):
        judge(tmp_path, "2 40 20 40 20")
    with pytest.raises(InputError, match="no picture has an object"):
        judge(tmp_path, "")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        Judge(BoxLabels(tmp_path), SAMPLES)
    with pytest.raises(InputError, match="form='xywh' is not a valid value"):
        judge(tmp_path, form="xywh")


def test_samples_that_are_no_pictures() -> None:
    row = Samples([{"x": np.zeros((1, 7), "float32")}])
    with pytest.raises(InputError, match="labels are of one picture each"):
        Judge(BoxLabels([([[0, 0, 1, 1]], [0])]), row)
