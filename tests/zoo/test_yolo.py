"""YOLOv3's anchors, decoding and upsampling, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tvm_edge import zoo

Models = Callable[[str], onnx.ModelProto]

# yolov3.cfg, in pixels of a 416x416 picture: width, height.
ANCHORS = [
    [(116, 90), (156, 198), (373, 326)],
    [(30, 61), (62, 45), (59, 119)],
    [(10, 13), (16, 30), (33, 23)],
]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_boxes_and_scores_are_decoded_as_published(
    small: Models, session: Callable[..., Any]
) -> None:
    # b = sigmoid(t) + c, p exp(t), section 2.1; in cells and pixels, one box at a time.
    model = small("yolov3")
    tensors = ["postprocess/predictions:0", "boxes", "scores"]
    out = session(model, tensors)(zoo.sample_input(model))
    predictions = out["postprocess/predictions:0"][0].astype(np.float64)
    assert np.abs(predictions[:, :4]).mean() > 0.2  # or the decoder would be idle
    expected, row = [], 0
    for stride, of_cell in zip((32, 16, 8), ANCHORS, strict=True):
        side = 128 // stride
        for y in range(side):
            for x in range(side):
                for width, height in of_cell:
                    ty, tx, th, tw = predictions[row, :4]
                    centre = np.array([sigmoid(ty) + y, sigmoid(tx) + x]) * stride
                    # An anchor is a fraction of the picture, which has 128 pixels here.
                    size = np.array([height * np.exp(th), width * np.exp(tw)]) * 128 / 416
                    expected.append([*(centre - size / 2) / 128, *(centre + size / 2) / 128])
                    row += 1
    assert row == len(predictions) == 1008
    np.testing.assert_allclose(out["boxes"][0], expected, atol=1e-5)
    scores = sigmoid(predictions[:, 4:5]) * sigmoid(predictions[:, 5:])
    np.testing.assert_allclose(out["scores"][0], scores.T, atol=1e-6)


def test_a_map_is_joined_to_the_finer_one(small: Models, session: Callable[..., Any]) -> None:
    # Darknet's route puts the upsampled map in front.
    model = small("yolov3")
    names = ["head0/reduce/leaky:0", "backbone/stage4/block7/add:0", "head0/route:0"]
    coarse, fine, joined = session(model, names)(zoo.sample_input(model)).values()
    np.testing.assert_array_equal(joined[:, : coarse.shape[1], ::2, 1::2], coarse)
    np.testing.assert_array_equal(joined[:, : coarse.shape[1], 1::2, ::2], coarse)
    np.testing.assert_array_equal(joined[:, coarse.shape[1] :], fine)


@pytest.mark.parametrize(("size", "boxes"), [(32, 63), ((96, 64), 378), ((97, 65), 492)])
def test_boxes_follow_the_feature_maps(size: Any, boxes: int) -> None:
    model = zoo.build("yolov3", image_size=size, width=0.05)
    (info,) = [o for o in model.graph.output if o.name == "boxes"]
    assert [d.dim_value for d in info.type.tensor_type.shape.dim] == [1, boxes, 4]


def test_every_block_of_darknet_is_there(small: Models) -> None:
    # Table 1: 52 convolutions before its classifier; the 53rd layer is that.
    nodes = small("yolov3").graph.node
    convolutions = [n for n in nodes if n.op_type == "Conv"]
    assert sum(n.name.startswith("backbone/") for n in convolutions) == 52
    assert len(convolutions) == 75
    assert sum(n.op_type == "LeakyRelu" for n in nodes) == 72
