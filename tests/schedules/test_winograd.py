"""Winograd convolution: its transforms, its kernels and when it is chosen."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from tests.marks import dealt
from tests.schedules.blocked_harness import (
    EPILOGUES,
    SPECS,
    Choose,
    Conv,
    check,
    check_convs,
    compile_as,
    direct,
)
from tests.schedules.harness import Graph, sweep
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.algorithm import choose_config, product_tile
from tvm_edge.schedules.cpu.blocked_knobs import best_knobs, candidates
from tvm_edge.schedules.knobs import knobs_as_text
from tvm_edge.schedules.winograd import (
    transform_filters,
    transform_filters_by_channel,
    transforms,
    winograd_applies,
)

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")


def tiles_of(m: int) -> Choose:
    """Winograd's algorithm with tiles of ``m x m`` wherever it applies."""

    def choose(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
        config = choose_config(workload, spec)
        applies = config.algorithm != "plain" and winograd_applies(workload)
        return replace(config, algorithm="winograd", m=m) if applies else config

    return choose


# -------------------------------------------------------------------------------- transforms


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    """The rational numbers that floats stand for; their denominators are small."""
    return [[Fraction(float(x)).limit_denominator(10**4) for x in row] for row in matrix]


@pytest.mark.parametrize("m", [2, 4])
def test_transforms_are_an_identity_of_polynomials(m: int) -> None:
    """``A.T @ ((G @ g) * (B.T @ d))`` is the sliding product of any three taps, without error."""
    rational = [exact(matrix) for matrix in transforms(m)]
    for fractions, floats in zip(rational, transforms(m), strict=True):
        np.testing.assert_allclose(np.array(fractions, "float64"), floats, rtol=1e-15)
    g, b, a = rational
    for i in range(m):
        for tap in range(3):
            for j in range(m + 2):  # the product of taps[tap] and inputs[j] in output i
                weight = sum(a[p][i] * g[p][tap] * b[j][p] for p in range(m + 2))
                assert weight == int(j == i + tap)


@pytest.mark.parametrize("filters, channels", [(5, 9), (8, 128), (21, 300)])
@pytest.mark.parametrize("m", [2, 4])
def test_filters_are_transformed_in_float64(m: int, filters: int, channels: int) -> None:
    """Rounded once, the nearest float32; filled up with zero channels and the last filter."""
    weights = np.random.default_rng(0).normal(size=(filters, channels, 3, 3)).astype("float32")
    g = transforms(m)[0]
    packed = transform_filters(weights, m, 8)
    blocks, depth = -(-filters // 8), -(-channels // 8)
    assert packed.shape == ((m + 2) ** 2, blocks, depth, 8, 8) and packed.dtype == np.float32
    plain = packed.transpose(0, 1, 4, 2, 3).reshape(m + 2, m + 2, 8 * blocks, 8 * depth)
    exactly = np.einsum("ai,ocij,bj->aboc", g, weights.astype("float64"), g)
    np.testing.assert_allclose(plain[:, :, :filters, :channels], exactly, rtol=6e-8, atol=1e-12)
    assert (plain[:, :, filters:] == plain[:, :, filters - 1 : filters]).all()
    assert not plain[:, :, :, channels:].any()
    by_channel = transform_filters_by_channel(weights, m).reshape(m + 2, m + 2, channels, filters)
    assert (by_channel.transpose(0, 1, 3, 2) == plain[:, :, :filters, :channels]).all()


# ----------------------------------------------------------------------------------- kernels


def check_tiles(convs: list[Conv], spec: DeviceSpec, m: int) -> None:
    compiled = check_convs(convs, spec, tiles_of(m))
    for i, conv in enumerate(convs):
        if conv.rule(spec.lanes()):
            assert compiled.rules_of(f"conv{i}") == {"winograd"}, conv


convolutions = st.builds(
    Conv,
    batch=st.integers(1, 3),
    channels=st.sampled_from([8, 16, 24, 33, 48, 64]),
    filters=st.sampled_from([16, 24, 40, 48, 64]),
    image=st.tuples(st.integers(1, 15), st.one_of(st.integers(1, 20), st.sampled_from([30, 55]))),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    epilogue=st.sampled_from(EPILOGUES),
).filter(Conv.is_valid)


@given(
    st.lists(convolutions, min_size=5, max_size=5), st.sampled_from(SPECS), st.sampled_from([2, 4])
)
@sweep(2)
def test_any_convolution_agrees_with_onnxruntime(
    convs: list[Conv], spec: DeviceSpec, m: int
) -> None:
    check_tiles(convs, spec, m)


AWKWARD = [
    Conv(channels=16, filters=24, image=(7, 13), epilogue="silu"),
    Conv(channels=24, filters=40, image=(14, 14), pads=(0,) * 4, epilogue="clip", batch=2),
    Conv(channels=33, filters=16, image=(9, 6), pads=(0, 1, 1, 0), epilogue="bias"),
    Conv(channels=16, filters=16, image=(3, 3), pads=(0,) * 4, epilogue="none"),  # one output
    Conv(channels=16, filters=48, image=(1, 55), pads=(2, 2, 2, 2), epilogue="residual"),
    Conv(channels=48, filters=16, image=(12, 1), epilogue="plane", batch=3),
    Conv(channels=16, filters=16, image=(8, 16), epilogue="constant"),
]


@pytest.mark.parametrize(
    ("spec_and_m", "convs"),
    dealt(
        {f"{spec.name}-{m}": (spec, m) for spec, m in zip(SPECS, (4, 2, 4), strict=True)}, AWKWARD
    ),
)
def test_outputs_that_are_no_multiple_of_tiles(
    spec_and_m: tuple[DeviceSpec, int], convs: list[Conv]
) -> None:
    spec, m = spec_and_m
    assert all(conv.rule(spec.lanes()) for conv in convs), "one of them has no blocks"
    check_tiles(convs, spec, m)


# Whole tiles: three blocks of channels in and two out, tiles that cut a line into 7 and 4, images
# beside each other, no padding.
FUSED = [
    Conv(channels=48, filters=32, image=(16, 28), epilogue="residual"),
    Conv(channels=16, filters=48, image=(8, 16), epilogue="silu", batch=2),
    Conv(channels=33, filters=24, image=(14, 22), pads=(0, 0, 0, 0), epilogue="plane"),
    Conv(channels=24, filters=16, image=(12, 36), epilogue="constant"),
]


def fused(m: int) -> Choose:
    """The first candidate with fused stages, of tiles of ``m x m``."""

    def choose(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
        block = tiles_of(m)(workload, spec).block
        found = (
            knobs
            for knobs in candidates(product_tile(workload, block, m), spec)
            if knobs.order == "fused"
        )
        return ConvConfig("winograd", block, m, knobs_as_text(next(found)))

    return choose


@pytest.mark.parametrize(
    ("spec_and_m", "convs"),
    dealt({f"{spec.name}-{m}": (spec, m) for spec, m in zip(SPECS, (2, 4, 2), strict=True)}, FUSED),
)
def test_fused_stages(spec_and_m: tuple[DeviceSpec, int], convs: list[Conv]) -> None:
    spec, m = spec_and_m
    compiled = check_convs(convs, spec, fused(m))
    found = [kernel for kernel in compiled.kernels.values() if kernel.scheduled.rule == "winograd"]
    assert len(found) == len(convs)
    for kernel in found:
        loops = nodes_in(kernel.scheduled.func.body, tirx.For)
        tasks = [loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
        assert len(tasks) == 1, "stages that cores share out one after another"


def test_stages_are_fused_where_filters_are_small_beside_images() -> None:
    spec = replace(SPECS[0], cores=4, l3_cache=32 << 20)
    orders = []
    for channels, size in ((64, 224), (128, 112), (512, 28), (512, 14)):
        sizes = 1, channels, size, size, channels
        workload = ConvWorkload(*sizes, (3, 3), (1, 1), (1,) * 4, (1, 1), 1)
        orders.append(best_knobs(product_tile(workload, 16, 4 if size > 14 else 2), spec).order)
    assert orders[:2] == ["fused"] * 2 and "fused" not in orders[2:]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    "choose", [tiles_of(2), tiles_of(4), direct], ids=["F(2, 3)", "F(4, 3)", "direct"]
)
@pytest.mark.parametrize("size", [(16, 20), (15, 6)], ids=str)
def test_gates_read_the_results_of_several_convolutions(
    choose: Choose, size: tuple[int, int]
) -> None:
    """An epilogue of several blocks, as functions that are used twice are not inlined.

    ``z * q + (1 - z) * h`` of a GRU, with a second function that is used twice after it.
    """
    graph = Graph()
    data = graph.input(1, 32, *size)
    gate, new, old = (
        Conv(channels=32, filters=48, image=size, epilogue=epilogue).build(graph, name, data)
        for name, epilogue in (("gate", "sigmoid"), ("new", "bias"), ("old", "bias"))
    )
    rest = graph.op("Mul", graph.op("Sub", graph.constant(1.0), gate), old)
    state = graph.op("Tanh", graph.op("Add", graph.op("Mul", gate, new), rest))
    graph.output(graph.op("Mul", state, graph.op("Sub", state, gate)))
    compiled = check(graph, SPECS[0], choose)
    rule = "conv2d_blocked" if choose is direct else "winograd"
    assert rule in {kernel.rule for kernel in compiled.report.kernels}


@pytest.mark.parametrize(("m", "most"), [(2, 2e-6), (4, 5e-6)])
def test_error_of_a_deep_layer(m: int, most: float) -> None:
    """Error relative to the largest value in float64: 6e-7 and 2e-6 to 3e-6 for 256 channels.

    With the customary points of F(4, 3) it is 7e-6 to 1.3e-5.
    """
    graph = Graph()
    graph.output(Conv(channels=256, filters=32, image=(18, 18), epilogue="none").build(graph))
    model = graph.model()
    (name,) = graph.values
    (weights,) = (onnx.numpy_helper.to_array(t) for t in model.graph.initializer)
    compiled = compile_as(model, SPECS[0], tiles_of(m))
    assert compiled.rules_of("conv") == {"winograd"}
    (actual,) = compiled.model.run(graph.values).values()
    padded = np.pad(graph.values[name].astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weights.astype("float64"), optimize=True)
    assert np.abs(actual - expected).max() <= most * np.abs(expected).max()


# -------------------------------------------------------------------------------- the choice

LAYER = ConvWorkload(
    batch=1,
    channels=64,
    height=56,
    width=56,
    filters=64,
    kernel=(3, 3),
    strides=(1, 1),
    padding=(1, 1, 1, 1),
    dilation=(1, 1),
    groups=1,
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_large_images_are_worth_winograd(spec: DeviceSpec) -> None:
    config = choose_config(LAYER, spec)
    assert (config.algorithm, config.m) == ("winograd", 4)


@pytest.mark.parametrize(
    "other",
    [
        # Reading 36 transformed filters for 9 costs more than the products of 7x7 pixels.
        {"height": 7, "width": 7, "channels": 512, "filters": 512},
        {"strides": (2, 2)},
        {"strides": (1, 2)},
        {"groups": 4},
        {"groups": 64},
        {"dilation": (2, 2)},
        {"kernel": (1, 1), "padding": (0, 0, 0, 0)},
        {"kernel": (5, 5), "padding": (2, 2, 2, 2)},
        {"kernel": (1, 3), "padding": (0, 1, 0, 1)},
        {"channels": 3},
    ],
    ids=str,
)
def test_other_convolutions_are_direct(other: dict[str, int]) -> None:
    config = choose_config(replace(LAYER, **other), SPECS[0])
    assert (config.algorithm, config.m) == ("direct", 0)
