"""Which convolutions are worth channel blocks, where an image has to be packed for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.schedules.blocked_harness import Conv
from tests.schedules.harness import Graph
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.layout.choose_blocks import choose_blocked

CPU = replace(
    resolve_target({"kind": "llvm", "mcpu": "znver4"}).spec, peak_gflops=332.0, bandwidth_gbs=20.0
)


@pytest.mark.parametrize(
    ("channels", "size", "window", "expected"),
    [
        # Microseconds in NCHW, and on blocks with the transforms: 71 and 118.
        (40, 45, 7, False),
        (144, 28, 5, True),  # 53 and 51
        (240, 14, 5, True),  # 37 and 26
        (96, 56, 7, True),  # 239 and 182
        (384, 14, 7, True),  # 92 and 60
        (960, 7, 5, True),  # 42 and 29
        (960, 7, 3, True),  # 24 and 23
    ],
)
def test_a_depthwise_convolution_by_itself(
    channels: int, size: int, window: int, *, expected: bool
) -> None:
    graph = Graph()
    edge = window // 2
    conv = Conv(
        groups=channels,
        channels=channels,
        filters=channels,
        image=(size, size),
        kernel=(window, window),
        pads=(edge, edge, edge, edge),
        epilogue="none",
    )
    graph.output(conv.build(graph))
    module = load_model(graph.model()).module
    assert bool(choose_blocked(module["main"], module, CPU, {})) == expected
