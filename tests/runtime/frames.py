"""Frames, a model of two devices to send them through, and what comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.onnx_models import ladder, make_model, random_input, reference, relative_error

SHAPE = (1, 8, 12, 12)
WAIT_S = 30  # for what happens at once unless it is broken

Frame = dict[str, Any]


def there_and_back() -> onnx.ModelProto:
    """Convolutions around a Tanh ``t0``; its other result is there before the last."""
    nodes, weights, value = ladder(1)
    weights["last"] = random_input((8, 8, 3, 3), 7) / 8
    nodes.append(helper.make_node("Conv", [value, "last"], ["result"], pads=[1] * 4))
    return make_model(nodes, {"data": SHAPE}, ["result", "t0"], weights)


def frames(count: int, first: int = 0) -> list[Frame]:
    return [{"data": random_input(SHAPE, seed)} for seed in range(first, first + count)]


def assert_right(graph: onnx.ModelProto, found: list[Frame], given: list[Frame]) -> None:
    assert len(found) == len(given)
    for number, (outputs, inputs) in enumerate(zip(found, given, strict=True)):
        expected = reference(graph, inputs)
        assert list(outputs) == list(expected)
        for name, value in expected.items():
            assert relative_error(outputs[name], value) < 1e-5, (number, name)


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("tvm-edge-stream")]


def endless() -> Iterator[Frame]:
    (frame,) = frames(1)
    while True:
        yield frame


def network() -> onnx.ModelProto:
    """Tensors that cross to and fro, read again by both sides; fields, views, an early result."""
    nodes, weights, value = ladder(4)
    nodes += [
        helper.make_node("Split", [value], ["p0", "p1"], axis=1),
        helper.make_node("Mul", ["p1", "p0"], ["m"]),
        helper.make_node("Concat", ["m", "p1", "p0"], ["joined"], axis=1),
        helper.make_node("Reshape", ["joined", "shape"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["last"]),
    ]
    weights["shape"] = np.array([1, -1], "int64")
    return make_model(nodes, {"data": SHAPE}, ["last", "a1"], weights)
