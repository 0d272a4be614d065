"""Decoded boxes and scores agree with their definitions, calculated in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.schedules.vision.harness import run_operator
from tvm_edge import ops

# Of the largest number: some ten roundings of float32, and exponentials of 3 units (OpenCL 1.2).
TOLERANCE = 2e-6


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for rounding; NaN and infinities in the same places."""
    assert actual.dtype == np.float32
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    scale = np.abs(expected[finite]).max(initial=1)
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=0, atol=TOLERANCE * scale)


# Element-wise kernels do not ask for local memory.
each_target = pytest.mark.parametrize("target", ["llvm", "opencl"], indirect=True)


# --------------------------------------------------------------------------------------------- SSD


def ssd(
    encodings: np.ndarray, anchors: np.ndarray, variances: tuple[float, ...], corners: bool
) -> np.ndarray:
    """Equation 2 of SSD, backwards."""
    t, d = encodings.astype("float64"), anchors.astype("float64")
    centre, size = d[..., :2], d[..., 2:]
    if corners:
        centre, size = (d[..., :2] + d[..., 2:]) / 2, d[..., 2:] - d[..., :2]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = t[..., :2] * np.array(variances[:2]) * size + centre
        extent = np.exp(t[..., 2:] * np.array(variances[2:])) * size
        return np.concatenate([middle - extent / 2, middle + extent / 2], axis=-1)


def boxes(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Corners within the unit square."""
    low = random.random((*shape, 2)) * 0.6
    return np.concatenate([low, low + 0.01 + random.random((*shape, 2)) * 0.4], -1).astype(
        "float32"
    )


@pytest.mark.diagonals(2)
@each_target
@pytest.mark.parametrize("anchor_format", ["center", "corner"])
@pytest.mark.parametrize(
    ("lead", "anchor_lead"),
    [((2, 17), (17,)), ((1, 1), (1,)), ((3, 2, 5), (3, 1, 5)), ((5,), (5,))],
    ids=str,
)
def test_ssd_boxes(
    target: str, lead: tuple[int, ...], anchor_lead: tuple[int, ...], anchor_format: str
) -> None:
    random = np.random.default_rng(0)
    encodings = (random.standard_normal((*lead, 4)) * 3).astype("float32")
    anchors = boxes(random, *anchor_lead)
    how: dict[str, Any] = {"variances": (0.1, 0.15, 0.2, 0.3), "anchor_format": anchor_format}
    (actual,) = run_operator(target, lambda x, y: ops.ssd_decode(x, y, **how), encodings, anchors)
    expected = ssd(encodings, anchors, how["variances"], anchor_format == "corner")
    assert_close(actual, expected)


@each_target
def test_ssd_boxes_of_no_number_are_by_themselves(target: str) -> None:
    """NaN, infinities and sizes that overflow change no other box, and none of another axis."""
    random = np.random.default_rng(1)
    encodings = random.standard_normal((1, 9, 4)).astype("float32")
    encodings[0, 1, 0], encodings[0, 3, 3], encodings[0, 5, 2] = np.nan, np.inf, 1e9
    anchors = boxes(random, 9)
    (actual,) = run_operator(target, ops.ssd_decode, encodings, anchors)
    assert_close(actual, ssd(encodings, anchors, (0.1, 0.1, 0.2, 0.2), False))
    assert np.isfinite(actual).sum() == 36 - 6


# -------------------------------------------------------------------------------------------- YOLO


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def yolo(
    features: np.ndarray,
    anchors: list[tuple[float, float]],
    strides: tuple[float, float],
    scale_x_y: float = 1.0,
    growth: str = "exp",
) -> tuple[np.ndarray, np.ndarray]:
    """Section 2.1 of YOLOv3, cell by cell."""
    batch, channels, height, width = features.shape
    size = channels // len(anchors)
    x = features.astype("float64").reshape(batch, len(anchors), size, height, width)
    found = np.zeros((batch, height, width, len(anchors), 4))
    scores = np.zeros((batch, size - 5, height, width, len(anchors)))
    for i in range(height):
        for j in range(width):
            for a, (w, h) in enumerate(anchors):
                tx, ty, tw, th, objectness, *classes = np.moveaxis(x[:, a, :, i, j], 1, 0)
                cx = (sigmoid(tx) * scale_x_y - (scale_x_y - 1) / 2 + j) * strides[1]
                cy = (sigmoid(ty) * scale_x_y - (scale_x_y - 1) / 2 + i) * strides[0]
                if growth == "exp":
                    bw, bh = w * np.exp(tw), h * np.exp(th)
                else:
                    bw, bh = w * (2 * sigmoid(tw)) ** 2, h * (2 * sigmoid(th)) ** 2
                corners = [cy - bh / 2, cx - bw / 2, cy + bh / 2, cx + bw / 2]
                found[:, i, j, a] = np.stack(corners, -1)
                for c, logit in enumerate(classes):
                    scores[:, c, i, j, a] = sigmoid(objectness) * sigmoid(logit)
    return found.reshape(batch, -1, 4), scores.reshape(batch, size - 5, -1)


ANCHORS = [(10.0, 13.0), (16.0, 30.0), (33.0, 23.0)]


@pytest.mark.diagonals(2)
@each_target
@pytest.mark.parametrize(
    ("shape", "anchors", "classes", "how"),
    [
        ((2, 5, 3), ANCHORS, 4, {"stride": 8}),
        ((1, 1, 1), ANCHORS[:1], 1, {"stride": (32.0, 16.0)}),
        ((1, 3, 7), ANCHORS[:2], 2, {"stride": 16, "scale_x_y": 1.05}),
        ((1, 4, 4), ANCHORS, 3, {"stride": 8, "scale_x_y": 2.0, "growth": "squared sigmoid"}),
    ],
    ids=["v3", "one cell", "v4", "v5"],
)
def test_yolo(
    target: str,
    shape: tuple[int, int, int],
    anchors: list[tuple[float, float]],
    classes: int,
    how: dict[str, Any],
) -> None:
    batch, height, width = shape
    random = np.random.default_rng(0)
    features = random.standard_normal((batch, len(anchors) * (5 + classes), height, width))
    features = (features * 2).astype("float32")
    found, scores = run_operator(
        target, lambda x: ops.yolo_decode(x, anchors=anchors, classes=classes, **how), features
    )
    step = how["stride"]
    strides = step if isinstance(step, tuple) else (step, step)
    formula = {name: value for name, value in how.items() if name != "stride"}
    expected_boxes, expected_scores = yolo(features, anchors, strides, **formula)
    assert_close(found, expected_boxes)
    assert_close(scores, expected_scores)


@each_target
def test_yolo_is_sure_of_what_is_infinite(target: str) -> None:
    """Logits of any size give 0 or 1; a NaN stays where it is."""
    features = np.zeros((1, 7, 2, 2), "float32")
    features[0, 4] = [[np.inf, -np.inf], [200, np.nan]]
    features[0, 5:] = np.inf
    _, scores = run_operator(
        target, lambda x: ops.yolo_decode(x, anchors=ANCHORS[:1], classes=2, stride=8), features
    )
    np.testing.assert_array_equal(scores, [[[1, 0, 1, np.nan]] * 2])


# ---------------------------------------------------------------------------------------- MultiBox


def detections(
    probabilities: np.ndarray,
    locations: np.ndarray,
    anchors: np.ndarray,
    *,
    clip: bool = True,
    threshold: float = 0.01,
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2),
) -> tuple[np.ndarray, np.ndarray]:
    """``MultiBoxDetection`` of MXNet up to its suppression, anchor by anchor."""
    batch, classes, count = probabilities.shape
    rows, counts = np.full((batch, count, 6), -1.0), np.zeros(batch, "int32")
    decoded = ssd(locations.reshape(batch, count, 4), anchors, variances, corners=True)
    for b in range(batch):
        for a in range(count):
            score, best = -1.0, 0
            for c in range(1, classes):
                if probabilities[b, c, a] > score:
                    score, best = float(probabilities[b, c, a]), c
            if best == 0 or score < np.float32(threshold):
                continue
            box = decoded[b, a]
            rows[b, counts[b]] = [best - 1, score, *(np.clip(box, 0, 1) if clip else box)]
            counts[b] += 1
    return rows, counts


def heads(
    seed: int, batch: int, classes: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities with ties, locations and anchors."""
    random = np.random.default_rng(seed)
    probabilities = random.random((batch, classes, count)).round(1).astype("float32")
    locations = random.standard_normal((batch, 4 * count)).astype("float32")
    return probabilities, locations, boxes(random, 1, count)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((2, 4, 333), {"threshold": 0.9}),
        ((1, 2, 1), {"threshold": 0.0, "clip": False}),
        ((1, 3, 5000), {"threshold": 0.5, "variances": (1.0, 0.5, 0.25, 0.125)}),
        ((3, 21, 40), {"threshold": 1.5}),
        ((2, 1, 9), {}),
    ],
    ids=["some", "one anchor", "many anchors", "none passes", "background alone"],
)
def test_multibox_transform_loc(
    target: str, shape: tuple[int, int, int], how: dict[str, Any]
) -> None:
    inputs = heads(0, *shape)
    rows, counts = run_operator(target, lambda *x: ops.multibox_transform_loc(*x, **how), *inputs)
    expected_rows, expected_counts = detections(*inputs, **how)
    np.testing.assert_array_equal(counts, expected_counts)
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(rows[..., 0], expected_rows[..., 0])
    assert_close(rows, expected_rows)


def test_scores_and_places_of_no_number(target: str) -> None:
    """A NaN is no class's score, and in a location it stays in the box, also one cut off."""
    probabilities, locations, anchors = heads(3, 2, 3, 50)
    probabilities[0, 1, ::3], probabilities[0, 1:, 7] = np.nan, np.nan
    probabilities[1, 2, 4], probabilities[1, 1:, 9] = np.inf, -np.inf
    locations[1, 16], locations[1, 23] = np.nan, np.inf
    rows, counts = run_operator(
        target, ops.multibox_transform_loc, probabilities, locations, anchors
    )
    expected_rows, expected_counts = detections(probabilities, locations, anchors)
    np.testing.assert_array_equal(counts, expected_counts)
    assert counts[0] < 50
    assert np.isnan(rows).any()
    assert_close(rows, expected_rows)


@each_target
def test_no_anchors(target: str) -> None:
    """No boxes, and a count of 0 for each picture."""
    row, ones = np.ones((3, 1, 6), "float32"), np.ones(3, "int32")

    def without(p: relax.Var, t: relax.Var, d: relax.Var, r: relax.Var, n: relax.Var) -> relax.Expr:
        nothing = [
            relax.op.strided_slice(x, [axis], [1], [1]) for x, axis in ((p, 2), (t, 1), (d, 1))
        ]
        found = ops.multibox_transform_loc(*nothing)
        rows = relax.op.concat([relax.TupleGetItem(found, 0), r], axis=1)
        return relax.Tuple([rows, relax.op.add(relax.TupleGetItem(found, 1), n)])

    rows, counts = run_operator(target, without, *heads(0, 3, 2, 5), row, ones)
    np.testing.assert_array_equal(rows, row)
    np.testing.assert_array_equal(counts, ones)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.ssd_decode(x, x, variances=(1.0,)),
        lambda x: ops.ssd_decode(x, x, anchor_format="middle"),
        lambda x: ops.yolo_decode(x, anchors=[], classes=1, stride=8),
        lambda x: ops.yolo_decode(x, anchors=ANCHORS, classes=1, stride=8, growth="linear"),
        lambda x: relax.BlockBuilder().normalize(
            ops.yolo_decode(x, anchors=ANCHORS, classes=1, stride=8)
        ),
        lambda x: relax.BlockBuilder().normalize(ops.multibox_transform_loc(x, x, x)),
        lambda x: relax.BlockBuilder().normalize(ops.ssd_decode(x, x)),
    ],
)
def test_what_does_not_fit_is_refused(build: Any) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"tvm_edge\.\w+_(decode|loc): "):
        build(relax.Var("x", relax.TensorType((2, 5, 7), "float32")))
