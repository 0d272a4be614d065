"""Models compiled for a budget keep to it, and compute the same.

What a process takes is measured of one that loads an artifact and does nothing else
(``benchmarks/memory/peaks.py``).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvm_edge
from benchmarks.memory.limit import limited
from benchmarks.memory.peaks import measure_peak
from tests.memory.models import IMAGE, conv_heavy, yolo_shaped
from tests.onnx_models import random_input, reference, relative_error
from tvm_edge import CompileReport
from tvm_edge.report import MemoryInfo

MIB = 1 << 20
FC1 = 16 * MIB
HEAVY = 32 * MIB
FC_NODES = ("fc1", "leaky4", "fc2", "reshape", "sigmoid")


@pytest.fixture(scope="module")
def network() -> onnx.ModelProto:
    return yolo_shaped()


@pytest.fixture(scope="module")
def heavy() -> onnx.ModelProto:
    """With 32 MiB in its first fully connected layer, for processes of which some is Python."""
    return yolo_shaped(2048)


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return {"data": random_input(IMAGE)}


@pytest.fixture(scope="module")
def inputs_file(inputs: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "inputs.npz"
    np.savez(path, **inputs)
    return path


def memory_of(report: CompileReport) -> MemoryInfo:
    assert report.memory is not None
    return report.memory


def taken(report: CompileReport) -> str:
    (plan,) = [plan for plan in memory_of(report).plans if plan.taken]
    assert plan.peak is not None and plan.peak >= memory_of(report).peak
    return plan.name


def check(model: tvm_edge.CompiledModel, network: onnx.ModelProto, inputs: Any) -> None:
    actual = model.run(inputs)
    for name, expected in reference(network, inputs).items():
        assert relative_error(actual[name], expected) < 1e-4, name


# ------------------------------------------------------------------------------- the prediction


def test_parts_of_a_cpu_model(network: onnx.ModelProto) -> None:
    """Weights stay pages of the artifact; all the rest counts."""
    report = tvm_edge.analyze(network, "llvm")
    memory = memory_of(report)
    assert memory.weights == memory.mapped == memory.weights_by_device["llvm"] > FC1
    rest = memory.activations + memory.workspace + memory.inputs_outputs
    assert memory.peak == rest + memory.programs + memory.floor
    assert memory.programs and memory.floor
    (dense,) = [kernel for kernel in report.kernels if "fc1" in kernel.operators]
    assert FC1 <= dense.weights <= FC1 + MIB and dense.results == 4 * 1024
    assert max(report.kernels, key=lambda k: k.weights) is dense
    assert sum(kernel.weights for kernel in report.kernels) == memory.weights


def test_parts_of_a_gpu_model(network: onnx.ModelProto) -> None:
    """It has a copy of the weights, and what the CPU reads beside it stays in the artifact."""
    whole = memory_of(tvm_edge.analyze(network, "mali-g76", fallback="none"))
    assert whole.mapped == 0 and set(whole.weights_by_device) == {"opencl"}
    assert whole.peak > whole.weights > FC1
    parted = memory_of(tvm_edge.analyze(network, "mali-g76", fallback=FC_NODES))
    assert parted.mapped == parted.weights_by_device["llvm"] > FC1
    assert parted.weights == sum(parted.weights_by_device.values())
    assert whole.peak - parted.peak > FC1 - 2 * MIB


@pytest.mark.parametrize("target", ["llvm", pytest.param("opencl", marks=pytest.mark.full)])
def test_what_is_predicted_is_measured(
    target: str,
    heavy: onnx.ModelProto,
    inputs: dict[str, np.ndarray],
    inputs_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 10 %, of a process that loads the artifact and runs it."""
    # Kernels as users have them: what pocl keeps of others is more.
    monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "")
    if target != "llvm" and not tvm.device(target, 0).exist:
        pytest.skip(f"no {target} device on this machine")
    model = tvm_edge.compile(heavy, target, fallback="auto" if target == "llvm" else "none")
    artifact = model.export(tmp_path / "model.tvme", embed_programs=target != "llvm")
    if target != "llvm":  # in the first process pocl compiles once more, for its work-groups
        measure_peak(artifact, inputs_file, frames=0)
    found = measure_peak(artifact, inputs_file, frames=3)
    assert "failed" not in found, found
    assert found["peak"] == pytest.approx(memory_of(model.report).peak, rel=0.1)
    expected = np.abs(model.run(inputs)["result"]).astype("float64").sum()
    assert found["outputs"]["result"] == pytest.approx(expected)


# ----------------------------------------------------------------------------------- the planner


@pytest.mark.full
@pytest.mark.usefixtures("on_opencl", "small_gpu")
def test_fully_connected_layers_go_to_the_cpu(
    heavy: onnx.ModelProto, inputs: dict[str, np.ndarray], inputs_file: Path, tmp_path: Path
) -> None:
    """In a limited process, which the model without a plan does not survive.

    The device has a copy of its weights, as GPUs have.
    """
    unplanned = tvm_edge.compile(heavy, "opencl", fallback="list")
    before = memory_of(unplanned.report)
    assert {kernel.device for kernel in unplanned.report.kernels} == {"opencl"}
    budget = before.peak - HEAVY // 2
    planned = tvm_edge.compile(heavy, "opencl", fallback="list", memory_budget=budget)
    memory = memory_of(planned.report)
    assert taken(planned.report).startswith("FC on the CPU")
    assert memory.peak <= budget == memory.budget
    on_cpu = {p.operator: p.reason for p in planned.report.placements if p.device == "llvm"}
    assert {"fc1", "fc2", "leaky4"} <= set(on_cpu) <= set(FC_NODES)
    assert "memory budget" in on_cpu["fc1"]
    assert len(planned.report.copies) == 1, "a frame crosses once"
    assert memory.mapped > HEAVY
    (as_is,) = [plan for plan in memory.plans if plan.name == "as is"]
    assert as_is.peak == before.peak and "above the budget" in as_is.reason
    check(planned, heavy, inputs)

    artifact = planned.export(tmp_path / "planned.tvme", embed_programs=True)
    found = measure_peak(artifact, inputs_file, frames=2, copies=True)
    assert "failed" not in found, found
    room = found["peak"] + HEAVY // 2
    with limited(room) as limit:
        if limit.kind == "RLIMIT_DATA":
            pytest.skip("control groups cannot be made here")
        lives = measure_peak(artifact, inputs_file, frames=2, copies=True, limit=limit)
    assert "failed" not in lives, lives
    assert lives["outputs"] == pytest.approx(found["outputs"])
    other = unplanned.export(tmp_path / "unplanned.tvme", embed_programs=True)
    with limited(room) as limit:
        dies = measure_peak(other, inputs_file, frames=2, copies=True, limit=limit)
    assert "failed" in dies, dies


@pytest.mark.full
@pytest.mark.usefixtures("on_opencl", "small_gpu")  # which has a copy of its weights
def test_layers_that_may_not_leave_are_split(
    network: onnx.ModelProto, inputs: dict[str, np.ndarray]
) -> None:
    whole = memory_of(tvm_edge.analyze(network, "opencl", fallback="none"))
    budget = whole.peak - FC1 // 4
    planned = tvm_edge.compile(network, "opencl", fallback="none", memory_budget=budget)
    assert taken(planned.report).startswith("FC split ×")
    assert {p.device for p in planned.report.placements if p.device} == {"opencl"}
    memory = memory_of(planned.report)
    (split, *_) = planned.report.splits
    assert split.operator == "fc1" and memory.mapped >= split.weight_bytes >= FC1
    assert memory.window in (split.part_bytes, 2 * split.part_bytes)
    assert memory.peak <= budget
    check(planned, network, inputs)


def test_convolutions_are_streamed_where_no_other_plan_fits() -> None:
    network = conv_heavy((3, 190, 190, 190, 190, 190))
    whole = memory_of(tvm_edge.analyze(network, "mali-g76", fallback="none"))
    assert whole.window == 0
    budget = whole.peak - MIB
    report = tvm_edge.analyze(network, "mali-g76", fallback="none", memory_budget=budget)
    assert taken(report).startswith("convolutions streamed")
    memory = memory_of(report)
    assert len(report.splits) == 4 and memory.peak <= budget
    sizes = [split.part_bytes for split in report.splits]
    assert memory.window in (max(sizes), 2 * max(sizes))
    assert memory.mapped == memory.weights_by_device["streamed"] == sum(sizes)
    plans = {plan.name: plan for plan in memory.plans}
    assert plans["as is"].seconds < plans[taken(report)].seconds
    largest = tvm_edge.analyze(network, "mali-g76", fallback="none", memory_budget=whole.peak)
    reasons = {plan.name: plan.reason for plan in memory_of(largest).plans}
    assert reasons["convolutions streamed"].startswith("not needed")


@pytest.mark.full
def test_what_fallback_keeps_on_the_gpu_stays(network: onnx.ModelProto) -> None:
    whole = memory_of(tvm_edge.analyze(network, "mali-g76", fallback="none"))
    report = tvm_edge.analyze(network, "mali-g76", fallback="none", memory_budget=whole.peak)
    reasons = {plan.name: plan.reason for plan in memory_of(report).plans}
    assert "fallback=" in reasons["FC on the CPU"]
    assert {p.device for p in report.placements if p.device} == {"opencl"}


@pytest.mark.parametrize("target", ["mali-g76", "opencl"])
def test_pipelining_is_faster_where_devices_are_two(
    target: str, network: onnx.ModelProto, request: pytest.FixtureRequest
) -> None:
    """A device that is the CPU waits while the CPU works (``same_cores``): nothing to gain."""
    if target == "opencl":
        request.getfixturevalue("on_opencl")
        if not tvm_edge.hardware.resolve_target(target).spec.on_cpu:
            pytest.skip("the OpenCL device is not the CPU")
    report = tvm_edge.analyze(network, target, fallback="list", memory_budget="1GiB")
    plans = {plan.name: plan for plan in memory_of(report).plans}
    one, pipelined = plans["FC on the CPU"], plans["FC on the CPU, pipelined"]
    assert one.seconds is not None and pipelined.seconds is not None
    if target == "opencl":
        assert pipelined.seconds == one.seconds and pipelined.bound == one.bound
        assert "pipelined" not in taken(report)
    else:
        assert pipelined.seconds < one.seconds and pipelined.bound.startswith("all on ")
        assert taken(report) == "FC on the CPU, pipelined"


def test_a_budget_that_everything_fits_changes_nothing(network: onnx.ModelProto) -> None:
    plain = tvm_edge.analyze(network, "llvm")
    planned = tvm_edge.analyze(network, "llvm", memory_budget="2GiB")
    memory = memory_of(planned)
    assert taken(planned) == "as is"
    assert replace(memory, budget=None, plans=()) == plain.memory
    assert planned.kernels == plain.kernels
    assert {plan.name for plan in memory.plans} >= {"as is", "no Winograd", "FC on the CPU"}
    for plan in memory.plans:
        assert (plan.peak is None) == (plan.seconds is None) == (plan.bound == "")
        assert plan.reason


def test_the_report_has_the_plans(network: onnx.ModelProto, tmp_path: Path) -> None:
    report = tvm_edge.analyze(network, "llvm", memory_budget="1GiB")
    again = CompileReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again == report
    text = report.summary()
    for plan in memory_of(report).plans:
        assert f"plan       {plan.name}" in text
    assert max(map(len, text.splitlines())) <= 100
    page = report.to_html(tmp_path / "report.html").read_text()
    assert "Plans for the budget" in page and "no Winograd" in page
    fields = report.to_dict()
    for name in ("mapped", "window", "programs", "floor", "plans", "weights_by_device"):
        del fields["memory"][name]  # an artifact of an earlier version
    for kernel in fields["kernels"]:
        del kernel["weights"], kernel["results"], kernel["workspace"]
    earlier = memory_of(CompileReport.from_dict(fields))
    assert earlier.plans == () and earlier.peak > earlier.weights
