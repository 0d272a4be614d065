"""Kernels of every GPU rule agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.schedules.gpu.graphs import conv
from tests.schedules.gpu.harness import check_gpu, rules
from tests.schedules.harness import Graph


@pytest.fixture(params=["small_gpu", "large_gpu"], autouse=True)
def size(request: pytest.FixtureRequest) -> None:
    """Every kernel as this GPU gets it, and as a large one does."""
    request.getfixturevalue(request.param)


@pytest.mark.diagonals(4)
@pytest.mark.parametrize(
    "graph",
    [
        conv(1, 3, 47, 61, outputs=16, kernel=(7, 7), strides=[2, 2], pads=[3] * 4),
        conv(2, 6, 13, 13, outputs=10, kernel=(3, 3), pads=[1] * 4),
        conv(1, 16, 14, 14, outputs=24, kernel=(1, 1)),
        conv(1, 8, 15, 15, outputs=12, kernel=(1, 1), strides=[2, 2], epilogue=False),
        conv(1, 8, 9, 11, outputs=12, kernel=(3, 5), group=2, dilations=[2, 1], pads=[2, 0, 1, 3]),
        conv(1, 4, 2003, outputs=6, kernel=(3,)),  # a prime length: the last group is guarded
        conv(1, 3, 6, 9, 11, outputs=16, kernel=(3, 3, 3), pads=[1] * 6),
    ],
    ids=["stem", "batch", "1x1", "1x1-stride", "group-dilated", "1d-prime", "3d"],
)
def test_convolution(graph: Graph, gpu: str) -> None:
    assert rules(check_gpu(graph, gpu)) <= {"conv2d", "direct", "tiled", "elementwise"}


def test_convolution_of_a_single_pixel(gpu: str) -> None:
    """Few results of many terms: work-groups share the sums."""
    graph = conv(1, 96, 3, 3, outputs=40, kernel=(3, 3))
    assert rules(check_gpu(graph, gpu)) == {"reduce"}


def test_transposed_convolution(gpu: str) -> None:
    graph = Graph()
    data, weight = graph.input(1, 6, 7, 9), graph.input(6, 4, 3, 3)
    graph.output(graph.op("ConvTranspose", data, weight, strides=[2, 2], pads=[1] * 4))
    check_gpu(graph, gpu)


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise(stride: int, gpu: str) -> None:
    graph = conv(
        1, 12, 17, 15, outputs=12, kernel=(3, 3), group=12, pads=[1] * 4, strides=[stride] * 2
    )
    assert rules(check_gpu(graph, gpu)) == {"direct"}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [2, 3], "pads": [0, 1, 0, 1]}),
    ],
    ids=["max", "max-ceil", "average"],
)
def test_pool(kind: str, attributes: dict[str, Any], gpu: str) -> None:
    graph = Graph()
    graph.output(graph.op(kind, graph.input(1, 5, 14, 12), **attributes))
    assert "pool" in rules(check_gpu(graph, gpu))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("shape", "transposed"),
    [
        ((1, 512, 100), False),
        ((1, 512, 100), True),
        ((7, 256, 81), False),  # rows that groups of work-items do not divide
        ((65, 48, 70), True),
        ((33, 20, 64), False),
    ],
    ids=["few", "few-transposed", "odd-columns", "many-transposed", "many"],
)
def test_dense(shape: tuple[int, int, int], transposed: bool, gpu: str) -> None:
    rows, terms, columns = shape
    graph = Graph()
    matrix = graph.input(*((columns, terms) if transposed else (terms, columns)))
    data, bias = graph.input(rows, terms), graph.input(columns)
    graph.output(graph.op("Gemm", data, matrix, bias, transB=int(transposed)))
    check_gpu(graph, gpu)


def test_batched_matrix_product(gpu: str) -> None:
    graph = Graph()
    graph.output(graph.op("MatMul", graph.input(3, 5, 17, 24), graph.input(3, 5, 24, 31)))
    check_gpu(graph, gpu)


REDUCTIONS: dict[str, Callable[[Graph], str]] = {
    "softmax": lambda g: g.op("Softmax", g.input(3, 1000), axis=-1),
    "softmax-middle": lambda g: g.op("Softmax", g.input(2, 91, 30), axis=1),
    "global-average": lambda g: g.op("GlobalAveragePool", g.input(1, 40, 13, 13)),
    "global-max": lambda g: g.op("GlobalMaxPool", g.input(2, 6, 7, 7)),
    "mean-columns": lambda g: g.op("ReduceMean", g.input(300, 37), axes=[0]),
    "max-all": lambda g: g.op("ReduceMax", g.input(7, 11, 13)),
    "sum-few-terms": lambda g: g.op("ReduceSum", g.input(50, 60, 5), g.constant([2])),
    "l2": lambda g: g.op("ReduceL2", g.input(4, 700), axes=[1]),
    "layer-norm": lambda g: g.op("LayerNormalization", g.input(6, 130), g.input(130), g.input(130)),
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, gpu: str) -> None:
    graph = Graph()
    graph.output(REDUCTIONS[name](graph))
    assert "reduce" in rules(check_gpu(graph, gpu))


def test_arg_maximum(gpu: str) -> None:
    graph = Graph()
    graph.output(graph.op("ArgMax", graph.input(9, 1000), axis=1, keepdims=0), 7)
    check_gpu(graph, gpu)


ELEMENTWISE: dict[str, Callable[[Graph], str]] = {
    "broadcast": lambda g: g.op("Mul", g.input(3, 1, 50), g.input(7, 1)),
    "concat": lambda g: g.op("Concat", g.input(2, 3, 5), g.input(2, 4, 5), axis=1),
    "transpose": lambda g: g.op("Transpose", g.input(3, 4, 5, 6), perm=[0, 2, 3, 1]),
    "resize": lambda g: g.op(
        "Resize", g.input(1, 3, 8, 9), "", g.constant(np.float32([1, 1, 2, 2])), mode="linear"
    ),
    "pad": lambda g: g.op("Pad", g.input(2, 5), g.constant([1, 0, 0, 3])),
    "slice": lambda g: g.op(
        "Slice", g.input(9, 9), g.constant([1, 2]), g.constant([8, 9]), g.constant([0, 1])
    ),
    "gather": lambda g: g.op("Gather", g.input(10, 7), g.constant([3, 0, 9]), axis=0),
    "one-element": lambda g: g.op("Add", g.input(1), g.input(1)),
    "gelu": lambda g: g.op("Erf", g.op("Tanh", g.input(4000))),
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, gpu: str) -> None:
    graph = Graph()
    graph.output(ELEMENTWISE[name](graph))
    assert rules(check_gpu(graph, gpu)) == {"elementwise"}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_types(dtype: str, gpu: str) -> None:
    """Large constants and results of one byte; floats become truths and integers."""
    graph = Graph()
    kinds = {"int64": 7, "int32": 6, "uint8": 2, "bool": 9}
    given = graph.input(257, dtype=dtype, high=100)
    if dtype == "bool":
        result = graph.op("Less", graph.op("Cast", given, to=1), graph.input(257))
        result = graph.op("And", graph.op("Not", given), result)
    else:
        large = {"int64": 3_000_000_000, "int32": 2_000_000_000, "uint8": 250}[dtype]
        result = graph.op("Add", given, graph.constant(np.array(large, dtype)))
        rounded = graph.op("Cast", graph.input(257, mean=50), to=kinds[dtype])
        result = graph.op("Add", result, rounded)
    graph.output(result, kinds[dtype])
    check_gpu(graph, gpu)


def test_relu_and_clip_keep_nan(gpu: str) -> None:
    graph = Graph()
    data = graph.given(np.float32([np.nan, -1, 1, np.inf, -np.inf, 9]))
    clipped = graph.op("Clip", data, graph.constant(0.0), graph.constant(6.0))
    graph.output(clipped)
    graph.output(graph.op("Relu", data))
    model = graph.model()
    actual = tvm_edge.compile(model, gpu, fallback="none").run(graph.values)
    relu = next(value for name, value in actual.items() if name.startswith("relu"))
    clip = next(value for name, value in actual.items() if name.startswith("clip"))
    np.testing.assert_array_equal(relu, np.float32([np.nan, 0, 1, np.inf, 0, 9]))
    np.testing.assert_array_equal(clip, np.float32([np.nan, 0, 1, 6, 0, 6]))
