"""Models compiled for a GPU with every convolution in blocks of channels that can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx

import tvm_edge
from tests.onnx_models import reference
from tests.schedules.harness import Graph, assert_close
from tvm_edge.compiler import compilation
from tvm_edge.compiler.driver import compile_with
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph, LayoutPlan
from tvm_edge.relay_passes.solvers.layout_problem import LayoutProblem
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import config_space
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.layouts import block_sizes
from tvm_edge.tuning.tunable import layout_graph_of

Pick = Callable[[list[ConvConfig]], ConvConfig]


def first(configs: list[ConvConfig]) -> ConvConfig:
    """The schedule's own choice."""
    return replace(configs[0], knobs="")


def in_blocks_of(workload: ConvWorkload, block: int, resolved: ResolvedTarget) -> list[ConvConfig]:
    """The configurations of a convolution in one layout."""
    configs = config_space(workload, resolved.spec, blocks=True).configs
    return [config for config in configs if config.block == block]


def free(graph: LayoutGraph, resolved: ResolvedTarget) -> LayoutProblem:
    """The network where operators cost nothing, and each transform as much as any other."""
    known = (0, *block_sizes(resolved.spec))
    costs = [{(a, b): float(a != b) for a in n.layouts for b in known} for n in graph.nodes]
    # What may as well be in blocks is, so that it is part of the kernel in front.
    seconds = [[0.0 if x else 1e-3 for x in node.layouts] for node in graph.nodes]
    return graph.problem(seconds, costs)


def plan_in_blocks(
    model: onnx.ModelProto, block: int, resolved: ResolvedTarget, pick: Pick = first
) -> LayoutPlan:
    """All convolutions that can be in blocks of one size, and whatever else saves a transform."""
    graph, _ = layout_graph_of(model, resolved)
    given = {number: block for number in graph.convolutions if block in graph.nodes[number].layouts}
    layouts = free(graph, resolved).with_given(given).solve().layouts
    return LayoutPlan(graph.digest, layouts, configs_of(graph, layouts, resolved, pick))


def configs_of(
    graph: LayoutGraph, layouts: tuple[int, ...], resolved: ResolvedTarget, pick: Pick = first
) -> dict[int, ConvConfig]:
    """A configuration for each convolution that is in blocks."""
    return {
        number: pick(in_blocks_of(workload, layouts[number], resolved))
        for number, workload in graph.convolutions.items()
        if layouts[number]
    }


def check_plan(graph: Graph, plan: LayoutPlan, target: str = "opencl") -> tvm_edge.CompiledModel:
    """Compile as planned, and compare with ONNX Runtime; nothing left the device."""
    model = graph.model()
    compiled = compile_with(model, target, {}, fallback="none", layout_plan=plan)
    actual = compiled.run(graph.values)
    for name, expected in reference(model, graph.values).items():
        text = onnx.printer.to_text(model.graph).partition("<float")[0]
        assert_close(actual[name], expected, f"{name} of\n{text}")
    assert {kernel.device for kernel in compiled.report.kernels} == {target}
    return compiled


def check_blocks(
    graph: Graph, block: int, pick: Pick = first, target: str = "opencl"
) -> tvm_edge.CompiledModel:
    """Check a network planned in channel blocks of one size against ONNX Runtime."""
    resolved = compilation.resolve_target(target)  # as fixtures have it
    return check_plan(graph, plan_in_blocks(graph.model(), block, resolved, pick), target)


def any_of(seed: int) -> Pick:
    """A configuration at random."""
    random = np.random.default_rng(seed)
    return lambda configs: configs[int(random.integers(len(configs)))]
