"""Tiles and work-groups of convolutions without local memory: each is right, legal and taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.schedules.gpu.harness import MALI, ORIN, TINY, launches
from tests.tuning.made import conv
from tvm_edge.compiler import phases
from tvm_edge.frontend import load_model
from tvm_edge.hardware import DeviceSpec, ResolvedTarget, resolve_target
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.runtime.candidates import Operands, relative_error
from tvm_edge.schedules.base import Scheduled, workspace_of
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.gpu.algorithm import choose_config, config_space
from tvm_edge.schedules.gpu.direct import DirectConv
from tvm_edge.schedules.gpu.items import Items, items_apply
from tvm_edge.schedules.gpu.packed import pack_channels
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.tuning.candidates import repeated_convolution
from tvm_edge.tuning.problem import TOLERANCE, make_problem

needs_opencl = pytest.mark.skipif(not tvm.device("opencl", 0).exist, reason="no OpenCL device")

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
ALL = {f"{kind} {name}": own for kind, of in (("dense", CONVOLUTIONS), ("depthwise", DEPTHWISE))
       for name, own in of.items()}  # fmt: skip


@cache
def space(workload: ConvWorkload, spec: DeviceSpec) -> list[ConvConfig]:
    found = config_space(workload, spec).configs
    return [config for config in found if config.algorithm == "items"]


def knobs(config: ConvConfig) -> Items:
    return read_knobs(Items, config.knobs)


def sample(configs: Sequence[ConvConfig], count: int) -> list[ConvConfig]:
    """The first, and others: all tiles have the same chance, and no two have the same."""
    order = np.random.default_rng(0).permutation(len(configs))
    by_tile = {knobs(configs[i]).tile: configs[i] for i in order}
    by_tile[knobs(configs[0]).tile] = configs[0]
    others = [config for config in by_tile.values() if config != configs[0]]
    return [configs[0], *others[: count - 1]]


def simplified(problem: Operands, workload: ConvWorkload, resolved: ResolvedTarget) -> Any:
    """A model of the convolution, its bias and a ReLU."""
    with resolved.cpu.target:
        return phases.SIMPLIFY(load_model(repeated_convolution(workload, problem, 1), None).module)


def kernel(
    simple: Any, resolved: ResolvedTarget, configs: dict[ConvWorkload, ConvConfig]
) -> Scheduled:
    """The only kernel of a model that compiles with `configs`."""
    with resolved.target:
        legal = phases.legalize(resolved, "float32", configs)(simple)
        fused = phases.FUSE(phases.GROUP(legal))
        (func,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
        return schedule(func, resolved.spec)


def mali(spec: DeviceSpec = MALI) -> ResolvedTarget:
    """OpenCL kernels for a Mali, called by this machine."""
    return replace(resolve_target("mali-t860", "llvm"), spec=spec)


def run(kernels: Sequence[Scheduled], problem: Operands, resolved: ResolvedTarget) -> Any:
    """What each kernel makes of a problem."""
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


@needs_opencl
@pytest.mark.parametrize("name", ALL)
def test_results(name: str) -> None:
    workload, resolved = ALL[name], mali()
    problem = make_problem(workload)
    configs = sample(space(workload, MALI), 6)
    simple = simplified(problem, workload, resolved)
    made = [kernel(simple, resolved, {workload: config}) for config in configs]
    assert {one.rule for one in made} == {"direct"}
    for config, one in zip(configs, made, strict=True):
        assert launches(one.func)[-1].items == knobs(config).group.items, config
    for config, result in zip(configs, run(made, problem, resolved), strict=True):
        assert relative_error(result, problem.expected) <= TOLERANCE, config
