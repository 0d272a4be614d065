"""Reductions against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from tests.schedules.harness import (
    SPECS,
    Graph,
    block_names,
    check,
    rules,
    scalar_lanes,
    sweep,
)
from tvm_edge.hardware import DeviceSpec

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")

shapes = st.lists(
    st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 49, 100])), min_size=2, max_size=4
).filter(lambda shape: len([d for d in shape if d > 9]) <= 2)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[str, list[int], list[int], int]:
    """An operator, a shape, the axes to reduce, whether to keep them."""
    shape = draw(shapes)
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    operator = draw(
        st.sampled_from(
            ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2", "Softmax", "ArgMax"]
        )
    )
    return operator, shape, sorted(axes), draw(st.integers(0, 1))


def build(graph: Graph, operator: str, shape: list[int], axes: list[int], keep: int) -> None:
    """Add a reduction to a graph."""
    # Around zero the terms of a mean cancel, and what is left is rounding.
    data = graph.input(*shape, mean=2)
    if operator == "Softmax":
        graph.output(graph.op("Softmax", data, axis=axes[-1]))
    elif operator == "ArgMax":
        result = graph.op("ArgMax", data, axis=axes[-1], keepdims=keep)
        graph.output(result, TensorProto.INT64)
    elif operator == "ReduceSum":  # the axes became an input with opset 13
        graph.output(graph.op("ReduceSum", data, graph.constant(axes), keepdims=keep))
    else:
        graph.output(graph.op(operator, data, axes=axes, keepdims=keep))


@given(st.lists(reductions(), min_size=8, max_size=8), st.sampled_from(SPECS))
@sweep(4)
def test_any_reduction_agrees_with_onnxruntime(
    cases: list[tuple[str, list[int], list[int], int]], spec: DeviceSpec
) -> None:
    graph = Graph()
    for case in cases:
        build(graph, *case)
    check(graph, spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_softmax_over_any_axis(spec: DeviceSpec) -> None:
    graph = Graph()
    for shape, axis in [((1, 1000), 1), ((300, 1001), 1), ((1, 21, 30, 30), 1), ((64, 97), 1)]:
        graph.output(graph.op("Softmax", graph.input(*shape), axis=axis))
    assert rules(check(graph, spec)) == ["reduce"] * 4


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_softmax_of_rows_of_a_prime_length(spec: DeviceSpec) -> None:
    # 197 patches: no number of lanes divides them, and sums must not run term by term for that.
    graph = Graph()
    graph.output(graph.op("Softmax", graph.input(12, 97, 197), axis=2))
    (kernel,) = check(graph, spec)
    assert kernel.scheduled.rule == "reduce"
    assert len([n for n in block_names(kernel.scheduled.func) if "_rf" in n]) >= 2
    assert not scalar_lanes(kernel.scheduled.func)


CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "global average": ("GlobalAveragePool", (1, 2048, 7, 7), {}),
    "global average of a large image": ("GlobalAveragePool", (2, 3, 100, 100), {}),
    "global maximum": ("GlobalMaxPool", (1, 100, 13, 13), {}),
    "mean over channels": ("ReduceMean", (1, 256, 14, 14), {"axes": [1]}),
    "mean over batch and image": ("ReduceMean", (4, 32, 14, 14), {"axes": [0, 2, 3]}),
    "sum of everything": ("ReduceMean", (64, 64, 64), {"axes": [0, 1, 2]}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_network_reductions_get_the_template(
    case: tuple[str, tuple[int, ...], dict[str, Any]],
) -> None:
    operator, shape, attributes = case
    graph = Graph()
    graph.output(graph.op(operator, graph.input(*shape, mean=2), **attributes))
    assert set(rules(check(graph))) == {"reduce"}


def test_normalizations() -> None:
    graph = Graph()
    rows, scale, image = graph.input(49, 768), graph.input(768), graph.input(1, 8, 12, 12)
    graph.output(graph.op("LayerNormalization", rows, scale, scale, axis=-1))
    graph.output(graph.op("InstanceNormalization", image, *[graph.input(8)] * 2))
    graph.output(graph.op("ReduceLogSumExp", rows, axes=[1]))
    assert "fallback" not in rules(check(graph))
