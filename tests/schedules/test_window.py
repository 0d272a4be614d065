"""Depthwise convolution and pooling against ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from tests.marks import dealt
from tests.schedules.harness import (
    BY_NAME,
    SPECS,
    Graph,
    assert_register_tile,
    check,
    rules,
    scalar_lanes,
    sweep,
)
from tvm_edge.hardware import DeviceSpec

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


@dataclass(frozen=True)
class Window:
    """A depthwise convolution or a pooling."""

    operator: str = "MaxPool"
    batch: int = 1
    channels: int = 4
    image: tuple[int, int] = (9, 9)
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    relu: bool = False

    def is_valid(self) -> bool:
        """Whether the output is not empty and no pooling window lies in the padding only."""
        fits = all(
            self.image[i] + self.pads[i] + self.pads[i + 2] >= self.kernel[i] for i in range(2)
        )
        inside = all(max(self.pads[i], self.pads[i + 2]) < self.kernel[i] for i in range(2))
        return fits and inside

    def build(self, graph: Graph) -> None:
        """Add the operator to a graph, its result as an output."""
        data = graph.input(self.batch, self.channels, *self.image)
        attributes = {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "pads": self.pads,
        }
        if self.operator == "Conv":
            weights = graph.input(self.channels, 1, *self.kernel), graph.input(self.channels)
            result = graph.op("Conv", data, *weights, group=self.channels, **attributes)
        else:
            operator, *padded = self.operator.split("+")
            if padded:
                attributes["count_include_pad"] = 1
            result = graph.op(operator, data, **attributes)
        graph.output(graph.op("Relu", result) if self.relu else result)


windows = st.builds(
    Window,
    operator=st.sampled_from(["Conv", "Conv", "MaxPool", "AveragePool", "AveragePool+pad"]),
    batch=st.integers(1, 2),
    channels=st.one_of(st.integers(2, 6), st.sampled_from([24, 33])),
    image=st.tuples(st.integers(1, 20), st.one_of(st.integers(1, 20), st.sampled_from([35, 56]))),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    relu=st.booleans(),
).filter(Window.is_valid)


@given(st.lists(windows, min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_window_agrees_with_onnxruntime(cases: list[Window], spec: DeviceSpec) -> None:
    graph = Graph()
    for case in cases:
        case.build(graph)
    check(graph, spec)


AWKWARD = [
    Window(operator, **{**shape, "channels": channels})
    for operator, channels in (("Conv", 6), ("MaxPool", 5), ("AveragePool", 1))
    for shape in (
        {"image": (7, 7)},
        {"image": (14, 14), "strides": (2, 2)},
        {"image": (15, 15), "strides": (2, 2)},
        {"image": (55, 55), "strides": (2, 2), "pads": (0, 0, 0, 0)},
        {"image": (13, 35), "kernel": (5, 5), "pads": (2, 2, 2, 2)},
        {"image": (10, 10), "kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)},
        {"image": (10, 10), "pads": (0, 0, 1, 1), "strides": (2, 2), "batch": 2},
        {"image": (12, 6), "kernel": (3, 1), "pads": (1, 0, 1, 0)},
    )
]


@pytest.mark.parametrize(("spec", "cases"), dealt(BY_NAME, AWKWARD))
def test_awkward_windows_get_the_template(spec: DeviceSpec, cases: list[Window]) -> None:
    graph = Graph()
    for case in cases:
        case.build(graph)
    kernels = [kernel for kernel in check(graph, spec) if kernel.scheduled.rule != "elementwise"]
    assert {kernel.scheduled.rule for kernel in kernels} == {"depthwise", "pool"}
    for kernel in kernels:
        assert not scalar_lanes(kernel.scheduled.func), kernel.scheduled.func


def test_padding_of_a_channel_stays_on_its_core() -> None:
    graph = Graph()
    for operator in ("Conv", "MaxPool"):
        Window(operator, channels=64, image=(57, 57), strides=(2, 2)).build(graph)
    for kernel in check(graph):
        if kernel.scheduled.rule != "elementwise":
            assert isinstance(kernel.scheduled.func.body.block.body, tirx.For)  # one loop nest
            assert_register_tile(kernel.scheduled.func)


def test_local_response_normalization_pools_across_channels() -> None:
    graph = Graph()
    graph.output(graph.op("LRN", graph.input(1, 16, 13, 13), size=5))
    assert "pool" in rules(check(graph))


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_window_over_the_whole_image_is_a_reduction(operator: str) -> None:
    graph = Graph()
    graph.output(graph.op(operator, graph.input(2, 40, 7, 7), kernel_shape=[7, 7]))
    assert "reduce" in rules(check(graph))


def test_one_dimensional_pooling() -> None:
    graph = Graph()
    data = graph.input(1, 4, 40)
    graph.output(graph.op("MaxPool", data, kernel_shape=[3], strides=[2], pads=[1, 1]))
    assert "pool" in rules(check(graph))
