"""Direct convolutions of blocked images: each against ONNX Runtime, and which path it took."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te

from tests.marks import dealt
from tests.schedules.blocked_harness import EPILOGUES, SPECS, Conv, check_convs, direct
from tests.schedules.harness import (
    SWEEP,
    assert_close,
    call,
    scalar_lanes,
    sweep,
)
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import CONV2D, conv2d, filled, pack_filters
from tvm_edge.schedules.cpu import schedule
from tvm_edge.schedules.cpu.blocked import conv_tile
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, candidates
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


def check(convs: list[Conv], spec: DeviceSpec) -> None:
    compiled = check_convs(convs, spec, direct)
    for i, conv in enumerate(convs):
        rules = compiled.rules_of(f"conv{i}")
        assert rules, conv
        if rule := conv.rule(spec.lanes()):
            assert rules == {rule}, conv


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    kind = draw(st.sampled_from(["dense", "dense", "dense", "depthwise", "grouped"]))
    groups, channels = 1, draw(st.sampled_from([3, 8, 16, 24, 33, 48, 64]))
    filters = draw(st.sampled_from([16, 24, 40, 48, 64, 255]))
    if kind == "depthwise":
        groups, filters = channels, channels
    elif kind == "grouped":
        groups = draw(st.integers(2, 3))
        channels, filters = (
            groups * own for own in draw(st.tuples(*[st.sampled_from([4, 8, 16, 20, 32])] * 2))
        )
    sizes = st.sampled_from([1, 1, 2, 3, 3, 5, 7])
    return Conv(
        batch=draw(st.integers(1, 3)),
        groups=groups,
        channels=channels,
        filters=filters,
        image=(
            draw(st.integers(1, 14)),
            draw(st.one_of(st.integers(1, 20), st.sampled_from([1, 7, 13, 28, 55]))),
        ),
        kernel=(draw(sizes), draw(sizes)),
        strides=draw(st.tuples(*[st.integers(1, 3)] * 2)),
        dilations=draw(st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 2)),
        pads=draw(st.tuples(*[st.integers(0, 3)] * 4)),
        epilogue=draw(st.sampled_from(EPILOGUES)),
    )


# One build for several convolutions: what a compilation costs besides its kernels is shared.
@given(
    st.lists(convolutions().filter(Conv.is_valid), min_size=8, max_size=8),
    st.sampled_from(SPECS),
)
@sweep(3)
def test_any_convolution_agrees_with_onnxruntime(convs: list[Conv], spec: DeviceSpec) -> None:
    check(convs, spec)


AWKWARD = [
    Conv(channels=3, filters=24, image=(29, 29), kernel=(7, 7), strides=(2, 2), pads=(3, 2, 2, 3)),
    Conv(channels=33, filters=40, image=(7, 1), pads=(1, 1, 1, 1), epilogue="silu"),
    Conv(channels=24, filters=255, image=(5, 13), kernel=(1, 1), pads=(0,) * 4, epilogue="bias"),
    Conv(channels=48, filters=48, image=(1, 1), kernel=(1, 1), pads=(0,) * 4, epilogue="sigmoid"),
    Conv(
        channels=16, filters=40, image=(9, 55), kernel=(1, 7), pads=(0, 3, 0, 3), epilogue="plane"
    ),
    Conv(channels=16, filters=16, image=(17, 7), kernel=(7, 1), pads=(3, 0, 3, 0), batch=3),
    Conv(channels=64, filters=16, image=(9, 9), kernel=(1, 1), strides=(2, 3), pads=(1, 0, 0, 1)),
    Conv(channels=16, filters=24, image=(14, 20), dilations=(2, 3), pads=(0, 3, 4, 0)),
    Conv(
        channels=16, filters=16, image=(20, 20), kernel=(2, 2), strides=(3, 3), epilogue="constant"
    ),
    Conv(channels=16, filters=48, image=(6, 6), kernel=(6, 6), pads=(0,) * 4, epilogue="clip"),
    Conv(channels=24, filters=24, groups=24, image=(13, 13), strides=(2, 2), epilogue="silu"),
    Conv(channels=48, filters=48, groups=48, image=(12, 55), kernel=(5, 5), pads=(2, 1, 0, 2)),
    Conv(channels=64, filters=96, groups=2, image=(7, 13), batch=2, epilogue="residual"),
    # Taps in the padding are skipped: in tiles of few pixels, all but one tap, and with strides.
    Conv(channels=24, filters=48, image=(9, 17), dilations=(5, 6), pads=(5, 6, 5, 6)),
    Conv(channels=16, filters=16, image=(5, 4), dilations=(7, 9), pads=(7, 9, 7, 9), batch=2),
    Conv(
        channels=16,
        filters=32,
        image=(13, 19),
        kernel=(5, 4),
        strides=(2, 3),
        dilations=(4, 1),
        pads=(9, 0, 6, 2),
        epilogue="residual",
    ),
]


@pytest.mark.parametrize(("spec", "convs"), dealt({spec.name: spec for spec in SPECS}, AWKWARD))
def test_awkward_shapes_are_blocked(spec: DeviceSpec, convs: list[Conv]) -> None:
    assert all(conv.rule(spec.lanes()) for conv in convs), "one of them has no blocks"
    check(convs, spec)


# ------------------------------------------------------------------------------------- knobs

ODD = Conv(batch=2, channels=40, filters=96, image=(6, 13), pads=(1, 0, 2, 1))
POINTWISE = Conv(channels=40, filters=96, image=(6, 13), kernel=(1, 1), pads=(0,) * 4)


def kernel_of(conv: Conv, lanes: int, config: str = "") -> tvm.tirx.PrimFunc:
    """``conv`` on a blocked image, filters as an input."""
    depth, blocks = filled(conv.channels, lanes) // lanes, filled(conv.filters, lanes) // lanes
    image = te.placeholder((conv.batch, depth, *conv.image, lanes), name="image")
    filters = te.placeholder((blocks, depth, *conv.kernel, lanes, lanes), name="filters")
    result = conv2d(image, filters, conv.strides, conv.pads, conv.dilations, 1, config)
    return te.create_prim_func([image, filters, result])


def knobs_of(conv: Conv, spec: DeviceSpec) -> list[Knobs]:
    sch = s_tir.Schedule(kernel_of(conv, spec.lanes()))
    stmt = sch.get(sch.get_sblock(CONV2D))
    return candidates(conv_tile(stmt, padded=any(conv.pads)), spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_knobs_survive_as_text(spec: DeviceSpec) -> None:
    for conv in (ODD, POINTWISE):
        found = knobs_of(conv, spec)
        assert len(set(found)) == len(found) > 20
        assert [read_knobs(Knobs, knobs_as_text(knobs)) for knobs in found] == found


@pytest.mark.parametrize(
    ("conv", "spec"),
    [(ODD, SPECS[0]), (POINTWISE, SPECS[0]), (ODD, SPECS[1])],
    ids=["avx512", "avx512-1x1", "avx2"],
)
def test_all_knobs_give_the_same_result(conv: Conv, spec: DeviceSpec) -> None:
    """A tile, an order and a place of the padding that are offered for tuning are right."""
    found = knobs_of(conv, spec)
    kinds: dict[tuple[object, ...], list[Knobs]] = {}
    for knobs in found:
        kinds.setdefault((knobs.order, knobs.padding, knobs.flat), []).append(knobs)
    assert len(kinds) == 3 + conv.kernel.count(1) // 2, "orders, paddings or flat are missing"
    lanes = spec.lanes()
    random = np.random.default_rng(0)
    depth, blocks = filled(conv.channels, lanes) // lanes, filled(conv.filters, lanes) // lanes
    image = random.normal(size=(conv.batch, depth, *conv.image, lanes)).astype("float32")
    weights = random.normal(size=(conv.filters, depth * lanes, *conv.kernel)).astype("float32")
    shape = (conv.batch, blocks, *conv.output_size(), lanes)
    plain = image.transpose(0, 1, 4, 2, 3).reshape(conv.batch, -1, *conv.image)
    expected = convolve(plain, weights, conv).reshape(conv.batch, blocks, lanes, *shape[2:4])
    expected = expected.transpose(0, 1, 3, 4, 2)
    for own in kinds.values():
        for knobs in random.choice(np.array(own, dtype=object), 2 * SWEEP):
            done = schedule(kernel_of(conv, lanes, knobs_as_text(knobs)), spec)
            assert done.rule == "conv2d_blocked"
            assert not scalar_lanes(done.func), knobs
            arrays = image, pack_filters(weights, lanes, lanes), np.zeros(shape, "float32")
            assert_close(call(done.func, *arrays), expected, knobs_as_text(knobs))


def convolve(image: np.ndarray, weights: np.ndarray, conv: Conv) -> np.ndarray:
    """A dense convolution of stride and dilation one in float64."""
    top, left, bottom, right = conv.pads
    padded = np.pad(image.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, conv.kernel, axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weights.astype("float64"), optimize=True)
