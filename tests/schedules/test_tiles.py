"""Register tiles: what the rule chooses for a device, and that it stays within it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules.harness import AVX2, AVX512, NEON, SPECS
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.cpu.microkernel import RegisterTile, choose_tile

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")

extents = st.one_of(st.integers(1, 64), st.sampled_from([112, 149, 224, 512, 1000, 3136]))


@given(st.sampled_from(SPECS), extents, extents, extents, st.booleans())
def test_tiles_fit_the_registers_and_divide_the_axes(
    spec: DeviceSpec, channels: int, lines: int, columns: int, exact: bool
) -> None:
    lanes = spec.lanes()
    tile = choose_tile(spec, lanes, channels=channels, lines=lines, columns=columns, exact=exact)
    assert channels % tile.channels == 0
    assert lines % tile.lines == 0
    assert 1 <= tile.lanes <= lanes
    loaded = tile.lines * tile.vectors
    assert tile.accumulators + loaded + 1 <= max(spec.vector_registers, 3)
    if exact:
        assert columns % (tile.vectors * tile.lanes) == 0
    else:
        assert tile.lanes == min(lanes, columns)


# A multiply-add takes four cycles and two can start in each: fewer than eight sums leave the
# units idle, whatever the layer.
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    ("channels", "lines", "columns"),
    [(64, 112, 112), (64, 56, 56), (64, 1, 3136), (128, 28, 28), (256, 14, 14), (512, 7, 7)],
)
def test_layers_of_resnet_keep_the_units_busy(
    spec: DeviceSpec, channels: int, lines: int, columns: int
) -> None:
    tile = choose_tile(spec, spec.lanes(), channels=channels, lines=lines, columns=columns)
    assert tile.accumulators >= 8
    assert tile.accumulators > 2 * (tile.channels + tile.lines * tile.vectors) / 3


def test_tiles_follow_the_register_file() -> None:
    sizes = {"channels": 64, "lines": 56, "columns": 56}
    tiles = {spec.name: choose_tile(spec, spec.lanes(), **sizes) for spec in SPECS}
    assert tiles["AVX-512"].lanes == 16
    assert tiles["AVX2"].lanes == 8
    assert tiles["NEON"].lanes == 4
    assert tiles["AVX2"].accumulators < tiles["NEON"].accumulators


def test_tiles_leave_no_core_idle() -> None:
    many = DeviceSpec(
        key="test", kind="cpu", name="16 cores", cores=16, simd_bytes=64, vector_registers=32
    )
    tile = choose_tile(many, 16, channels=16, lines=7, columns=7)
    tasks = (16 // tile.channels) * (7 // tile.lines)
    assert tasks >= 14


def test_one_of_everything() -> None:
    for spec in (AVX512, AVX2, NEON):
        tile = choose_tile(spec, spec.lanes(), channels=1, lines=1, columns=1)
        assert tile == RegisterTile(1, 1, 1, 1)
