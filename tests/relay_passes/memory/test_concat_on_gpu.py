"""Concatenations on a GPU: parts are written into the result, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full
from tests.relay_passes.concatenations import (
    compiled,
    conv,
    dense_block,
    fire,
    in_place,
    inception,
    names,
)
from tests.schedules.harness import Graph

pytestmark = pytest.mark.parametrize("size", ["large", *in_full("small")])


@pytest.fixture(autouse=True)
def as_on_a_gpu(size: str, request: pytest.FixtureRequest) -> None:
    """A device that is no CPU, whose schedules are those for phones or for servers."""
    request.getfixturevalue(f"{size}_gpu")


def copies(model: tvm_edge.CompiledModel) -> int:
    return sum("concatenate" in name for name in names(model))


def parts_read_elsewhere(graph: Graph) -> None:
    """Each part has another reader, in the middle and at the end too."""
    data = conv(graph, graph.input(1, 8, 12, 10), 8, 16)
    parts = [conv(graph, data, 16, 8 * n, n) for n in (1, 3, 5)]
    graph.output(conv(graph, graph.op("Concat", *parts, axis=1), 72, 16))
    for part, channels in zip(parts, (8, 24, 40), strict=True):
        pooled = graph.op("MaxPool", part, kernel_shape=[2, 2])
        graph.output(conv(graph, pooled, channels, 8, 1))


def matrices(graph: Graph) -> None:
    """Vectors, the last of them with other readers."""
    data = graph.input(1, 24)
    rng = np.random.default_rng(0)
    parts = [
        graph.op("Relu", graph.op("MatMul", data, graph.constant(rng.normal(size=(24, n)) / 5)))
        for n in (8, 12)
    ]
    both = graph.op("Concat", *parts, axis=1)
    graph.output(graph.op("Sigmoid", both))
    graph.output(graph.op("Exp", parts[1]))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("build", [fire, dense_block, inception, parts_read_elsewhere, matrices])
def test_no_copy_is_left(build: Callable[[Graph], None], gpu: str) -> None:
    graph = Graph()
    build(graph)
    model = compiled(graph, gpu)
    assert copies(model) == 0
    assert in_place(model) >= 2


def winograd_and_sums_in_parts(graph: Graph) -> None:
    """Kernels of several launches: the last one writes the part."""
    data = graph.input(1, 256, 7, 7)
    both = [conv(graph, data, 256, 256), conv(graph, data, 256, 64, 1)]
    graph.output(conv(graph, graph.op("Concat", *both, axis=1), 320, 16, 1))


def test_the_last_of_several_launches_writes(gpu: str) -> None:
    graph = Graph()
    winograd_and_sums_in_parts(graph)
    assert copies(compiled(graph, gpu)) == 0


def uneven(graph: Graph, channels: int) -> None:
    data = conv(graph, graph.input(1, 8, 7, 7), 8, 16)
    parts = [conv(graph, data, 16, n, 1) for n in (channels, 8)]
    graph.output(conv(graph, graph.op("Concat", *parts, axis=1), channels + 8, 16))


@pytest.mark.parametrize("channels, left", [(3, 1), (4, 0)])
def test_parts_are_aligned(channels: int, left: int, gpu: str) -> None:
    """A part that begins at no multiple of 16 bytes could not be written in vectors."""
    graph = Graph()
    uneven(graph, channels)
    assert copies(compiled(graph, gpu)) == left


def whole(graph: Graph) -> None:
    """Outputs of the model, an input of it, a part twice: nothing that may lie elsewhere."""
    given = graph.input(1, 8, 8, 8)
    data = conv(graph, given, 8, 16)
    left, right = conv(graph, data, 16, 16), conv(graph, data, 16, 16, 1)
    graph.output(graph.op("Concat", left, right, axis=1))
    graph.output(left)
    graph.output(conv(graph, graph.op("Concat", given, left, axis=1), 24, 8, 1))
    graph.output(conv(graph, graph.op("Concat", right, right, axis=1), 32, 8, 1))


def test_others_stay_whole(gpu: str) -> None:
    graph = Graph()
    whole(graph)
    model = compiled(graph, gpu)
    assert in_place(model) == 0


def test_a_batch_is_copied(gpu: str) -> None:
    """Parts of several pictures do not lie one behind the other."""
    graph = Graph()
    data = conv(graph, graph.input(2, 8, 8, 8), 8, 16)
    both = [conv(graph, data, 16, 8, n) for n in (1, 3)]
    graph.output(conv(graph, graph.op("Concat", *both, axis=1), 16, 8))
    assert in_place(compiled(graph, gpu)) == 0
