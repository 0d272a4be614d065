"""Anchors, decoding and scores of SSD, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tvm_edge import zoo
from tvm_edge.zoo.anchors import gluon_shapes, ssd_anchors

MAPS_300 = [(19, 19), (10, 10), (5, 5), (3, 3), (2, 2), (1, 1)]
MAPS_512 = [(32, 32), (16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]

Models = Callable[[str], onnx.ModelProto]


def test_published_anchors() -> None:
    anchors = ssd_anchors(MAPS_300, (300, 300))
    assert anchors.shape == (1917, 4)
    # The object detection API's first cell: 0.1 square, then 0.2 at 2:1 and at 1:2.
    root = np.sqrt(2)
    centre = 0.5 / 19
    np.testing.assert_allclose(
        anchors[:3],
        [
            [centre, centre, 0.1, 0.1],
            [centre, centre, 0.2 / root, 0.2 * root],
            [centre, centre, 0.2 * root, 0.2 / root],
        ],
        rtol=1e-6,
    )
    # The last cell: 0.95 at five aspect ratios, and the square between 0.95 and 1.
    np.testing.assert_allclose(anchors[-6:, :2], 0.5)
    np.testing.assert_allclose(anchors[-6:, 3] / anchors[-6:, 2], [1, 2, 1 / 2, 3, 1 / 3, 1], 1e-6)
    areas = np.prod(anchors[-6:, 2:], axis=1)
    np.testing.assert_allclose(areas, [0.95**2] * 5 + [0.95], rtol=1e-6)


def test_anchors_of_gluon() -> None:
    # ssd_512_resnet50_v1_voc: sizes 51.2, 102.4, ... and steps 16, 32, ... in pixels.
    anchors = ssd_anchors(MAPS_512, (512, 512), gluon_shapes()) * 512
    assert anchors.shape == (6132, 4)
    size, between, root = 51.2, np.sqrt(51.2 * 102.4), np.sqrt(2)
    expected = [(size, size), (between, between), (size / root, size * root)]
    np.testing.assert_allclose(anchors[:3, 2:], expected, rtol=1e-6)
    np.testing.assert_allclose(anchors[3, 2:], (size * root, size / root), rtol=1e-6)
    np.testing.assert_allclose(anchors[4:8, :2], [(8, 16 + 8)] * 4, rtol=1e-6)
    # The second map has six shapes, the last four: 450.6, up to 492.
    root, first = np.sqrt(3), 32 * 32 * 4
    expected = [(102.4 / root, 102.4 * root), (102.4 * root, 102.4 / root)]
    np.testing.assert_allclose(anchors[first + 4 : first + 6, 2:], expected, rtol=1e-6)
    np.testing.assert_allclose(anchors[-3, 2:], np.sqrt(450.6 * 492), rtol=1e-6)
    np.testing.assert_allclose(anchors[-4:, :2], 256, rtol=1e-6)


def test_anchors_run_over_columns_before_rows() -> None:
    anchors = ssd_anchors([(2, 3)] * 6, (200, 300))[:18].reshape(2, 3, 3, 4)
    np.testing.assert_allclose(anchors[0, :, 0, 1], [1 / 6, 1 / 2, 5 / 6], rtol=1e-6)
    np.testing.assert_allclose(anchors[:, 0, 0, 0], [1 / 4, 3 / 4], rtol=1e-6)


def test_a_square_anchor_is_square_in_pixels() -> None:
    height, width = (ssd_anchors(MAPS_300, (200, 400))[0, 2:] * (200, 400)).tolist()
    assert height == pytest.approx(width) == pytest.approx(0.1 * 200)


@pytest.mark.parametrize(("size", "anchors"), [(300, 1917), ((128, 256), 648), (33, 75)])
def test_anchors_follow_the_feature_maps(size: Any, anchors: int) -> None:
    model = zoo.build("ssd_mobilenet_v1", image_size=size, width=0.1)
    (boxes,) = [o for o in model.graph.output if o.name == "boxes"]
    assert [d.dim_value for d in boxes.type.tensor_type.shape.dim] == [1, anchors, 4]


def test_boxes_are_decoded_from_the_anchors(small: Models, session: Callable[..., Any]) -> None:
    model = small("ssd_mobilenet_v1")
    out = session(model, ["postprocess/encodings:0", "boxes"])(zoo.sample_input(model))
    ty, tx, th, tw = (out["postprocess/encodings:0"][0] / (10, 10, 5, 5)).T
    y, x, h, w = ssd_anchors([(8, 8), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)], (128, 128)).T
    y, x, h, w = ty * h + y, tx * w + x, np.exp(th) * h, np.exp(tw) * w
    expected = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=1)
    np.testing.assert_allclose(out["boxes"][0], expected, atol=1e-5)
    assert np.abs(out["postprocess/encodings:0"]).mean() > 0.2  # or the decoder would be idle


def test_scores_are_the_sigmoid_without_the_background(
    small: Models, session: Callable[..., Any]
) -> None:
    model = small("ssd_mobilenet_v1")
    out = session(model, ["postprocess/logits:0", "scores"])(zoo.sample_input(model))
    expected = 1 / (1 + np.exp(-out["postprocess/logits:0"].astype(np.float64)))
    np.testing.assert_allclose(out["scores"], expected.transpose(0, 2, 1)[:, 1:], atol=1e-6)


@pytest.mark.full
def test_scores_are_the_softmax_without_the_background(
    small: Models, session: Callable[..., Any]
) -> None:
    model = small("ssd_resnet50_v1")
    out = session(model, ["postprocess/logits:0", "scores"])(zoo.sample_input(model))
    logits = out["postprocess/logits:0"].astype(np.float64)
    assert logits[..., 0].mean() > logits[..., 1:].max(axis=-1).mean()  # mostly background
    expected = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(out["scores"], expected.transpose(0, 2, 1)[:, 1:], atol=1e-6)
