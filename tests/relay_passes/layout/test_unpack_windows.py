"""Depthwise convolutions whose kernel unpacks their result itself."""

from __future__ import annotations

import pytest

from tests.schedules.blocked_harness import SPECS, Conv, check, check_convs, direct
from tests.schedules.harness import Graph
from tvm_edge.hardware import DeviceSpec

CONVS = [
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


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_one_kernel_convolves_and_unpacks(spec: DeviceSpec) -> None:
    compiled = check_convs(CONVS, spec, direct)
    names = [k.name for k in compiled.report.kernels if "depthwise" in k.name]
    assert len(names) == len(CONVS)
    assert all("unpack" in name for name in names)
    assert compiled.transforms() == ["pack", "unpack"] * len(CONVS)


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


@pytest.mark.parametrize("filters", [24, 40])
def test_channels_that_fill_a_block_up_are_unpacked_apart(filters: int) -> None:
    conv = Conv(groups=filters, channels=filters, filters=filters, image=(9, 7))
    compiled = check_convs([conv], SPECS[0], direct)
    (name,) = (k.name for k in compiled.report.kernels if "depthwise" in k.name)
    assert "unpack" not in name
