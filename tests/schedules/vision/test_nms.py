"""Suppression keeps the boxes that ONNX Runtime keeps, in its order, on every device."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import tirx

from tests.onnx_models import make_model, session
from tests.schedules.vision.harness import Machine, machine, run_kernel, run_operator
from tvm_edge import ops
from tvm_edge.schedules.emit import each, function
from tvm_edge.schedules.vision import nms
from tvm_edge.schedules.vision.boxes import Overlap, load_box
from tvm_edge.schedules.vision.cpu import nms as cpu_nms
from tvm_edge.schedules.vision.gpu import nms as gpu_nms

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


@pytest.fixture(params=["llvm", "opencl-local", "cuda-local"])
def device(request: pytest.FixtureRequest) -> Machine:
    """Only the sort in front of a suppression is another one without local memory."""
    return machine(str(request.param))


@cache
def opened(
    shape: tuple[int, int, int], most: int, iou: float, score: float | None, center: bool
) -> Any:
    """ONNX Runtime's session with a NonMaxSuppression."""
    batch, _, boxes = shape
    limits = {"most": np.array([most]), "iou": np.array([iou], "float32")}
    if score is not None:
        limits["score"] = np.array([score], "float32")
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", *limits], ["y"], center_point_box=int(center)
    )
    model = make_model(
        [node],
        {"boxes": (batch, boxes, 4), "scores": shape},
        ["y"],
        limits,
        dtypes={"y": TensorProto.INT64},
    )
    return session(model)


def expected(boxes: np.ndarray, scores: np.ndarray, *how: Any) -> np.ndarray:
    """ONNX Runtime's answer."""
    feed = {"boxes": boxes, "scores": scores}
    return np.asarray(opened(scores.shape, *how).run(None, feed)[0])


def select(
    on: Machine,
    boxes: np.ndarray,
    scores: np.ndarray,
    most: int,
    iou: float,
    score: float | None,
    center: bool = False,
) -> np.ndarray:
    """Return the boxes that our kernel selects, as ONNX lists them."""
    batch, classes, count = scores.shape
    most = min(most, count)
    kernel = nms.select_boxes(
        batch,
        classes,
        count,
        on.spec,
        max_selected=most,
        iou_threshold=iou,
        score_threshold=score,
        center_point_box=center,
    )
    picked, counts, *_ = run_kernel(on, kernel, boxes.reshape(-1), scores.reshape(-1))
    rows = [
        (line // classes, line % classes, box)
        for line, kept in enumerate(picked.reshape(-1, most))
        for box in kept[: counts[line]]
    ]
    return np.array(rows, "int64").reshape(-1, 3)


def clusters(seed: int, batch: int, classes: int, boxes: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of some objects, corners in any order; of the scores some are equal."""
    random = np.random.default_rng(seed)
    objects = random.random((batch, boxes // 12 + 1, 2)) * 8
    which = random.integers(0, objects.shape[1], (batch, boxes, 1))
    centres = np.take_along_axis(objects, which, 1) + random.normal(0, 0.15, (batch, boxes, 2))
    sizes = random.random((batch, boxes, 2)) + 0.5
    found = np.concatenate([centres - sizes / 2, centres + sizes / 2], -1)
    swapped = random.random((batch, boxes)) < 0.2
    found[swapped] = found[swapped][:, [2, 1, 0, 3]]
    scores = random.random((batch, classes, boxes))
    scores = np.where(random.random(scores.shape) < 0.3, scores.round(1), scores)
    return found.astype("float32"), scores.astype("float32")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("shape", "most", "score"),
    [
        ((1, 1, 1), 5, None),
        ((1, 1, 33), 33, None),
        ((2, 3, 130), 7, 0.3),
        ((1, 2, 700), 700, 0.1),
        ((1, 90, 40), 100, 0.9),
    ],
)
def test_equals_onnxruntime(
    device: Machine, shape: tuple[int, int, int], most: int, score: float | None
) -> None:
    boxes, scores = clusters(sum(shape), *shape)
    how = (most, 0.45, score, False)
    np.testing.assert_array_equal(
        select(device, boxes, scores, *how), expected(boxes, scores, *how)
    )


@pytest.mark.parametrize("name", ["opencl-alone", "cuda-alone"])
def test_without_local_memory(name: str) -> None:
    boxes, scores = clusters(2, 1, 2, 130)
    how = (20, 0.45, 0.3, False)
    np.testing.assert_array_equal(
        select(machine(name), boxes, scores, *how), expected(boxes, scores, *how)
    )


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("score", "most"), [(None, 150), (0.4, 30)])
@pytest.mark.parametrize("name", ["llvm", "opencl-local", "cuda-local"])
def test_many_blocks_and_little_workspace(
    name: str, score: float | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes in blocks of 64, and lists one after the other; a CPU's cores share blocks."""
    device = machine(name)
    monkeypatch.setattr(gpu_nms, "_LONGEST_BLOCK", 64)
    monkeypatch.setattr(gpu_nms, "_WORKSPACE_BYTES", 8_000)
    monkeypatch.setattr(cpu_nms, "_BLOCK", 64)
    monkeypatch.setattr(cpu_nms, "_MIN_TO_SHARE", 32)
    boxes, scores = clusters(3, 1, 2, 150)
    how = (most, 0.5, score, False)
    np.testing.assert_array_equal(
        select(device, boxes, scores, *how), expected(boxes, scores, *how)
    )


def test_workspace_has_a_limit_whatever_boxes_and_classes() -> None:
    spec = machine("opencl-local").spec
    for lists, boxes in [(1, 100), (1, 200_000), (80, 10_647), (1000, 30_000)]:
        plan = gpu_nms.Suppression(lists, boxes, 100, nms.Overlap(0.5), spec)
        sizes = {"uint64": 8, "int32": 4, "uint32": 4}
        size = sum(int(np.prod(shape)) * sizes[dtype] for shape, dtype in plan.workspace)
        assert size <= 1.1 * max(gpu_nms._WORKSPACE_BYTES, 24 * boxes)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("iou", [0.0, 1 / 3, 0.6])
def test_ratios_at_the_threshold(device: Machine, iou: float) -> None:
    """Boxes on a coarse grid: many ratios are the threshold, or next to it."""
    random = np.random.default_rng(7)
    corners = random.integers(0, 9, (1, 150, 2))
    grid = np.concatenate([corners, corners + random.integers(0, 7, (1, 150, 2))], -1)
    # Not powers of two, so that areas are rounded.
    boxes = (grid * np.float32(0.1)).astype("float32")
    scores = random.random((1, 1, 150), "float32")
    how = (150, iou, None, False)
    np.testing.assert_array_equal(
        select(device, boxes, scores, *how), expected(boxes, scores, *how)
    )


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("iou", [0.3, 0.5, 1 / 3])
def test_ratios_a_bit_off_the_threshold(device: Machine, iou: float) -> None:
    """Divided as ONNX Runtime divides, product, sum and quotient each rounded by itself."""
    random = np.random.default_rng(23)
    count = 20_000
    h, w = (random.random(count) + 0.5 for _ in range(2))
    lower = h * (random.random(count) * 0.3 + 0.65)
    # The width that gives the ratio, a few bits more or less.
    wide = ((w * lower) / iou - h * w + w * lower) / lower
    wide = np.maximum(wide, w * 1.001).astype("float32")
    wide = (wide.view("int32") + random.integers(-6, 7, count).astype("int32")).view("float32")
    pairs = np.stack([h, w, lower, wide], -1).astype("float32")

    def body(sizes: Any, found: Any) -> None:
        def compare(i: tirx.Expr) -> None:
            zero = tirx.const(0.0, "float32")
            a, b = (
                load_box(
                    lambda k, first=first: zero if k < 2 else sizes[i * 4 + first + k - 2],
                    center=False,
                )
                for first in (0, 2)
            )
            overlap = Overlap(iou)
            test = overlap.by_division if device.kind == "llvm" else overlap.by_residual
            found[i] = test(a, b).astype("int32")

        each(device.spec, count, compare)

    kernel = function([([count * 4], "float32")], [([count], "int32")], body)
    (found,) = run_kernel(device, kernel, pairs.reshape(-1))
    h, w, lower, wide = pairs.T
    shared = lower * np.minimum(w, wide)
    ratio = shared / (h * w + lower * wide - shared)
    expected = ratio > np.float32(iou)
    assert 0.1 < expected.mean() < 0.9
    np.testing.assert_array_equal(found, expected)


def test_centre_and_size(device: Machine) -> None:
    boxes, scores = clusters(11, 1, 2, 150)
    boxes = np.concatenate(
        [(boxes[..., :2] + boxes[..., 2:]) / 2, abs(boxes[..., 2:] - boxes[..., :2])], -1
    )
    how = (50, 0.5, 0.2, True)
    np.testing.assert_array_equal(
        select(device, boxes, scores, *how), expected(boxes, scores, *how)
    )


def test_boxes_that_are_none(device: Machine) -> None:
    """NaN, infinite, empty and inverted boxes suppress nothing and are not suppressed."""
    random = np.random.default_rng(5)
    boxes, scores = clusters(5, 1, 1, 120)
    strange = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0], "float32")
    where = random.random(boxes.shape) < 0.15
    boxes[where] = random.choice(strange, int(where.sum()))
    boxes[0, 7] = boxes[0, 8] = [1, 1, 1, 2]  # no area
    for center in (False, True):
        how = (120, 0.3, None, center)
        np.testing.assert_array_equal(
            select(device, boxes, scores, *how), expected(boxes, scores, *how)
        )


def test_scores_that_are_no_numbers(device: Machine) -> None:
    """NaN is above no threshold; without one it comes last. Infinities are scores."""
    boxes = np.array([[[i, 0, i + 1, 1] for i in range(6)]], "float32")  # apart from each other
    scores = np.array([[[0.5, np.nan, -np.inf, np.inf, -np.nan, 0.5]]], "float32")
    found = select(device, boxes, scores, 6, 0.5, None)
    assert found[:, 2].tolist() == [3, 0, 5, 2, 1, 4]
    found = select(device, boxes, scores, 6, 0.5, 0.0)
    assert found[:, 2].tolist() == [3, 0, 5]


def test_equal_scores_go_by_index(device: Machine) -> None:
    boxes, scores = clusters(9, 1, 2, 90)
    scores[:] = 0.5
    how = (90, 0.5, 0.1, False)
    np.testing.assert_array_equal(
        select(device, boxes, scores, *how), expected(boxes, scores, *how)
    )


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("score", [0.5, 2.0], ids=["some", "none above the threshold"])
def test_in_a_model(target: str, score: float) -> None:
    """Wholly on the target, whatever number of boxes comes out."""
    boxes, scores = clusters(1, 2, 3, 50)
    (found,) = run_operator(
        target,
        lambda b, s: ops.non_max_suppression(
            b,
            s,
            max_output_boxes_per_class=4,
            iou_threshold=0.5,
            score_threshold=score,
            center_point_box=False,
        ),
        boxes,
        scores,
    )
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected(boxes, scores, 4, 0.5, score, False))
