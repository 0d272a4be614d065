"""Live memory at each kernel, against the planned storage."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.compiler.steps import lowered as lowered_model
from tests.onnx_models import ladder, make_model
from tvm_edge.memory.storage_plan import over_time, planned_storages

SHAPE = (1, 8, 10, 10)
TENSOR = 4 * math.prod(SHAPE)  # bytes


def two_steps() -> onnx.ModelProto:
    """Kernels: Conv Tanh; Add Sigmoid; Conv Tanh Add Sigmoid, whose result is the model's."""
    nodes, weights, value = ladder(2)
    return make_model(nodes, {"data": SHAPE}, [value], weights)


def test_by_hand_on_one_device() -> None:
    """The first Tanh is read by the last kernel; the result is the caller's."""
    report = tvm_edge.analyze(two_steps(), "jetson-orin-nano")
    assert [len(kernel.operators) for kernel in report.kernels] == [2, 2, 4]
    assert report.memory is not None
    assert report.memory.over_time == {"": (TENSOR, 2 * TENSOR, 2 * TENSOR)}
    assert report.memory.activations == 2 * TENSOR


def test_by_hand_on_two_devices() -> None:
    """Conv, then Tanh on the CPU, then Add Sigmoid, twice: copies are alive on both sides."""
    report = tvm_edge.analyze(two_steps(), "jetson-orin-nano", fallback=["Tanh"])
    assert [kernel.device for kernel in report.kernels] == ["cuda", "llvm", "cuda"] * 2
    memory = report.memory
    assert memory is not None
    t = TENSOR
    # c0; it is copied and done with; t0 and s0; t0, s0 and c1; t0; t0 and t1, the result not.
    assert memory.over_time["cuda"] == (t, 0, 2 * t, 3 * t, t, 2 * t)
    assert memory.over_time["llvm"] == (0, 2 * t, 0, 0, 2 * t, 0)
    assert max(memory.over_time["cuda"]) == memory.by_device["cuda"]
    assert max(memory.over_time["llvm"]) == memory.by_device["llvm"]


def test_what_the_cpu_reads_in_place_is_alive_as_long() -> None:
    """On Mali it reads the GPU's tensors where they are; what it writes is copied there."""
    report = tvm_edge.analyze(two_steps(), "mali-t860", fallback=["Tanh"])
    memory = report.memory
    t = TENSOR
    assert memory is not None and memory.over_time["llvm"] == (0, t, 0, 0, t, 0)
    scratch = memory.over_time["opencl"][0] - TENSOR  # beside c0: the convolution's own
    assert scratch > 0
    # c0; c0, which the CPU reads; t0 and s0; t0, s0 and c1; t0 and c1; t0 and t1, the result not.
    alive = (t + scratch, t, 2 * t, 3 * t + scratch, 2 * t, 2 * t)
    assert memory.over_time["opencl"] == alive


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("target", ["llvm", "mali-t860", "jetson-orin-nano"])
@pytest.mark.parametrize("fallback", ["none", ["Tanh"], ["Conv", "Add"]])
def test_no_more_than_planned(target: str, fallback: str | list[str]) -> None:
    if target == "llvm":
        fallback = "auto"
    nodes, weights, value = ladder(6)
    weights["shape"] = np.array([1, -1], "int64")
    nodes.append(helper.make_node("Reshape", [value, "shape"], ["flat"]))  # a view of the last
    model = make_model(nodes, {"data": SHAPE}, ["flat", "a2", "t4"], weights)
    report = tvm_edge.analyze(model, target, fallback=fallback)
    memory = report.memory
    assert memory is not None
    planned = memory.by_device or {"": memory.activations}
    assert set(memory.over_time) == set(planned)
    for device, series in memory.over_time.items():
        assert len(series) == len(report.kernels)
        assert max(series) <= planned[device]
    assert any(any(series) for series in memory.over_time.values())


def test_it_survives_a_file_and_may_be_absent() -> None:
    report = tvm_edge.analyze(two_steps(), "jetson-orin-nano", fallback=["Tanh"])
    fields = report.to_dict()
    assert tvm_edge.CompileReport.from_dict(fields) == report
    del fields["memory"]["over_time"]  # an artifact of an earlier version
    for operator in fields["operators"]:
        del operator["inputs"]
    earlier = tvm_edge.CompileReport.from_dict(fields)
    assert earlier.memory is not None and earlier.memory.over_time == {}
    assert all(operator.inputs == () for operator in earlier.operators)


def test_launches_that_the_plan_does_not_have() -> None:
    plan = lowered_model(two_steps(), "llvm", "auto")
    names = [kernel.name for kernel in plan.report.kernels]
    storages = planned_storages(plan.module)
    assert over_time(plan.module, storages, names) != {}
    assert over_time(plan.module, storages, [*names, names[0]]) == {}
