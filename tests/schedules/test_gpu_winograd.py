"""Winograd convolution on a GPU: right in every form, and chosen where it is estimated to pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.schedules.gpu_harness import ORIN, check_gpu
from tests.schedules.harness import Graph
from tvm_edge.relay_passes import lower_conv2d

SERVER = replace(ORIN, cores=132, alus=128, registers=65536, max_work_group_size=1024)


def conv(
    batch: int, channels: int, height: int, width: int, filters: int, pads: list[int]
) -> Graph:
    graph, random = Graph(), np.random.default_rng(0)
    weights = random.standard_normal((filters, channels, 3, 3)).astype("float32")
    bias = graph.constant(random.standard_normal(filters).astype("float32"))
    made = graph.op(
        "Conv",
        graph.input(batch, channels, height, width),
        graph.constant(weights),
        bias,
        pads=pads,
    )
    graph.output(graph.op("Relu", made))
    return graph


def residual() -> Graph:
    """What follows reads an image, and a value for each column; somebody else reads the sums."""
    graph, random = Graph(), np.random.default_rng(1)
    weights = random.standard_normal((9, 16, 3, 3)).astype("float32")
    made = graph.op("Conv", graph.input(1, 16, 8, 12), graph.constant(weights), pads=[1] * 4)
    tail = graph.op("Mul", graph.op("Add", made, graph.input(1, 9, 8, 12)), graph.input(12))
    graph.output(graph.op("Sigmoid", tail))
    return graph


GRAPHS = {
    "whole tiles": conv(1, 16, 8, 12, 20, [1] * 4),
    "parts of tiles": conv(2, 9, 7, 13, 11, [1] * 4),
    "uneven padding": conv(1, 8, 9, 6, 8, [2, 0, 1, 3]),
    "no padding": conv(1, 8, 11, 10, 16, [0] * 4),
    "smaller than a tile": conv(7, 8, 2, 1, 8, [1] * 4),
    "residual": residual(),
}


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
def test_results(
    m: int, graph: Graph, gpu: str, large_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_conv2d, "choose_winograd", lambda *_: m)
    kernels = check_gpu(graph, gpu)
    assert [kernel.rule for kernel in kernels[:1]] == ["handwritten"]
    assert [kernel.rule for kernel in kernels[1:]] == ["tiled", "winograd_output"]
    # Each belongs to the convolution, and what follows it is in the last one.
    conv = next(node.name for node in graph.model().graph.node if node.op_type == "Conv")
    print(conv, [k.operators for k in kernels])
