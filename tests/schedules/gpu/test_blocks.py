"""Convolutions of images in blocks of channels on GPUs, against ONNX Runtime."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.steps import lowered as lowered_model
from tests.marks import in_full, needs_opencl
from tests.schedules.blocked_harness import Conv
from tests.schedules.gpu.blocks import (
    any_of,
    check_blocks,
    check_plan,
    configs_of,
    free,
    plan_in_blocks,
)
from tests.schedules.gpu.harness import MALI, ORIN
from tests.schedules.harness import Graph
from tests.tuning.layout_networks import network
from tests.tuning.made import conv
from tvm_edge.compiler import compilation, driver
from tvm_edge.compiler.build import build
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.report import layout_name
from tvm_edge.schedules.conv_records import config_space
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.knobs import read_knobs
from tvm_edge.schedules.layouts import image_block
from tvm_edge.tuning.tunable import layout_graph_of

DENSE = {
    "pointwise": Conv(channels=24, filters=40, kernel=(1, 1), pads=(0,) * 4, image=(9, 14)),
    "3x3": Conv(channels=16, filters=24, image=(11, 7), epilogue="residual"),
    "stride": Conv(channels=8, filters=16, image=(17, 23), strides=(2, 2), epilogue="silu"),
    "stem": Conv(
        channels=3, filters=16, image=(21, 19), kernel=(7, 7), pads=(3,) * 4, epilogue="bias"
    ),
    "dilated": Conv(
        channels=16, filters=8, image=(15, 14), dilations=(2, 3), pads=(2, 0, 1, 3), epilogue="clip"
    ),
    "filled": Conv(channels=14, filters=19, image=(6, 6), batch=2, kernel=(2, 3), epilogue="plane"),
    "5x5": Conv(channels=8, filters=12, image=(9, 9), kernel=(5, 5), pads=(2,) * 4),
}
DEPTHWISE = {
    "window": Conv(channels=24, filters=24, groups=24, image=(14, 13), epilogue="clip"),
    "window stride": Conv(
        channels=20, filters=20, groups=20, image=(9, 17), strides=(2, 2), batch=2
    ),
    "window 5x5": Conv(
        channels=16, filters=16, groups=16, image=(7, 8), kernel=(5, 5), pads=(2, 1, 2, 3)
    ),
    "window filled": Conv(channels=11, filters=11, groups=11, image=(5, 9), epilogue="residual"),
}
ALL = DENSE | DEPTHWISE
FEW = {
    4: {name: ALL[name] for name in ("3x3", "window")},
    8: {name: ALL[name] for name in ("filled", "window stride")},
}
"""Cases of ``make test``, by the size of blocks."""


def beside_each_other(convs: dict[str, Conv]) -> Graph:
    graph = Graph()
    for name, each in convs.items():
        graph.output(each.build(graph, name))
    return graph


def workload_of(each: Conv) -> ConvWorkload:
    return conv(
        batch=each.batch,
        channels=each.channels,
        height=each.image[0],
        width=each.image[1],
        filters=each.filters,
        kernel=each.kernel,
        strides=each.strides,
        padding=each.pads,
        dilation=each.dilations,
        groups=each.groups,
    )


def check_all(convs: dict[str, Conv], block: int, dense: str, **options: Any) -> None:
    """Those that have a kernel for such blocks; dense ones by one rule, depthwise ones by items."""
    workloads = {name: workload_of(each) for name, each in convs.items()}
    having = {
        n: convs[n] for n, workload in workloads.items() if image_block(workload, block, ORIN)
    }
    assert having
    report = check_blocks(beside_each_other(having), block, **options).report
    for name in having:
        taken = {k.rule for k in report.kernels if name in k.operators} - {"elementwise"}
        assert taken == {"item_blocks" if workloads[name].depthwise else dense}, name
        assert report.layouts[name] == layout_name(block)


def cases(block: int) -> list[Any]:
    """Few convolutions in blocks of one size; in the full set all of them, in both sizes."""
    other = 12 - block
    return [(FEW[block], block), *in_full((FEW[other], other), (ALL, 4), (ALL, 8))]


@needs_opencl
@pytest.mark.parametrize(("convs", "block"), cases(4), ids=("few4", "few8", "all4", "all8"))
def test_through_local_memory(convs: dict[str, Conv], block: int, large_gpu: None) -> None:
    check_all(convs, block, "tiled_blocks")


@needs_opencl
@pytest.mark.parametrize(("convs", "block"), cases(8), ids=("few8", "few4", "all4", "all8"))
def test_without_local_memory(convs: dict[str, Conv], block: int, small_gpu: None) -> None:
    check_all(convs, block, "item_blocks")


@needs_opencl
@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_any_configuration(seed: int, large_gpu: None) -> None:
    check_all(ALL, (4, 8)[seed % 2], "tiled_blocks", pick=any_of(seed))


@needs_opencl
@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_any_configuration_without_local_memory(seed: int, small_gpu: None) -> None:
    check_all(ALL, (4, 8)[seed % 2], "item_blocks", pick=any_of(seed))


@needs_opencl
def test_sums_in_parts(large_gpu: None) -> None:
    """The kernel that adds the partial sums stores four channels at once, too."""

    def pick(configs: list[Any]) -> Any:
        return next(c for c in configs if read_knobs(Tile, c.knobs).parts == 4)

    convs = {"conv": Conv(channels=40, filters=20, image=(7, 9), batch=2)}
    compiled = check_blocks(beside_each_other(convs), 4, pick)
    assert compiled.report.layouts["conv"] == "NCHW4c"
    memory = compiled.report.memory
    assert memory is not None and memory.activations >= 4 * 2 * 20 * 7 * 9 * 4


@needs_opencl
@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("split", [False, True])
def test_layouts_of_a_network(seed: int, split: bool, large_gpu: None) -> None:
    """Mixed at random: with pools, sums, concatenations, a gate; moved channels are in NCHW."""
    graph = network(split=split)
    model, resolved = graph.model(), compilation.resolve_target("opencl")
    found, _ = layout_graph_of(model, resolved)
    assert not found.gathers
    random = np.random.default_rng(seed)
    costs = tuple(tuple(random.random(len(node.layouts)) * 4) for node in found.nodes)
    layouts = replace(free(found, resolved), seconds=costs).solve().layouts
    assert len({layouts[i] for i in found.convolutions}) > 1, "layouts are mixed"
    plan = LayoutPlan(found.digest, layouts, configs_of(found, layouts, resolved))
    report = check_plan(graph, plan).report
    shown = [report.layouts.get(n.name, "NCHW") for n in model.graph.node if n.op_type == "Conv"]
    expected = [layout_name(layouts[i]) for i in found.convolutions]
    assert sorted(each.partition(",")[0] for each in shown) == sorted(expected)


@pytest.mark.parametrize(
    ("spec", "name"), [(MALI, "window"), (ORIN, "stride")], ids=("mali", "orin")
)
def test_three_layouts_for_each_convolution(spec: Any, name: str) -> None:
    space = config_space(workload_of(ALL[name]), spec, blocks=True)
    assert {config.block for config in space.configs} == {0, 4, 8}
    assert space.configs[0].block == 0, "the heuristic's choice stays NCHW"
    grouped = conv(channels=16, filters=16, groups=4)
    assert {config.block for config in config_space(grouped, spec, blocks=True).configs} == {0}


@pytest.mark.full
def test_smaller_work_groups_read_the_same_weights() -> None:
    """A driver refuses a kernel: the plan of layouts is kept, its tiles are not."""
    graph = beside_each_other({"window": ALL["window"], "pointwise": ALL["pointwise"]})
    model, resolved = graph.model(), resolve_target("adreno-630")
    plan = plan_in_blocks(model, 4, resolved, lambda configs: configs[-1])
    made = lowered_model(model, "adreno-630", "none", host="llvm", layout_plan=plan)
    assert set(made.report.layouts.values()) == {"NCHW4c"}
    smaller = driver._smaller_groups(made)
    assert smaller is not None
    smaller()


@pytest.mark.full
@pytest.mark.parametrize("block", [4, 8])
def test_cuda_reads_and_stores_vectors(block: int) -> None:
    """As nvcc compiles it: what belongs to images comes and goes as float4 alone."""
    graph = beside_each_other({"pointwise": ALL["pointwise"], "window": ALL["window"]})
    model, resolved = graph.model(), resolve_target("jetson-orin-nano")
    plan = plan_in_blocks(model, block, resolved)
    made = lowered_model(model, "jetson-orin-nano", "none", host="llvm", layout_plan=plan)
    assert set(made.report.layouts.values()) == {layout_name(block)}
    sources: list[str] = []

    def collect(module: Any) -> None:
        if module.kind == "cuda":
            sources.append(module.inspect_source())
        for imported in module.imports:
            collect(imported)

    collect(build(made.module, made.resolved)._executable.mod)
    kernels = re.findall(r"\w*conv2d\w*\(([^)]*)\) \{(.*?)\n\}", "".join(sources), re.DOTALL)
    assert kernels
    for params, body in kernels:
        for name in re.findall(r"float\* __restrict__ (\w+)", params):
            accesses = len(re.findall(rf"\b{name}\b", body))
            vectors = len(re.findall(rf"\*\(float4\*\)\({name} ", body))
            assert accesses == vectors > 0, name
