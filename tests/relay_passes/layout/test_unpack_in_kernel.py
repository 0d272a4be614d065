"""Convolutions in channel blocks whose kernel unpacks their result itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedules.blocked_harness import SPECS, Conv, check, check_convs, direct
from tests.schedules.harness import Graph
from tvm_edge.hardware import DeviceSpec

WINDOWS = [
    Conv(groups=32, channels=32, filters=32, image=(14, 14), epilogue="relu"),
    Conv(batch=2, groups=48, channels=48, filters=48, image=(11, 7), epilogue="clip"),
    Conv(
        groups=16,
        channels=16,
        filters=16,
        image=(9, 23),
        kernel=(5, 5),
        strides=(2, 2),
        pads=(2, 2, 2, 2),
        epilogue="bias",
    ),
    Conv(groups=16, channels=16, filters=16, image=(5, 3), kernel=(5, 3), epilogue="plane"),
]
TRANSPOSED = [
    {"channels": 16, "filters": 16, "kernel": 4, "size": (5, 7), "strides": (2, 2), "pad": 1},
    {"channels": 24, "filters": 24, "kernel": 2, "size": (6, 5), "strides": (2, 2), "pad": 0},
    {"channels": 16, "filters": 32, "kernel": 3, "size": (4, 3), "strides": (1, 2), "pad": 1},
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_one_kernel_convolves_and_unpacks(spec: DeviceSpec) -> None:
    compiled = check_convs(WINDOWS, spec, direct)
    names = [k.name for k in compiled.report.kernels if "depthwise" in k.name]
    assert len(names) == len(WINDOWS)
    assert all("unpack" in name for name in names)
    assert compiled.transforms() == ["pack", "unpack"] * len(WINDOWS)


@pytest.mark.parametrize("sizes", TRANSPOSED, ids=str)
def test_one_kernel_convolves_transposed_and_unpacks(sizes: dict[str, Any]) -> None:
    graph = Graph()
    window = (sizes["kernel"], sizes["kernel"])
    weights = np.random.default_rng(5).normal(size=(sizes["channels"], sizes["filters"], *window))
    bias = graph.constant(np.arange(sizes["filters"]) / 8)
    made = graph.op(
        "ConvTranspose",
        graph.input(2, sizes["channels"], *sizes["size"]),
        graph.constant(weights / 8),
        bias,
        strides=sizes["strides"],
        pads=[sizes["pad"]] * 4,
    )
    graph.output(graph.op("Relu", made))
    compiled = check(graph, SPECS[0], direct)
    (kernel,) = (k for k in compiled.report.kernels if "transposed" in k.name)
    assert "unpack" in kernel.name


def test_a_result_that_blocks_are_read_of_too_is_unpacked_apart() -> None:
    graph = Graph()
    window = Conv(groups=32, channels=32, filters=32, image=(9, 7)).build(graph, "window")
    graph.output(window)
    pointwise = Conv(channels=32, filters=32, kernel=(1, 1), pads=(0, 0, 0, 0))
    graph.output(pointwise.build(graph, "pointwise", window))
    compiled = check(graph, SPECS[0], direct)
    (name,) = (k.name for k in compiled.report.kernels if "depthwise" in k.name)
    assert "unpack" not in name
    assert compiled.transforms().count("unpack") == 2


def test_channels_that_fill_a_block_up_are_unpacked() -> None:
    check_convs([Conv(groups=40, channels=40, filters=40, image=(9, 7))], SPECS[0], direct)
