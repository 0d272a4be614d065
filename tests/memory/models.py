"""Networks whose memory is in their weights, as YOLOv1's, in little."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.onnx_models import make_model

__all__ = ["IMAGE", "PICTURE", "conv_heavy", "yolo_shaped"]

IMAGE = (1, 3, 64, 64)


def yolo_shaped(hidden: int = 1024) -> onnx.ModelProto:
    """Three convolutions (``conv1`` to ``conv3``), two fully connected layers (``fc1``, ``fc2``)
    with a leaky ReLU between them, and what decodes their result.

    ``fc1`` has 4096 times `hidden` weights.
    """
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return (random.standard_normal(shape) * scale).astype("float32")

    nodes, value = [], "data"
    weights = {}
    for index, (filters, channels) in enumerate(((32, 3), (64, 32), (64, 64)), start=1):
        weights[f"w{index}"] = weight(filters, channels, 3, 3)
        weights[f"b{index}"] = weight(filters, 1).ravel()
        inputs = [value, f"w{index}", f"b{index}"]
        nodes += [
            helper.make_node("Conv", inputs, [f"c{index}"], name=f"conv{index}", pads=[1] * 4),
            helper.make_node("LeakyRelu", [f"c{index}"], [f"r{index}"], name=f"leaky{index}"),
            helper.make_node(
                "MaxPool",
                [f"r{index}"],
                [f"p{index}"],
                name=f"pool{index}",
                kernel_shape=[2, 2],
                strides=[2, 2],
            ),
        ]
        value = f"p{index}"
    weights |= {
        "fc1.w": weight(hidden, 4096),
        "fc1.b": weight(hidden, 1).ravel(),
        "fc2.w": weight(98, hidden),
        "fc2.b": weight(98, 1).ravel(),
        "cells": np.array([1, 49, 2], "int64"),
    }
    nodes += [
        helper.make_node("Flatten", [value], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "fc1.w", "fc1.b"], ["h"], name="fc1", transB=1),
        helper.make_node("LeakyRelu", ["h"], ["a"], name="leaky4"),
        helper.make_node("Gemm", ["a", "fc2.w", "fc2.b"], ["o"], name="fc2", transB=1),
        helper.make_node("Reshape", ["o", "cells"], ["boxes"], name="reshape"),
        helper.make_node("Sigmoid", ["boxes"], ["result"], name="sigmoid"),
    ]
    return make_model(nodes, {"data": IMAGE}, ["result"], weights)


PICTURE = (1, 3, 5, 4)


def conv_heavy(sizes: Sequence[int] = (3, 65, 528, 128)) -> onnx.ModelProto:
    """3x3 convolutions ``conv0``, ``conv1``, … between these numbers of channels, each with a bias
    and a leaky ReLU; their mean, and a large table of which three rows are read. The result of
    ``leaky1`` is returned as well.
    """
    random = np.random.default_rng(3)
    weights: dict[str, np.ndarray] = {}
    nodes, value = [], "data"
    for i, (channels, filters) in enumerate(pairwise(sizes)):
        scale = np.sqrt(2 / (9 * channels)).astype("float32")
        weights[f"w{i}"] = random.standard_normal((filters, channels, 3, 3), np.float32) * scale
        weights[f"b{i}"] = random.standard_normal(filters, np.float32)
        inputs = [value, f"w{i}", f"b{i}"]
        nodes += [
            helper.make_node("Conv", inputs, [f"c{i}"], name=f"conv{i}", pads=[1] * 4),
            helper.make_node("LeakyRelu", [f"c{i}"], [f"r{i}"], name=f"leaky{i}", alpha=0.1),
        ]
        value = f"r{i}"
    weights["table"] = random.standard_normal((5000, sizes[-1]), np.float32)
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["mean"], name="pool"),
        helper.make_node("Flatten", ["mean"], ["flat"], name="flatten"),
        helper.make_node("Gather", ["table", "rows"], ["some"], name="pick"),
        helper.make_node("Add", ["flat", "some"], ["result"], name="sum"),
    ]
    inputs = {"data": PICTURE, "rows": (3,)}
    return make_model(nodes, inputs, ["result", "r1"], weights, dtypes={"rows": TensorProto.INT64})
