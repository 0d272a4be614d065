"""Kernels without a reduction, of any type and shape, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from tests.schedules.harness import SPECS, Graph, check, rules, sweep
from tvm_edge.hardware import DeviceSpec

dims = st.one_of(st.integers(1, 9), st.sampled_from([16, 17, 31, 49, 64]))
shapes = st.lists(dims, min_size=1, max_size=4).filter(lambda s: np.prod(s) < 200_000)


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[str, list[int], list[int]]:
    """A binary operator and two shapes that broadcast."""
    shape = draw(shapes)
    other = [draw(st.sampled_from([d, d, 1])) for d in shape]
    other = other[draw(st.integers(0, len(shape))) :]
    return draw(st.sampled_from(["Add", "Mul", "Sub", "Div"])), shape, other


@given(st.lists(broadcasts(), min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_broadcast_agrees_with_onnxruntime(
    cases: list[tuple[str, list[int], list[int]]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for operator, shape, other in cases:
        result = graph.op(operator, graph.input(*shape), graph.input(*other, mean=9))
        graph.output(graph.op("Relu", result))
    assert set(rules(check(graph, spec))) == {"elementwise"}


@st.composite
def movements(draw: st.DrawFn) -> tuple[str, list[int], int]:
    """An operator that moves data, a shape, an axis of it."""
    shape = draw(shapes)
    kinds = ["Concat", "Transpose", "Pad", "Slice", "Gather", "Tile"]
    return draw(st.sampled_from(kinds)), shape, draw(st.integers(0, len(shape) - 1))


def move(graph: Graph, kind: str, shape: list[int], axis: int) -> None:
    """Add an operator that moves data to a graph."""
    data = graph.input(*shape)
    rank = len(shape)
    if kind == "Concat":
        other = [d + (i == axis) for i, d in enumerate(shape)]
        result = graph.op("Concat", data, graph.input(*other), data, axis=axis)
    elif kind == "Transpose":
        result = graph.op("Transpose", data, perm=[*range(axis, rank), *range(axis)])
    elif kind == "Pad":
        pads = [i == axis for i in range(rank)] + [2 * (i == axis) for i in range(rank)]
        result = graph.op("Pad", data, graph.constant(np.array(pads, "int64")))
    elif kind == "Slice":
        bounds = ([0], [shape[axis]], [axis], [2])
        result = graph.op("Slice", data, *(graph.constant(np.array(b)) for b in bounds))
    elif kind == "Gather":
        indices = graph.input(5, dtype="int64", high=shape[axis])
        result = graph.op("Gather", data, indices, axis=axis)
    else:
        repeats = graph.constant(np.array([2 - (i != axis) for i in range(rank)]))
        result = graph.op("Tile", data, repeats)
    graph.output(graph.op("Neg", result))


@given(st.lists(movements(), min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_movement_agrees_with_onnxruntime(
    cases: list[tuple[str, list[int], int]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for case in cases:
        move(graph, *case)
    assert set(rules(check(graph, spec))) == {"elementwise"}


TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_type_is_vectorised(spec: DeviceSpec) -> None:
    graph = Graph()
    for dtype, code in TYPES.items():
        operands = [graph.input(3, 210, 514, dtype=dtype) for _ in range(2)]
        graph.output(graph.op("Add", *operands), code)
    flags = graph.input(3, 210, 514, dtype="bool")
    graph.output(graph.op("Not", flags), TensorProto.BOOL)
    graph.output(graph.op("Less", graph.input(3, 210, 514), graph.input(514)), TensorProto.BOOL)
    graph.output(graph.op("Cast", flags, to=TensorProto.FLOAT))
    graph.output(graph.op("Where", flags, graph.input(210, 514), graph.input(1)))
    assert set(rules(check(graph, spec))) == {"elementwise"}


def test_activations() -> None:
    graph = Graph()
    for kind in ("Sigmoid", "Tanh", "Exp", "Erf", "HardSwish", "Elu", "LeakyRelu", "Softplus"):
        graph.output(graph.op(kind, graph.input(1, 7, 33, 31)))
    check(graph)


def test_long_chains_do_not_explode() -> None:
    graph = Graph()
    mean, half = graph.input(1, 7, 33, 31), graph.constant(0.5)
    for _ in range(24):  # in one expression, 2**24 loads
        mean = graph.op("Mul", graph.op("Add", mean, mean), half)
    graph.output(mean)
    assert set(rules(check(graph))) == {"elementwise"}


def test_images() -> None:
    graph = Graph()
    image = graph.input(1, 8, 33, 35)
    twice = graph.constant(np.array([1, 1, 2, 2], "float32"))
    graph.output(
        graph.op(
            "Resize",
            image,
            "",
            twice,
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )
    )
    graph.output(graph.op("Resize", image, "", twice, mode="linear"))
    graph.output(graph.op("DepthToSpace", image, blocksize=2))
    border = graph.constant(np.array([0, 0, 1, 1, 0, 0, 2, 2]))
    graph.output(graph.op("Pad", image, border, mode="reflect"))
    grouped = graph.op("Reshape", image, graph.constant(np.array([1, 2, 4, 33, 35])))
    shuffled = graph.op("Transpose", grouped, perm=[0, 2, 1, 3, 4])
    graph.output(graph.op("Reshape", shuffled, graph.constant(np.array([1, 8, 33, 35]))))
    assert set(rules(check(graph))) == {"elementwise"}


def test_scalars_and_empty_tensors() -> None:
    graph = Graph()
    graph.output(graph.op("Mul", graph.input(), graph.input()))
    graph.output(graph.op("Add", graph.input(0, 4), graph.input(4)))
    graph.output(graph.op("Relu", graph.input(1, 1, 1, 1)))
    assert set(rules(check(graph))) == {"elementwise"}
