"""The graph tuner on OpenCL: devices that are CPUs, and GPUs, as which pocl is compiled for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tvm import relax

import tvm_edge
from tests.compiler.steps import simplified
from tests.marks import needs_opencl
from tests.schedules.blocked_harness import Conv
from tests.schedules.gpu.blocks import plan_in_blocks
from tests.schedules.harness import Graph
from tests.tuning.int8_networks import MIXED_MODEL, PLAIN_MODEL, check_mixed
from tests.tuning.layout_networks import check_outputs
from tests.tuning.made import conv
from tests.tuning.stand_in import StandIn
from tvm_edge.compiler import compilation
from tvm_edge.compiler.driver import compile_with
from tvm_edge.frontend import load_model
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.records import LAYOUTS, read_layouts, store_of
from tvm_edge.relay_passes.ir.expressions import kernel_calls
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.schedules.conv_records import config_space
from tvm_edge.tuning import candidates, graph_tuner, measurer
from tvm_edge.tuning.candidates import build_candidate
from tvm_edge.tuning.conv_problem import TOLERANCE, make_problem
from tvm_edge.tuning.graph_tuner import GraphTuner, timed_in_turns
from tvm_edge.tuning.tasks import extract_layout_tasks, legal_configs
from tvm_edge.tuning.transform_times import TransformTimes, estimate_transforms, measure_transforms
from tvm_edge.tuning.tunable import layout_graph_of


def chain(*filters: int) -> tuple[Graph, onnx.ModelProto]:
    """Convolutions one behind the other, with so many filters each."""
    graph = Graph()
    data, channels = graph.input(1, 32, 12, 10), 32
    for number, own in enumerate(filters):
        data = Conv(channels=channels, filters=own).build(graph, f"conv{number}", data)
        channels = own
    graph.output(data)
    return graph, graph.model()


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All models are timed; then what is planned is made faster than what was there."""
    counts: list[int] = []

    def timed(models: Sequence[Any], check: Any) -> list[float]:
        assert all(seconds > 0 for seconds in timed_in_turns(models, check))
        counts.append(len(models))
        return [1.0 - 0.1 * number for number in range(len(models))]

    monkeypatch.setattr(graph_tuner, "_ROUNDS", 1)
    monkeypatch.setattr(graph_tuner, "_SECONDS", 0.001)
    monkeypatch.setattr(graph_tuner, "timed_in_turns", timed)

    def estimated(kinds: Any, resolved: ResolvedTarget, _check: Any) -> TransformTimes:
        return estimate_transforms(kinds, resolved.spec)

    monkeypatch.setattr(graph_tuner, "measure_transforms", estimated)  # has a test of its own
    return counts


@needs_opencl
@pytest.mark.parametrize("tuned", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_cpu_behind_opencl(
    tuned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: list[int]
) -> None:
    """The choice is kept for OpenCL alone, and taken; kernels are measured in all layouts."""
    resolved = resolve_target("opencl")
    assert resolved.spec.on_cpu, "pocl"
    graph, model = chain(32)
    if tuned:
        monkeypatch.setattr(measurer, "Pool", type("Own", (StandIn,), {"tried": []}))
        whole = tvm_edge.tune(model, "opencl", trials=15, tuning_logs=tmp_path, graph=True)
        assert whole.graph is not None and whole.graph.measured >= 3
        result = whole.graph
    else:
        result = GraphTuner(model, "opencl", resolved, None, tmp_path)("one")
    assert result.taken and faster
    (record,), damages = read_layouts(store_of(tmp_path, resolved.spec.key, LAYOUTS))
    assert not damages and record.target["kind"] == "opencl"
    compiled = tvm_edge.compile(model, "opencl", fallback="none", tuning_logs=tmp_path)
    assert compiled.report.layout_choice is not None
    assert compiled.report.layout_choice.convolutions == result.info.convolutions
    check_outputs(compiled, graph, model)
    assert tvm_edge.analyze(model, "llvm", tuning_logs=tmp_path).layout_choice is None


def as_given(monkeypatch: pytest.MonkeyPatch) -> ResolvedTarget:
    """This machine's OpenCL device as a fixture has it, for tuners too."""
    monkeypatch.setattr(candidates, "resolve_target", compilation.resolve_target)
    resolved = compilation.resolve_target("opencl")
    assert not resolved.spec.has_cpu_cores
    return resolved


@needs_opencl
@pytest.mark.full
@pytest.mark.parametrize("gpu_of", ["large_gpu", "small_gpu"])
def test_a_gpu(
    gpu_of: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faster: list[int],
) -> None:
    request.getfixturevalue(gpu_of)
    resolved, (graph, model) = as_given(monkeypatch), chain(32, 16)
    # By estimates blocks and NCHW are as good: what nobody would choose is slow here.
    real = graph_tuner.ways

    def slow_in_nchw(*args: Any) -> Any:
        options, warnings = real(*args)
        return {
            workload: own | {0: replace(own[0], seconds=1.0)} for workload, own in options.items()
        }, warnings

    monkeypatch.setattr(graph_tuner, "ways", slow_in_nchw)
    result = GraphTuner(model, "opencl", resolved, None, tmp_path)("two")
    assert result.taken and faster == [2], "NCHW is what there is without a plan"
    assert sum(result.info.convolutions.values()) == 2 and "NCHW" not in result.info.convolutions
    compiled = tvm_edge.compile(model, "opencl", fallback="none", tuning_logs=tmp_path)
    assert compiled.report.layout_choice is not None
    assert {k.rule for k in compiled.report.kernels} >= {
        "tiled_blocks" if gpu_of == "large_gpu" else "item_blocks"
    }
    check_outputs(compiled, graph, model)


@needs_opencl
def test_transforms_are_measured_on_the_device() -> None:
    resolved = resolve_target("opencl")
    lanes = resolved.spec.lanes()
    small, large = (1, 32, 9, 9), (1, 32, 64, 64)
    times = measure_transforms({(0, lanes): [small, large]}, resolved, lambda: None)
    assert times.measured
    assert 0 < times.seconds(small, 0, lanes) <= times.seconds(large, 0, lanes) < 1


@needs_opencl
@pytest.mark.parametrize(
    ("gpu_of", "block"), [("large_gpu", 4), pytest.param("small_gpu", 8, marks=pytest.mark.full)]
)
def test_candidates_in_blocks(
    gpu_of: str, block: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(gpu_of)
    resolved = as_given(monkeypatch)
    workload = conv(channels=14, filters=20, width=11)
    (own,) = (
        task.configs
        for task in extract_layout_tasks({workload: 1}, resolved)
        if task.configs[0].block == block
    )
    problem = make_problem(workload)
    candidate = build_candidate(workload, own[-1], problem, "opencl", {})
    assert candidate.error() <= TOLERANCE and candidate.seconds(0.001) > 0


def test_searches_one_by_one_stay_in_nchw() -> None:
    for target in ("mali-t860", "jetson-orin-nano"):
        resolved, workload = resolve_target(target), conv()
        assert {config.block for config in legal_configs(workload, resolved)} == {0}
        tasks = extract_layout_tasks({workload: 1}, resolved)
        assert {task.configs[0].block for task in tasks} == {4, 8}
        assert {c.block for c in config_space(workload, resolved.spec).configs} == {0}


def test_moved_channels_are_in_nchw_on_a_gpu() -> None:
    """A split, and a concatenation that does not fill blocks."""
    graph = Graph()
    data = Conv(channels=8, filters=24, image=(5, 5)).build(graph, "first")
    left, right = graph.ops("Split", 2, data, graph.constant(np.array([10, 14])), axis=1)
    graph.output(graph.op("Concat", right, left, axis=1))
    found, _ = layout_graph_of(graph.model(), resolve_target("jetson-orin-nano"))
    assert not found.gathers
    kinds = {node.what.split()[0]: node.layouts for node in found.nodes}
    assert kinds["conv2d"] == (0, 4, 8) and kinds["split"] == (0,)


def test_bytes_are_in_nchw_on_a_gpu(tmp_path: Path) -> None:
    """Beside convolutions of float32 that are not, also where an instruction multiplies them."""
    resolved = resolve_target("jetson-orin-nano")
    assert resolved.spec.dot_product == "dp4a"
    found, _ = layout_graph_of(MIXED_MODEL, resolved)
    assert [found.nodes[number].layouts for number in found.fixed] == [(0,)] * 3
    assert [found.nodes[number].layouts for number in found.convolutions] == [(0, 4, 8)] * 3
    plan = plan_in_blocks(MIXED_MODEL, 4, resolved)
    assert all(plan.layouts[number] == 4 for number in found.convolutions)
    simple = simplified(load_model(MIXED_MODEL).module, resolved)
    blocked = relax.transform.DeadCodeElimination()(BlockLayout(resolved.spec, None, plan)(simple))
    called = Counter(name.rstrip("0123456789") for name in kernel_calls(blocked))
    assert called["conv2d_in_blocks"] == 3 and "conv2d_int8" not in called
    alone = GraphTuner(PLAIN_MODEL, "jetson-orin-nano", resolved, None, tmp_path, on_board=True)
    assert not alone.graph.convolutions
    assert "3 convolutions of bytes have images in NCHW" in alone.no_choice()


@needs_opencl
@pytest.mark.full
@pytest.mark.parametrize("gpu_of", ["large_gpu", "small_gpu"])
def test_blocks_beside_bytes(gpu_of: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(gpu_of)
    plan = plan_in_blocks(MIXED_MODEL, 8, compilation.resolve_target("opencl"))
    compiled = compile_with(MIXED_MODEL, "opencl", {}, fallback="none", layout_plan=plan)
    rules = Counter(kernel.rule for kernel in compiled.report.kernels)
    large = gpu_of == "large_gpu"
    assert rules["tiled_blocks" if large else "item_blocks"] == 3
    assert rules["tiled_int8"] == (2 if large else 0) and rules["direct_int8"] == (
        1 if large else 3
    )
    check_mixed(compiled)
