"""compile takes what was measured, says so, and ignores what does not hold."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.compiler.steps import lowered as lowered_model
from tests.onnx_models import make_model, random_input, reference, relative_error
from tests.records.made import measured
from tests.schedules.gpu.harness import launches
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.records import (
    Database,
    RecordDevice,
    TuningRecord,
    add_records,
    store_of,
    write_lines,
)
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import config_of, config_space
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.items import Items
from tvm_edge.schedules.knobs import read_knobs
from tvm_edge.tuning.tunable import convolutions_of

CPU = resolve_target("llvm").spec
INPUTS = {"x": random_input((1, 32, 12, 12))}


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """A 3x3 convolution with a ReLU, and a 1x1 one."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["y"], name="second"),
    ]
    weights = {"w": random_input((32, 32, 3, 3), 1), "v": random_input((64, 32, 1, 1), 2)}
    return make_model(nodes, {"x": (1, 32, 12, 12)}, ["y"], weights)


@pytest.fixture(scope="module")
def first(model: onnx.ModelProto) -> ConvWorkload:
    return next(iter(convolutions_of(model, resolve_target("llvm"))))


def other_config(workload: ConvWorkload, spec: DeviceSpec = CPU) -> ConvConfig:
    """A legal configuration far from the heuristic's, in the blocks that a search keeps to."""
    configs = config_space(workload, spec).top(3)
    return next(c for c in reversed(configs) if c.block == configs[0].block)


def origins(report: tvm_edge.CompileReport, operator: str) -> set[str]:
    """Return the origins of an operator's kernels, without those that pack its images."""
    return {
        kernel.origin
        for kernel in report.kernels
        if operator in kernel.operators and kernel.rule != "elementwise"
    }


def elsewhere(device: RecordDevice, **fields: Any) -> RecordDevice:
    return replace(device, key=f"{device.vendor}/another", **fields)


def test_a_record_of_this_device_is_taken(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path
) -> None:
    winograd = next(c for c in config_space(first, CPU).configs if c.algorithm == "winograd")
    add_records(tmp_path, [measured(first, winograd, CPU, "llvm")])
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path)
    report = compiled.report
    assert origins(report, "first") == {"tuned"} and origins(report, "second") == {"heuristic"}
    assert any(k.rule == "winograd" for k in report.kernels), "the heuristic's would be direct"
    assert report.records is not None
    assert (report.records.convolutions, report.records.tuned) == (2, 1)
    assert not report.records.ignored and not report.warnings
    assert "1 of 2 convolutions covered: 1 tuned, 0 transferred" in report.summary()
    expected = reference(model, INPUTS)["y"]
    assert relative_error(compiled.run(INPUTS)["y"], expected) < 1e-4
    again = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path).report
    assert again.kernels == report.kernels
    assert "tuned" not in {
        k.origin for k in tvm_edge.compile(model, "llvm", tuning_logs=False).report.kernels
    }
    loaded = tvm_edge.load(compiled.export(tmp_path / "model.tvme"))
    assert loaded.report.records == report.records


@pytest.mark.parametrize("alike", [True, False], ids=["architecture", "vendor"])
def test_a_record_of_a_like_device_is_transferred(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path, alike: bool
) -> None:
    device = elsewhere(RecordDevice.of(CPU))
    if not alike:
        device = replace(device, architecture=f"{device.vendor}/other")
    config = other_config(first)
    add_records(tmp_path, [measured(first, config, CPU, "llvm", device=device)])
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path)
    assert origins(compiled.report, "first") == {"transferred"}
    assert compiled.report.records is not None and compiled.report.records.transferred == 1
    expected = reference(model, INPUTS)["y"]
    assert relative_error(compiled.run(INPUTS)["y"], expected) < 1e-4


@pytest.mark.parametrize("own", [True, False], ids=["own", "transferred"])
def test_blocks_of_another_cpu_are_not_transferred(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path, own: bool
) -> None:
    """A block of two registers is legal, and what a machine with wider ones would record."""
    config = next(c for c in config_space(first, CPU).configs if c.block == 2 * CPU.lanes())
    made = measured(first, config, CPU, "llvm")
    if not own:
        made = replace(made, device=elsewhere(made.device))
    add_records(tmp_path, [made])
    report = tvm_edge.analyze(model, "llvm", tuning_logs=tmp_path)
    assert origins(report, "first") == {"tuned" if own else "heuristic"}
    assert report.records is not None
    assert own or f"in blocks of {config.block} channels" in report.records.ignored[0]


@pytest.mark.parametrize("own", [True, False], ids=["own", "transferred"])
def test_what_suits_another_gpu_alone_is_not_transferred(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path, own: bool
) -> None:
    """The last by the cost model is legal, and may have been the best of a GPU of other size."""
    spec = resolve_target("jetson-orin-nano").spec
    direct = [c for c in config_space(first, spec).configs if c.algorithm == "direct"]
    for config, held in ((direct[-1], own), (direct[3], True)):
        made = measured(first, config, spec, "cuda")
        if not own:
            made = replace(made, device=elsewhere(made.device))
        folder = tmp_path / str(held)
        add_records(folder, [made])
        report = tvm_edge.analyze(model, "jetson-orin-nano", fallback="none", tuning_logs=folder)
        expected = ("tuned" if own else "transferred") if held else "heuristic"
        assert origins(report, "first") == {expected}
        assert report.records is not None
        assert held or "cost model" in report.records.ignored[0]


def test_other_blocks_wait_for_a_graph_tuner(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path
) -> None:
    """They may be faster, and cost the convolutions around: blocks of one register go before."""
    wide = next(c for c in config_space(first, CPU).configs if c.block == 2 * CPU.lanes())
    usual = other_config(first)
    made = [
        measured(first, config, CPU, "llvm", latencies=(seconds,))
        for config, seconds in ((wide, 1e-6), (usual, 1e-3))
    ]
    add_records(tmp_path, made)
    report = tvm_edge.analyze(model, "llvm", tuning_logs=tmp_path)
    assert report.layouts["first"].split(",")[0] == f"NCHW{CPU.lanes()}c"
    assert origins(report, "first") == {"tuned"} and not report.records.ignored  # type: ignore[union-attr]


UNFIT: dict[str, dict[str, Any]] = {
    "columns=999": {"config": {"algorithm": "direct", "block": 16, "m": 0, "columns": 999}},
    "is at": {"template_version": 0},
    "no template": {"template": "conv2d.fpga"},
    "has conv2d.cpu": {"template": "conv2d.gpu"},
    f"has {CPU.cores}": {"target": {"kind": "llvm", "cores": CPU.cores + 1}},
}


@pytest.mark.parametrize("reason", UNFIT)
def test_a_record_that_does_not_hold_is_ignored_with_a_reason(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path, reason: str
) -> None:
    made = replace(measured(first, other_config(first), CPU, "llvm"), **UNFIT[reason])
    add_records(tmp_path, [made])
    report = tvm_edge.analyze(model, "llvm", tuning_logs=tmp_path)
    assert origins(report, "first") == {"heuristic"}
    assert report.records is not None and report.records.covered == 0
    (ignored,) = report.records.ignored
    assert reason in ignored and str(tmp_path) in ignored
    assert f"ignored: {ignored[:40]}" in report.summary()


def test_the_second_best_counts_where_the_best_is_not_legal(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path
) -> None:
    legal = measured(first, other_config(first), CPU, "llvm", latencies=(2.0,))
    illegal = replace(legal, config={"algorithm": "direct", "block": 7}, latencies=(1.0,))
    add_records(tmp_path, [illegal, legal])
    report = tvm_edge.analyze(model, "llvm", tuning_logs=tmp_path)
    assert origins(report, "first") == {"tuned"}
    assert report.records is not None and len(report.records.ignored) == 1


def test_another_api_precision_or_vendor_says_nothing(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path
) -> None:
    made = measured(first, other_config(first), CPU, "llvm")
    foreign = replace(RecordDevice.of(CPU), key="sparc/t1")
    others: list[TuningRecord] = [
        replace(made, target={"kind": "opencl"}),
        replace(made, workload=replace(made.workload, dtype="float16")),
        replace(made, device=foreign),
        replace(made, latencies=(), error="MeasureTimeout"),
    ]
    path = tmp_path / "others.jsonl"
    write_lines(path, others)
    report = tvm_edge.analyze(model, "llvm", tuning_logs=path)
    assert {kernel.origin for kernel in report.kernels} == {"heuristic"}
    assert report.records is not None and not report.records.ignored


def test_a_damaged_database_costs_only_itself(
    model: onnx.ModelProto, first: ConvWorkload, tmp_path: Path
) -> None:
    """A database of noise, a line of noise: what else there is counts."""
    path = store_of(tmp_path, CPU.key)
    path.parent.mkdir()
    path.write_bytes(np.random.default_rng(0).bytes(8192))
    lines = path.with_suffix(".jsonl")
    write_lines(lines, [measured(first, other_config(first), CPU, "llvm")])
    with lines.open("a") as file:
        file.write('{"schema": 1, "devi')
    with pytest.warns(tvm_edge.TvmEdgeWarning) as caught:
        compiled = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path)
    said = sorted(str(warning.message) for warning in caught)
    assert len(said) == 2 and f"{lines}:2" in said[0]
    (aside,) = path.parent.glob("*.damaged-*")
    assert str(path) in said[1] and str(aside) in said[1]
    assert origins(compiled.report, "first") == {"tuned"}
    with Database(path, readonly=True) as database:  # of all that could be read
        assert database.counts().records == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", tvm_edge.TvmEdgeWarning)
        lines.unlink()
        assert tvm_edge.analyze(model, "llvm", tuning_logs=tmp_path).kernels


def test_records_of_a_gpu(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Compiled for a preset, nothing built: what takes the tile is the rule for tiles."""
    target = resolve_target("jetson-orin-nano")
    conv = next(iter(convolutions_of(model, target)))
    config = other_config(conv, target.spec)
    add_records(tmp_path, [measured(conv, config, target.spec, target.kind)])
    options = {"fallback": "none", "tuning_logs": tmp_path}
    report = tvm_edge.analyze(model, "jetson-orin-nano", **options)
    assert origins(report, "first") >= {"tuned"} and origins(report, "second") == {"heuristic"}


@pytest.mark.parametrize("groups", [1, 32], ids=["dense", "depthwise"])
def test_records_of_a_gpu_without_local_memory(tmp_path: Path, groups: int) -> None:
    """The tile and the work-group are taken where they are legal."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="first", pads=[1] * 4, group=groups)
    weights = {"w": random_input((32, 32 // groups, 3, 3), 1)}
    model = make_model([node], {"x": (1, 32, 12, 12)}, ["y"], weights)
    target = resolve_target("mali-t860")
    (conv,) = convolutions_of(model, target)
    space = config_space(conv, target.spec)
    config = space.configs[-2]
    assert config.algorithm == "items" and config != space.configs[0]
    made = measured(conv, config, target.spec, target.kind)
    assert config_of(made, space, target.spec) == config
    small = replace(target.spec, max_work_group_size=2)
    with pytest.raises(ValueError, match="is not legal on"):
        config_of(made, config_space(conv, small), small)
    add_records(tmp_path, [made])
    options = {"fallback": "none", "tuning_logs": tmp_path}
    (kernel,) = tvm_edge.analyze(model, "mali-t860", **options).kernels
    assert (kernel.rule, kernel.origin) == ("direct", "tuned")
    lowered = lowered_model(model, "mali-t860", **options).module
    assert launches(lowered[kernel.name])[-1].items == read_knobs(Items, config.knobs).group.items
    (kernel,) = tvm_edge.analyze(model, "mali-t860", fallback="none", tuning_logs=False).kernels
    assert (kernel.rule, kernel.origin) == ("direct", "heuristic")
