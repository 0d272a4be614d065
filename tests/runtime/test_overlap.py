"""Models of which the CPU computes one part while the GPU computes another."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference, relative_error

SHAPE = (1, 8, 12, 12)


def two_heads(joined: bool) -> onnx.ModelProto:
    """A trunk, a Tanh that is put on the CPU, and beside it convolutions; maybe joined again."""
    random = np.random.default_rng(1)
    weights = {
        f"w{i}": (random.standard_normal((8, 8, 3, 3)) / 8).astype("float32") for i in range(4)
    }
    nodes = [
        helper.make_node("Conv", ["data", "w0"], ["trunk"], pads=[1] * 4),
        helper.make_node("Tanh", ["trunk"], ["one"], "on_cpu"),
        helper.make_node("Conv", ["trunk", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["c1"], ["s1"]),
        helper.make_node("Conv", ["s1", "w2"], ["other"], pads=[1] * 4),
    ]
    if joined:
        nodes += [
            helper.make_node("Add", ["one", "other"], ["sum"]),
            helper.make_node("Conv", ["sum", "w3"], ["result"], pads=[1] * 4),
        ]
    else:
        weights.pop("w3")
    return make_model(nodes, {"data": SHAPE}, ["result"] if joined else ["one", "other"], weights)


@pytest.mark.parametrize("joined", [False, True], ids=["two results", "joined"])
def test_the_gpu_works_while_the_cpu_does(joined: bool, gpu: str) -> None:
    graph = two_heads(joined)
    model = tvm_edge.compile(graph, gpu, fallback=["on_cpu"])
    (read, *back) = model.report.copies
    assert read["overlapped"] and read["destination"] == "llvm"
    assert [copy["overlapped"] for copy in back] == [False] * joined
    devices = [kernel.device for kernel in model.report.kernels]
    assert devices.count("llvm") == 1
    place = devices.index("llvm")
    assert devices[:place] == [gpu] * place and place >= 2
    for seed in range(4):
        given = {"data": random_input(SHAPE, seed)}
        found: dict[str, Any] = model.run(given)
        for name, expected in reference(graph, given).items():
            assert relative_error(found[name], expected) < 1e-5, name
