"""Properties of every GPU rule, without a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
import tvm_ffi

from tests.schedules.gpu.harness import (
    MALI,
    ORIN,
    SPECS,
    assert_legal,
    gpu_functions,
    gpu_kernels,
    launches,
)
from tests.schedules.graphs import network
from tests.schedules.harness import Graph, Kernel
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.schedules.gpu import RULES, schedule
from tvm_edge.schedules.gpu.tile import choose_tile
from tvm_edge.schedules.workgroup import group_size


@pytest.fixture(scope="module")
def functions() -> tvm.IRModule:
    return gpu_functions(network().model())


def scheduled(functions: tvm.IRModule, spec: DeviceSpec) -> list[Kernel]:
    return [
        Kernel(gvar.name_hint, func, schedule(func, spec))
        for gvar, func in functions.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc)
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_every_launch_has_a_legal_grid(functions: tvm.IRModule, spec: DeviceSpec) -> None:
    kernels = scheduled(functions, spec)
    assert len(kernels) > 8
    for kernel in kernels:
        assert_legal(kernel, spec)
    assert {k.scheduled.rule for k in kernels} >= {"direct", "pool", "reduce"}
    tiled = any(k.scheduled.rule == "tiled" for k in kernels)
    assert tiled == (spec.local_memory_kind == "dedicated")
    assert all(k.scheduled.origin == "heuristic" for k in kernels)


@pytest.mark.parametrize("target", ["mali-t860", "intel-hd505"])
def test_indices_are_32_bits_wide(functions: tvm.IRModule, target: str) -> None:
    resolved = resolve_target(target)
    for kernel in scheduled(functions, resolved.spec):
        main = kernel.scheduled.func.with_attr("global_symbol", "main")
        source = tvm.compile(main, target=resolved.target).mod.imports[0].inspect_source()
        assert "__kernel" in source
        assert "long" not in source, kernel.name


def test_a_large_convolution_fills_the_device() -> None:
    """No convolution runs in a single group, nor a work-item computes an image."""
    graph = Graph()
    graph.output(
        graph.op("Conv", graph.input(1, 64, 56, 56), graph.input(64, 64, 3, 3), pads=[1] * 4)
    )
    for spec in (MALI, ORIN):
        (kernel,) = gpu_kernels(graph.model(), spec)
        launch = launches(kernel.scheduled.func)[-1]  # behind the one that pads
        assert launch.items >= 32
        assert launch.groups * launch.items >= 384 * spec.cores
        assert launch.groups >= 4 * spec.cores
        # A tile: data is loaded once for eight channels.
        assert launch.groups * launch.items <= 64 * 56 * 56 // 8


def test_a_classifier_fills_the_device() -> None:
    """A thousand sums of thousands of terms: groups are as wide as it takes."""
    graph = Graph()
    graph.output(graph.op("MatMul", graph.input(1, 4096), graph.input(4096, 1000)))
    for cores, items in ((2, 128), (132, 1024)):
        spec = replace(ORIN, cores=cores, max_work_group_size=1024)
        (kernel,) = gpu_kernels(graph.model(), spec)
        (launch,) = launches(kernel.scheduled.func)
        assert kernel.scheduled.rule == "reduce"
        assert launch.items == items


def test_a_device_with_more_cores_gets_smaller_tiles() -> None:
    small, large = (choose_tile(spec, outer=1, channels=256, columns=196) for spec in (MALI, ORIN))
    assert small.channels * small.columns > large.channels * large.columns


@pytest.mark.parametrize("columns", [1, 2, 13, 49, 121, 196, 361, 841, 7919, 12544])
@pytest.mark.parametrize("channels", [1, 3, 16, 91, 512])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_tiles_fit(spec: DeviceSpec, channels: int, columns: int) -> None:
    tile = choose_tile(spec, outer=1, channels=channels, columns=columns)
    assert tile.group_channels * tile.group_columns <= spec.max_work_group_size
    assert channels % (tile.channels * tile.group_channels) == 0
    assert columns % tile.columns == 0
    assert tile.group_columns <= columns


def test_groups_of_one_axis_follow_the_rules() -> None:
    assert group_size(1000, MALI) == 128  # whole lines, and 24 items that have nothing to do
    assert group_size(49, MALI) == 16  # a group for each of four cores
    assert group_size(2 * 7919, MALI) == 128
    assert group_size(5040, MALI) == 128  # not its divisor 16: to begin a group costs as much
    assert group_size(None, MALI) == 128


def test_schedules_are_the_same_every_time(functions: tvm.IRModule) -> None:
    first, second = scheduled(functions, MALI), scheduled(functions, MALI)
    for a, b in zip(first, second, strict=True):
        assert tvm_ffi.structural_equal(a.scheduled.func, b.scheduled.func), a.name


def test_rule_names_are_unique_and_the_last_is_the_fallback() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert [rule.origin for rule in RULES[:-1]] == ["heuristic"] * (len(RULES) - 1)
    assert RULES[-1].origin == "fallback"
