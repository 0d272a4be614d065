"""Convolutions: the register-tile template against ONNX Runtime, and what it makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir

from tests.marks import dealt
from tests.schedules.harness import (
    AVX512,
    BY_NAME,
    SPECS,
    Graph,
    Kernel,
    assert_register_tile,
    block_names,
    check,
    rules,
    scalar_lanes,
    sweep,
)
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import accesses, stride

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


@dataclass(frozen=True)
class Conv:
    """A convolution and what follows it."""

    batch: int = 1
    groups: int = 1
    inputs: int = 8  # channels of a group
    outputs: int = 8
    image: tuple[int, int] = (9, 9)
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    epilogue: str = "relu"

    def output_size(self) -> list[int]:
        """Height and width of the result."""
        return [
            (size + self.pads[i] + self.pads[i + 2] - self.dilations[i] * (self.kernel[i] - 1) - 1)
            // self.strides[i]
            + 1
            for i, size in enumerate(self.image)
        ]

    def build(self, graph: Graph) -> None:
        """Add the convolution to a graph, its result as an output."""
        outputs = self.groups * self.outputs
        result = graph.op(
            "Conv",
            graph.input(self.batch, self.groups * self.inputs, *self.image),
            graph.input(outputs, self.inputs, *self.kernel),
            *([] if self.epilogue == "none" else [graph.input(outputs)]),
            kernel_shape=self.kernel,
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            group=self.groups,
        )
        if self.epilogue == "residual":
            shape = [self.batch, outputs, *self.output_size()]
            result = graph.op("Relu", graph.op("Add", result, graph.input(*shape)))
        elif self.epilogue == "relu":
            result = graph.op("Relu", result)
        elif self.epilogue == "clip":
            result = graph.op("Clip", result, graph.input(), graph.constant(1.5))
        elif self.epilogue == "silu":
            result = graph.op("Mul", result, graph.op("Sigmoid", result))
        graph.output(result)


small = st.integers(1, 9)
channels = st.one_of(small, st.sampled_from([16, 17, 24, 32]))
conv_cases = st.builds(
    Conv,
    batch=st.integers(1, 2),
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    inputs=channels,
    outputs=channels,
    image=st.tuples(st.integers(1, 20), st.one_of(st.integers(1, 20), st.sampled_from([33, 55]))),
    kernel=st.tuples(st.integers(1, 4), st.sampled_from([1, 1, 2, 3, 3, 5, 7])),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    epilogue=st.sampled_from(["none", "bias", "relu", "clip", "residual", "silu"]),
).filter(lambda conv: min(conv.output_size()) > 0)


# One build for several convolutions: LLVM's start-up costs more than a small kernel.
@given(st.lists(conv_cases, min_size=10, max_size=10), st.sampled_from(SPECS))
@sweep(3)
def test_any_convolution_agrees_with_onnxruntime(convs: list[Conv], spec: DeviceSpec) -> None:
    graph = Graph()
    for conv in convs:
        conv.build(graph)
    check(graph, spec)


def kernels(convs: list[Conv], spec: DeviceSpec = AVX512) -> list[Kernel]:
    """The kernels of some convolutions, checked, without those around them (bias shapes)."""
    graph = Graph()
    for conv in convs:
        conv.build(graph)
    return [kernel for kernel in check(graph, spec) if kernel.scheduled.rule != "elementwise"]


AWKWARD = {
    "one channel each way": Conv(inputs=1, outputs=1),
    "one output channel": Conv(inputs=40, outputs=1, image=(14, 14)),
    "17 channels of width 13": Conv(inputs=3, outputs=17, image=(13, 13)),
    "width 55": Conv(inputs=3, outputs=16, image=(55, 55)),
    "width 1": Conv(image=(30, 1), kernel=(3, 1), pads=(1, 0, 1, 0)),
    "height 1": Conv(image=(1, 30), kernel=(1, 3), pads=(0, 1, 0, 1)),
    "1x7 kernel": Conv(image=(17, 17), kernel=(1, 7), pads=(0, 3, 0, 3)),
    "7x1 kernel": Conv(image=(17, 17), kernel=(7, 1), pads=(3, 0, 3, 0)),
    "kernel as large as the image": Conv(image=(6, 6), kernel=(6, 6), pads=(0, 0, 0, 0)),
    "1x1 with padding": Conv(kernel=(1, 1), image=(7, 7)),
    "1x1 of one channel": Conv(inputs=1, kernel=(1, 1), pads=(0, 0, 0, 0)),
    "1x1 with a stride": Conv(kernel=(1, 1), strides=(2, 2), pads=(0, 0, 0, 0), image=(14, 14)),
    "1x1 with different strides": Conv(
        kernel=(1, 1), strides=(1, 3), pads=(0, 0, 0, 0), image=(14, 14)
    ),
    "1x1 in groups with a stride": Conv(
        groups=3, kernel=(1, 1), strides=(2, 2), pads=(0, 0, 0, 0), image=(14, 14)
    ),
    "odd padded width, stride 2": Conv(image=(15, 15), strides=(2, 2), inputs=16),
    "stride larger than the kernel": Conv(strides=(3, 3), kernel=(2, 2), image=(20, 20)),
    "stride and dilation": Conv(strides=(2, 2), dilations=(2, 2), image=(20, 20)),
    "padding on one side": Conv(pads=(2, 0, 0, 1)),
    "batch of three": Conv(batch=3, strides=(2, 2)),
    "groups of one output": Conv(groups=6, inputs=4, outputs=1),
    "depthwise with a multiplier": Conv(groups=6, inputs=1, outputs=4),
    "two residual reads": Conv(epilogue="residual", image=(14, 14)),
}


@pytest.mark.parametrize(("spec", "convs"), dealt(BY_NAME, list(AWKWARD.values())))
def test_awkward_shapes_all_get_the_template(spec: DeviceSpec, convs: list[Conv]) -> None:
    for kernel in kernels(convs, spec):
        assert kernel.scheduled.rule == "conv2d"
        assert not scalar_lanes(kernel.scheduled.func), kernel.scheduled.func


def test_layers_of_known_networks_get_the_template() -> None:
    layers = [
        Conv(inputs=3, outputs=64, image=(64, 64), kernel=(7, 7), strides=(2, 2), pads=(3,) * 4),
        Conv(inputs=64, outputs=64, image=(56, 56), epilogue="residual"),
        Conv(inputs=512, outputs=128, image=(7, 7), kernel=(1, 1), pads=(0,) * 4),
        Conv(inputs=256, outputs=64, image=(28, 28), strides=(2, 2)),
        Conv(groups=4, inputs=30, outputs=60, image=(28, 28), kernel=(1, 1), pads=(0,) * 4),
    ]
    found = kernels(layers)
    assert [kernel.scheduled.rule for kernel in found] == ["conv2d"] * len(layers)
    for kernel in found:
        assert_register_tile(kernel.scheduled.func)


def test_vectors_of_a_strided_window_are_contiguous() -> None:
    (kernel,) = kernels([Conv(strides=(2, 2), image=(33, 33))])
    sums = []

    def visit(block: s_tir.SBlock) -> None:
        if block.name_hint.endswith("_update"):
            sums.append(block)

    tvm_ffi.structural_walk(kernel.scheduled.func, (s_tir.SBlock, visit))
    (block,) = sums
    column = block.body.indices[-1]
    assert {stride(access, column) for access in accesses(block)[0]} == {0, 1}


@pytest.mark.parametrize("window", [(1, 1), (3, 1)])
def test_one_pixel_is_a_dot_product(window: tuple[int, int]) -> None:
    conv = Conv(batch=2, inputs=240, outputs=60, image=window, kernel=window, pads=(0,) * 4)
    (kernel,) = kernels([conv])
    # ``rfactor`` names the block of partial sums so: the lanes run along the input channels.
    assert any("_rf" in name for name in block_names(kernel.scheduled.func))


@pytest.mark.parametrize(
    ("rank", "attributes"),
    [
        (1, {"kernel_shape": [5], "pads": [2, 2], "strides": [2]}),
        (1, {"kernel_shape": [1]}),
        (3, {"kernel_shape": [3, 3, 3], "pads": [1] * 6, "strides": [1, 2, 2]}),
    ],
)
def test_one_and_three_dimensions(rank: int, attributes: dict[str, list[int]]) -> None:
    graph = Graph()
    data = graph.input(1, 6, *[12] * rank)
    weight = graph.input(10, 6, *attributes["kernel_shape"])
    graph.output(graph.op("Relu", graph.op("Conv", data, weight, graph.input(10), **attributes)))
    assert "conv2d" in rules(check(graph))


@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution(group: int) -> None:
    graph = Graph()
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "group": group}
    data, weight = graph.input(1, 8, 9, 9), graph.input(8, 6 // group, 3, 3)
    graph.output(graph.op("ConvTranspose", data, weight, graph.input(6), **attributes))
    assert "conv2d" in rules(check(graph))
