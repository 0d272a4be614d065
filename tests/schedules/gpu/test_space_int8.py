"""Configurations of int8 convolutions on GPUs without tensor cores, and their kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
import tvm_ffi
from tvm import te

from tests.marks import sampled
from tests.schedules.gpu.harness import MALI, ORIN, TINY, launches, local_bytes
from tests.tuning.made import conv
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import Scheduled
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu import schedule, space_int8
from tvm_edge.schedules.gpu.algorithm import choose_config, config_space
from tvm_edge.schedules.gpu.conv2d_int8 import conv2d_int8, int8_tensors
from tvm_edge.schedules.gpu.items import ITEMS, Items
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.gpu.product_tile import fits
from tvm_edge.schedules.knobs import CONFIG, read_knobs

BYTES = {"dtype": "int8"}
PIXELS = {"kernel": (1, 1), "padding": (0,) * 4, **BYTES}
WORKLOADS = {
    "dense": conv(channels=40, filters=24, width=13, **BYTES),
    "first layer": conv(channels=3, strides=(2, 1), padding=(0, 1, 2, 1), **BYTES),
    "pixels of 3 images": conv(batch=3, **PIXELS),
    "groups": conv(channels=64, filters=32, groups=2, **BYTES),
    "groups of 3 channels": conv(channels=6, filters=32, groups=2, **BYTES),
    "depthwise": conv(channels=40, filters=40, groups=40, kernel=(3, 5), **BYTES),
    "depthwise, strided": conv(groups=16, strides=(2, 2), **BYTES),
    "few pixels": conv(channels=512, filters=64, height=4, width=4, **BYTES),
    "a matrix": conv(channels=470, height=1, width=9, filters=48, **PIXELS),
}
FEW = conv(channels=470, height=1, width=1, filters=48, **PIXELS)
PASCAL = replace(ORIN, tensor_cores=None)
LARGE = replace(PASCAL, cores=132)
SPECS = {"mali": MALI, "pascal": PASCAL, "large": LARGE, "tiny": TINY}
EVERY = [(spec, name) for spec in SPECS for name in WORKLOADS]


def space(workload: ConvWorkload, spec: DeviceSpec) -> tuple[ConvConfig, ...]:
    return config_space(workload, spec, blocks=True).configs


def kernel(
    workload: ConvWorkload, spec: DeviceSpec, knobs: tuple[str, str] | None = None
) -> Scheduled:
    """A convolution whose sums become bytes."""
    image, filters, _ = int8_tensors(workload)
    sums = conv2d_int8(image, filters, workload, 3, knobs)
    result = te.compute(sums.shape, lambda *i: (sums(*i) >> 8).astype("int8"), "result")
    return schedule(te.create_prim_func([image, filters, result], "int64"), spec)


def configured(workload: ConvWorkload, spec: DeviceSpec, config: ConvConfig) -> Scheduled:
    key = ITEMS if config.algorithm == "items" else CONFIG
    return kernel(workload, spec, (key, config.knobs))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("spec", "name"), sampled(EVERY, 5))
def test_the_first_is_what_the_schedule_chooses(spec: str, name: str) -> None:
    workload, device = WORKLOADS[name], SPECS[spec]
    first = space(workload, device)[0]
    assert first.knobs
    given, chosen = (
        made.func for made in (configured(workload, device, first), kernel(workload, device))
    )
    tvm.ir.assert_structural_equal(given, chosen)
    assert choose_config(workload, device) == replace(first, knobs="")


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("spec", "name"), sampled(EVERY, 5))
def test_others_are_other_kernels_of_what_they_say(spec: str, name: str) -> None:
    workload, device = WORKLOADS[name], SPECS[spec]
    configs = space(workload, device)
    first = configured(workload, device, configs[0]).func
    for config in (configs[-1], configs[len(configs) // 3]):
        made = configured(workload, device, config)
        assert not tvm_ffi.structural_equal(made.func, first), config
        found = launches(made.func)
        if config.algorithm == "items":
            assert made.rule.startswith("direct")
            assert found[-1].items == read_knobs(Items, config.knobs).group.items
        else:
            tile = read_knobs(Tile, config.knobs)
            assert made.rule.startswith("tiled") and found[0].items == tile.items
            assert len(found) == 1 + (tile.parts > 1)
            assert local_bytes(made.func) == tile.local_bytes <= device.local_memory


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("spec", SPECS)
def test_all_are_legal_named_and_the_same_each_time(spec: str) -> None:
    device = SPECS[spec]
    for name, workload in WORKLOADS.items():
        configs = space(workload, device)
        assert len(set(configs)) == len(configs) >= 40, name
        assert not any(config.block or config.m for config in configs)
        (algorithm,) = {config.algorithm for config in configs}
        by_items = workload.depthwise or device.local_memory_kind != "dedicated"
        assert algorithm == ("items" if by_items else "direct"), name
        for config in configs:
            if by_items:
                group = read_knobs(Items, config.knobs).group
                assert group.items <= device.max_work_group_size, config
            else:
                assert fits(read_knobs(Tile, config.knobs), device), config
        space_int8._configs.cache_clear()
        assert space(workload, device) == configs


def test_words_have_steps_of_four_of_them() -> None:
    """Which are sixteen channels: half of the smallest step of numbers that stand alone."""
    depths = {
        name: {read_knobs(Tile, c.knobs).depth for c in space(WORKLOADS[name], LARGE)}
        for name in ("pixels of 3 images", "a matrix", "groups of 3 channels")
    }
    assert depths["pixels of 3 images"] == depths["a matrix"] == {4, 8, 16}
    assert depths["groups of 3 channels"] == {9}, "byte by byte, a window at once"
    parts = {read_knobs(Tile, c.knobs).parts for c in space(WORKLOADS["few pixels"], LARGE)}
    assert {1, 2, 4, 8} <= parts


@pytest.mark.parametrize("spec", [MALI, PASCAL], ids=["mali", "pascal"])
def test_what_no_rule_has_knobs_for_is_plain(spec: DeviceSpec) -> None:
    """Sums of few results are shared out by the rule for reductions."""
    assert space(FEW, spec) == (ConvConfig("plain"),) == (choose_config(FEW, spec),)
    assert kernel(FEW, spec).rule.startswith("reduce")


def test_knobs_of_another_convolution_or_device_are_not_taken() -> None:
    workload = WORKLOADS["dense"]
    wide = Tile(128, 128, 8, 8, 9)
    small = replace(LARGE, local_memory=8192)
    assert fits(wide, LARGE) and not fits(wide, small)
    text = "rows=128 columns=128 item_rows=8 item_columns=8 depth=9 parts=1 wave=1"
    made = kernel(workload, small, (CONFIG, text))
    tvm.ir.assert_structural_equal(made.func, kernel(workload, small).func)
    depthwise = WORKLOADS["depthwise"]
    text = "channels=4 lines=1 columns=4 x=4 y=6 z=3"
    made = kernel(depthwise, LARGE, (ITEMS, text))
    tvm.ir.assert_structural_equal(made.func, kernel(depthwise, LARGE).func)
