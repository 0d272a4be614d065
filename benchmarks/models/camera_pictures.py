"""A camera's bytes into a model, beside OpenCV's letterbox: outputs, and the time of preparing."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.paths import ROOT
from benchmarks.common.processes import Job, child_command, run_child
from benchmarks.common.timing import timed_runs
from benchmarks.cpu.runtimes import ENVIRONMENT

__all__ = ["CASES", "WAYS", "compared", "timed"]

WAYS = ("tvm-edge", "OpenCV, NumPy", "OpenCV blob")
"""The first is ours, the others are in the environment of the exports."""

_FILL = 114
_WARM_UP = 0.5  # seconds


@dataclass(frozen=True)
class _Case:
    """A network, and the picture that it is fed.

    Attributes
    ----------
    camera, network : (int, int)
        Height and width.
    input : str
    boxes : bool
        Whether the network ends with found objects.
    """

    camera: tuple[int, int]
    network: tuple[int, int]
    input: str
    boxes: bool


CASES: Mapping[str, _Case] = {
    "shapes_ssd": _Case((540, 960), (128, 128), "image", True),
    "yolov8n": _Case((720, 1280), (640, 640), "images", False),
}
_EXPORT = "ultralytics.yolov8n.dynamic"


# ------------------------------------------------------------------ the parent


def compared(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Prepare a picture by OpenCV and in the model, and compare what a network makes of both."""
    from benchmarks.models.export_cases import EXPORTS
    from benchmarks.models.exports import export, make_environment

    python = make_environment(options.environment)
    np.save(folder / f"{name}.frame.npy", _frame(CASES[name]))
    if not CASES[name].boxes:
        export(EXPORTS[_EXPORT].case(_EXPORT), folder, python)
    prepared = _in_environment(python, "prepare", name, folder)
    return prepared if "failed" in prepared else run_child(__name__, "compare", name, folder)


def timed(way: str, name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time a way of preparing a picture."""
    words = (name, options.threads, options.seconds)
    if way == WAYS[0]:
        return run_child(__name__, "time", *words, folder, **ENVIRONMENT["tvm-edge"])
    python = options.environment / "bin" / "python"
    return _in_environment(python, "time_opencv", way, *words, folder)


def _in_environment(python: Path, *job: object) -> dict[str, Any]:
    command = [str(python), *child_command(__name__, *job)[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no message"]
        return {"failed": f"exit status {done.returncode}: {said[-1][:200]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _frame(case: _Case) -> np.ndarray:
    """A camera's picture: a scene of shapes as large as it, blue first."""
    from PIL import Image

    from tvm_edge.zoo import shapes

    height, width = case.camera
    scene = Image.fromarray(shapes.draw(3, "held-out").pixels)
    # Square, beside a mirror image of its edge: shapes keep their form.
    whole = np.asarray(scene.resize((height, height), Image.Resampling.BICUBIC))
    wide = np.pad(whole, ((0, 0), (0, width - height), (0, 0)), mode="symmetric")
    return np.ascontiguousarray(wide[..., ::-1])


# ------------------------------------------------------------------ with OpenCV


def _letterboxed(frame: np.ndarray, case: _Case) -> np.ndarray:
    """ultralytics' letterbox: a picture of the network's size, of bytes."""
    import cv2

    (height, width), (new_height, new_width) = case.camera, case.network
    ratio = min(new_height / height, new_width / width)
    size = round(width * ratio), round(height * ratio)
    down, right = (new_height - size[1]) / 2, (new_width - size[0]) / 2
    resized = cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)
    edges = [round(down - 0.1), round(down + 0.1), round(right - 0.1), round(right + 0.1)]
    made: np.ndarray = cv2.copyMakeBorder(
        resized, *edges, cv2.BORDER_CONSTANT, value=(_FILL, _FILL, _FILL)
    )
    return made


def _by_numpy(frame: np.ndarray, case: _Case) -> np.ndarray:
    planes = np.ascontiguousarray(_letterboxed(frame, case)[None, ..., ::-1].transpose(0, 3, 1, 2))
    return planes.astype("float32") / np.float32(255)


def _by_blob(frame: np.ndarray, case: _Case) -> np.ndarray:
    import cv2

    made: np.ndarray = cv2.dnn.blobFromImage(_letterboxed(frame, case), 1 / 255, swapRB=True)
    return made


_BY: dict[str, Callable[[np.ndarray, _Case], np.ndarray]] = {WAYS[1]: _by_numpy, WAYS[2]: _by_blob}


def _prepare(name: str, folder: Path) -> dict[str, Any]:
    frame = np.load(folder / f"{name}.frame.npy")
    made = {way: prepare(frame, CASES[name]) for way, prepare in _BY.items()}
    assert np.allclose(*made.values(), atol=1e-6), "both ways prepare the same"
    exact = _by_numpy(frame.astype("float32"), CASES[name])
    np.savez(folder / f"{name}.opencv.npz", rounded=made[WAYS[1]], exact=exact)
    return {}


def _time_opencv(way: str, name: str, threads: str, seconds: str, folder: Path) -> dict[str, Any]:
    import cv2

    cv2.setNumThreads(int(threads))
    frame, case = np.load(folder / f"{name}.frame.npy"), CASES[name]
    return _timed(lambda: _BY[way](frame, case), float(seconds))


def _timed(run: Callable[[], Any], seconds: float) -> dict[str, Any]:
    timed_runs(run, _WARM_UP)
    samples = [each * 1e3 for each in timed_runs(run, seconds)]
    return {"ms": median(samples), "fastest_ms": min(samples), "repeat": len(samples)}


# ------------------------------------------------------------------ with tvm-edge


def _compare(name: str, folder: Path) -> dict[str, Any]:
    """Compare outputs for a camera's picture and OpenCV's, and write the preparation alone."""
    import tvm_edge
    from tvm_edge import Picture

    case = CASES[name]
    camera = Picture(size=case.camera, color="BGR→RGB", resize="letterbox", std=255.0)
    source: Any = "zoo:shapes_ssd" if case.boxes else folder / f"{_EXPORT}.onnx"
    shapes = {case.input: (1, 3, *case.network)}
    options: dict[str, Any] = {"input_shapes": shapes, "tuning_logs": False}
    ours = tvm_edge.compile(source, "llvm", preprocess={case.input: camera}, **options)
    plain = tvm_edge.compile(source, "llvm", **options)
    frame = np.load(folder / f"{name}.frame.npy")
    with np.load(folder / f"{name}.opencv.npz") as prepared:
        exact, rounded = prepared["exact"], prepared["rounded"]
    found = ours.run({case.input: frame[None]})
    expected = plain.run({case.input: exact})
    alone = tvm_edge.compile(
        _nothing(case), "llvm", preprocess={case.input: camera}, tuning_logs=False
    )
    alone.export(folder / f"{name}.prepare.tvme")
    made = alone.run({case.input: frame[None]})["same"]
    levels = {
        way: float(np.abs(made - each).max() * 255)
        for way, each in (("floats", exact), ("bytes", rounded))
    }
    return {
        "camera": f"{case.camera[1]}×{case.camera[0]}",
        "levels": levels,
        "apart": _boxes_apart(found, expected) if case.boxes else _apart(found, expected),
        "kernels": [kernel.name for kernel in alone.report.kernels],
    }


def _boxes_apart(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    if not np.array_equal(found["classes"], expected["classes"]):
        return f"**{len(found['classes'])} objects, with OpenCV's {len(expected['classes'])}**"
    boxes, scores = (float(np.abs(found[n] - expected[n]).max()) for n in ("boxes", "scores"))
    count = len(found["classes"])
    return f"the same {count} objects, boxes {boxes:.1e} of the picture apart, scores {scores:.1e}"


def _apart(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    largest = max(
        float(np.abs(found[n] - expected[n]).max() / np.abs(expected[n]).max()) for n in expected
    )
    return f"outputs {largest:.1e} of the largest value apart"


def _nothing(case: _Case) -> Any:
    """A network that returns its input."""
    from onnx import TensorProto, helper

    shape = [1, 3, *case.network]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (case.input, "same")
    ]
    node = helper.make_node("Identity", [case.input], ["same"], name="same")
    graph = helper.make_graph([node], "nothing", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _time(name: str, threads: str, seconds: str, folder: Path) -> dict[str, Any]:
    import tvm_edge

    model = tvm_edge.load(folder / f"{name}.prepare.tvme", num_threads=int(threads))
    data = {CASES[name].input: np.load(folder / f"{name}.frame.npy")[None]}
    return _timed(lambda: model.run(data), float(seconds))


JOBS: dict[str, Job] = {
    "prepare": _prepare,
    "time_opencv": _time_opencv,
    "compare": _compare,
    "time": _time,
}
