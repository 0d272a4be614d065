"""Tiles and work-groups of convolutions without local memory: each is right, legal and taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from tests.compiler import steps
from tests.compiler.steps import fuse_kernels, legalized
from tests.marks import in_full, needs_opencl
from tests.schedules.gpu.harness import MALI, ORIN, TINY, launches
from tests.tuning.made import conv
from tvm_edge.frontend import load_model
from tvm_edge.hardware import DeviceSpec, ResolvedTarget, resolve_target
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.runtime.candidates import Operands, relative_error
from tvm_edge.schedules.base import Scheduled
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu import algorithm, schedule
from tvm_edge.schedules.gpu.algorithm import choose_config, config_space
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.items import Items, items_apply
from tvm_edge.schedules.gpu.packed import can_pack, conv2d_tensors, pack_channels
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.tuning.conv_problem import TOLERANCE, make_problem
from tvm_edge.tuning.repeat_convolution import repeat_convolution

CONVOLUTIONS = {
    "3x3": conv(height=9, width=14, filters=24),
    "1x1": conv(kernel=(1, 1), padding=(0,) * 4, filters=32),
    "7x7 image": conv(height=7, width=7, filters=20),
    "odd columns, 10 of 4 channels": conv(channels=5, height=9, width=13, filters=10),
    "strided": conv(height=13, width=15, strides=(2, 2)),
    "dilated": conv(kernel=(3, 2), dilation=(2, 3), padding=(2, 0, 1, 3)),
    "grouped": conv(groups=2, filters=24),
    "odd groups": conv(channels=9, filters=15, groups=3, batch=2),
    "narrow": conv(height=40, width=3, filters=8),
}
DEPTHWISE = {
    "3x3": conv(groups=16, height=17, width=15),
    "7x7 image": conv(groups=16, height=7, width=7),
    "strided": conv(batch=2, groups=16, strides=(2, 2), padding=(0, 0, 1, 1)),
    "5x5 dilated": conv(
        channels=3, filters=3, groups=3, kernel=(5, 5), dilation=(2, 2), padding=(4,) * 4
    ),
}
ALL = {
    **{f"dense {name}": workload for name, workload in CONVOLUTIONS.items()},
    **{f"depthwise {name}": workload for name, workload in DEPTHWISE.items()},
}
# What networks have, and what is at the edge of the rule's.
NETWORKS = [
    conv(channels=3, height=224, width=224, filters=64, kernel=(7, 7), strides=(2, 2)),
    conv(channels=64, height=56, width=56, filters=64),
    conv(channels=512, height=7, width=7, filters=1024, kernel=(1, 1), padding=(0,) * 4),
    conv(channels=32, height=112, width=112, filters=32, groups=32),
    conv(channels=960, height=7, width=7, filters=960, groups=960, kernel=(5, 5)),
    conv(channels=96, height=1, width=1, filters=24, kernel=(1, 1), padding=(0,) * 4),
    conv(channels=16, filters=32, groups=16),
    conv(channels=16, filters=16, groups=16, kernel=(9, 9)),
    conv(channels=4, filters=8, kernel=(9, 9)),
]
SPECS = [MALI, PRESETS["mali-g76"].spec, PRESETS["adreno-640"].spec, ORIN, TINY]


@cache
def space(workload: ConvWorkload, spec: DeviceSpec) -> list[ConvConfig]:
    found = config_space(workload, spec).configs
    return [config for config in found if config.algorithm == "items"]


def knobs(config: ConvConfig) -> Items:
    return read_knobs(Items, config.knobs)


def sample(configs: Sequence[ConvConfig], count: int) -> list[ConvConfig]:
    """Some of other tiles than the rule's, and no two of the same."""
    order = np.random.default_rng(0).permutation(len(configs))
    by_tile = {knobs(configs[i]).tile: configs[i] for i in order}
    del by_tile[knobs(configs[0]).tile]
    return list(by_tile.values())[:count]


def simplified(problem: Operands, workload: ConvWorkload, resolved: ResolvedTarget) -> Any:
    """A model of the convolution, its bias and a ReLU."""
    with resolved.cpu.target:
        return steps.simplified(load_model(repeat_convolution(workload, problem, 1), None).module)


def kernel(
    simple: Any, resolved: ResolvedTarget, configs: dict[ConvWorkload, ConvConfig]
) -> Scheduled:
    """The only kernel of a model that compiles with `configs`."""
    with resolved.target:
        legal = legalized(simple, resolved, "float32", configs)
        fused = fuse_kernels(legal, resolved)
        (func,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
        return schedule(func, resolved.spec)


def mali(spec: DeviceSpec = MALI) -> ResolvedTarget:
    """OpenCL kernels for a Mali, called by this machine."""
    return replace(resolve_target("mali-t860", "llvm"), spec=spec)


def run(kernels: Sequence[Scheduled], problem: Operands, resolved: ResolvedTarget) -> Any:
    """Run each kernel on a problem and yield its output."""
    named = {f"kernel{i}": made.func for i, made in enumerate(kernels)}
    module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in named.items()})
    library, device = tvm.compile(module, target=resolved.target), tvm.opencl(0)
    for name, func in named.items():
        shapes = [tuple(int(dim) for dim in buffer.shape) for buffer in func.params]
        packed = len(shapes[1]) == 5
        given = (
            problem.image,
            pack_channels(problem.filters) if packed else problem.filters,
            problem.bias.reshape(shapes[2]),
        )
        rest = [np.full(shape, np.nan, "float32") for shape in shapes[3:]]
        tensors = [tvm.runtime.tensor(array, device) for array in (*given, *rest)]
        library[name](*tensors)
        yield tensors[3].numpy()


@pytest.mark.diagonals(2)
@needs_opencl
@pytest.mark.parametrize("count", [1, *in_full(16)])
@pytest.mark.parametrize("name", ALL)
def test_results(name: str, count: int) -> None:
    workload, resolved = ALL[name], mali()
    problem = make_problem(workload)
    configs = sample(space(workload, MALI), count)
    simple = simplified(problem, workload, resolved)
    made = [kernel(simple, resolved, {workload: config}) for config in configs]
    assert {one.rule for one in made} == {"direct"}
    for config, one in zip(configs, made, strict=True):
        assert launches(one.func)[-1].items == knobs(config).group.items, config
    for config, result in zip(configs, run(made, problem, resolved), strict=True):
        assert relative_error(result, problem.expected) <= TOLERANCE, config


# ------------------------------------------------------------------------------------- the space


@pytest.mark.diagonals(4)
@pytest.mark.parametrize("spec", [MALI, ORIN], ids=lambda spec: spec.key)
@pytest.mark.parametrize("name", ALL)
def test_the_first_is_what_the_rule_chooses(name: str, spec: DeviceSpec) -> None:
    """Kernels of one structure have the same source."""
    workload, resolved = ALL[name], mali(spec)
    if not items_apply(workload, spec):
        assert not space(workload, spec) and not workload.depthwise
        return
    assert choose_config(workload, spec) == ConvConfig("items")
    first, second, *_ = space(workload, spec)
    assert config_space(workload, spec).configs[0] == first
    simple = simplified(make_problem(workload), workload, resolved)
    chosen = kernel(simple, resolved, {})
    assert chosen.rule == "direct"
    for config, same in ((first, True), (second, False), (ConvConfig("plain"), True)):
        given = kernel(simple, resolved, {workload: config})
        assert tvm_ffi.structural_equal(given.func, chosen.func) == same, config


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_what_has_a_space_is_what_the_rule_takes(spec: DeviceSpec) -> None:
    for workload in [*NETWORKS, *ALL.values()]:
        packed = spec.local_memory_kind != "dedicated" and can_pack(workload)
        func = te.create_prim_func(conv2d_tensors(workload, packed=packed), "int64")
        found = DirectConv.of(func)
        takes = found is not None and found.suits(spec)
        assert items_apply(workload, spec) == takes == bool(space(workload, spec)), workload
        assert ConvConfig("plain") in config_space(workload, spec).configs, "old records have it"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_all_are_within_the_limits(spec: DeviceSpec) -> None:
    sizes = []
    for workload in [*NETWORKS, *ALL.values()]:
        configs = space(workload, spec)
        assert len(set(configs)) == len(configs)
        sizes += [len(configs)] if configs else []
        for items in map(knobs, configs):
            tile, group = items.tile, items.group
            assert group.items <= spec.max_work_group_size and group.z <= 64
            registers = 2 * tile.size + 16
            assert registers <= 128
            if spec.registers and group.items > 1:
                assert group.items * registers <= spec.registers
            lines, columns = workload.output
            assert tile.lines <= lines and tile.columns <= columns
            share = workload.filters // workload.groups
            assert share % tile.channels == 0 or (workload.groups == 1 and can_pack(workload))
    assert min(sizes) >= 50 and max(sizes) <= 2000


def test_a_space_is_the_same_each_time() -> None:
    workload = NETWORKS[1]
    once = config_space(workload, MALI)
    algorithm._items.cache_clear()
    assert config_space(workload, MALI) == once
    assert {"channels", "lines", "columns", "x", "y", "z"} <= set(once.knobs)
    assert all(len(once.knobs[name]) > 1 for name in ("channels", "lines", "columns", "x", "y"))


def test_filters_are_read_within_their_padding() -> None:
    """Work-items read no filter past the 20 packed by four, and stay in their group."""
    channels = {
        name: {knobs(config).channels for config in space(workload, MALI)}
        for name, workload in CONVOLUTIONS.items()
    }
    assert channels["3x3"] == {1, 2, 4, 8}
    assert channels["7x7 image"] == channels["odd columns, 10 of 4 channels"] == {1, 2, 4}
    assert channels["grouped"] == {1, 2, 4} and channels["odd groups"] == {1}


# ----------------------------------------------------------------------- of another device's record


def test_a_tile_goes_on_in_the_groups_of_a_smaller_device() -> None:
    workload = CONVOLUTIONS["3x3"]
    small = replace(MALI, max_work_group_size=8)
    simple = simplified(make_problem(workload), workload, mali())
    given = Items(2, 1, 7, 2, 9, 1)
    own = ConvConfig("items", knobs=knobs_as_text(given))
    made = kernel(simple, mali(small), {workload: own})
    *_, launch = launches(made.func)
    assert launch.items <= 8
    # Two columns of tiles, nine lines, a tile for each two channels.
    assert 2 * 9 * 12 <= launch.items * launch.groups < 2 * 2 * 9 * 12
    assert launches(kernel(simple, mali(), {workload: own}).func)[-1].items == 18


def test_a_measured_tile_goes_before_sub_groups() -> None:
    workload, spec = DEPTHWISE["3x3"], PRESETS["intel-hd505"].spec
    assert choose_config(workload, spec).algorithm == "subgroup"
    config = space(workload, spec)[-1]
    simple = simplified(make_problem(workload), workload, mali(spec))
    made = kernel(simple, mali(spec), {workload: config})
    assert made.rule == "direct"
    assert launches(made.func)[-1].items == knobs(config).group.items


@pytest.mark.parametrize("tile", [(8, 1, 4), (4, 16, 1), (4, 1, 16)])
def test_a_tile_of_another_convolution_is_not_taken(tile: tuple[int, int, int]) -> None:
    workload = CONVOLUTIONS["7x7 image"]
    simple = simplified(make_problem(workload), workload, mali())
    own = ConvConfig("items", knobs=knobs_as_text(Items(*tile, 2, 2, 2)))
    chosen, made = (kernel(simple, mali(), configs) for configs in ({}, {workload: own}))
    assert made.rule == "direct" and tvm_ffi.structural_equal(made.func, chosen.func)
