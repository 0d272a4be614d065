"""Taps of windows in the padding: how many are left, and that kernels skip the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te, tirx

from tests.schedules.harness import AVX2, AVX512
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.blocked import conv2d
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import schedule
from tvm_edge.schedules.cpu.algorithm import direct_tile
from tvm_edge.schedules.cpu.blocked_knobs import candidates
from tvm_edge.schedules.taps import LONGEST_TILE, Reach, reaches, useful_share
from tvm_edge.schedules.transposed import TransposedConv, conv2d_transposed


def workload(dilation: int, size: int = 16, **changed: int) -> ConvWorkload:
    return ConvWorkload(
        batch=1,
        channels=32,
        height=size,
        width=size,
        filters=32,
        kernel=(3, 3),
        strides=(1, 1),
        padding=(dilation,) * 4,
        dilation=(dilation,) * 2,
        groups=changed.get("groups", 1),
    )


@given(
    st.integers(1, 20),
    st.integers(1, 7),
    st.integers(1, 5),
    st.builds(
        Reach, st.integers(1, 3), st.integers(1, 9), st.integers(0, 9), st.just(0), st.just(0)
    ),
    st.integers(1, 20),
)
def test_share_counts_tiles_with_a_pixel(
    length: int, tile: int, taps: int, reach: Reach, image: int
) -> None:
    pixel = np.arange(length)[:, None] * reach.stride + np.arange(taps) * reach.dilation
    inside = (pixel >= reach.padding) & (pixel < reach.padding + image)
    tiles = [inside[first : first + tile] for first in range(0, length, tile)]
    # A tile is taken where its first and last pixel have the image between them, too.
    least = np.mean([part.any(axis=0) for part in tiles])
    share = useful_share(length, tile, taps, reach, image)
    assert least <= share <= 1
    if reach.stride == 1:
        assert share == pytest.approx(least)


def test_convolutions_whose_taps_are_skipped() -> None:
    assert reaches(workload(12)) and reaches(workload(36))
    # Windows that hardly leave the image; channels by themselves have kernels of their own.
    assert not reaches(workload(1)) and not reaches(workload(2, 224))
    assert not reaches(workload(12, groups=32))


@pytest.mark.parametrize("spec", [AVX512, AVX2], ids=lambda spec: spec.name)
@pytest.mark.parametrize("dilation", [1, 12])
def test_kernels_have_conditions_on_taps(spec, dilation: int) -> None:
    own, lanes = workload(dilation), spec.lanes()
    image = te.placeholder((1, 32 // lanes, 16, 16, lanes), name="image")
    filters = te.placeholder((32 // lanes, 32 // lanes, 3, 3, lanes, lanes), name="filters")
    result = conv2d(image, filters, own.strides, own.padding, own.dilation, reach=reaches(own))
    done = schedule(te.create_prim_func([image, filters, result]), spec)
    conditions = nodes_in(done.func, tirx.IfThenElse)
    assert len(conditions) == (2 if dilation == 12 else 0)
    padded = [b for b in nodes_in(done.func, s_tir.SBlock) if b.name_hint == "padded"]
    assert padded[0].writes[0].source.shape[2] == (16 if dilation == 12 else 18)


@pytest.mark.parametrize("channels", [24, 32])
def test_channels_that_fill_a_block_up_are_skipped(channels: int) -> None:
    conv = TransposedConv.of((1, channels, 8, 16), 16, (2, 2), (2, 2), (0, 0, 0, 0), (0, 0))
    assert conv is not None
    image = te.placeholder((1, 2, 8, 16, 16), name="image")
    filters = te.placeholder((4, 1, 2, 1, 1, 16, 16), name="filters")
    result = conv2d_transposed(image, filters, conv)
    done = schedule(te.create_prim_func([image, filters, result]), AVX512)
    assert len(nodes_in(done.func, tirx.IfThenElse)) == (channels == 24)
    filters = te.placeholder((1, 2, 3, 1, 16, 16), name="filters")
    result = conv2d(image, filters, (1, 1), (0, 0, 0, 0), (1, 1), channels=channels)
    done = schedule(te.create_prim_func([image, filters, result]), AVX512)
    assert len(nodes_in(done.func, tirx.IfThenElse)) == (channels == 24)


def test_tiles_stay_within_the_padding() -> None:
    """Also those of a record, which says nothing of it."""
    found = candidates(direct_tile(workload(12), 16, 16), AVX512)
    assert found
    assert max(knobs.columns for knobs in found) == LONGEST_TILE
    assert {knobs.lines for knobs in found} == {1}
