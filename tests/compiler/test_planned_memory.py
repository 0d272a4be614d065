"""Models on two devices are right with planned memory, and the report says how much it is."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import ladder, make_model, random_input, reference, relative_error


def to_and_fro() -> onnx.ModelProto:
    """Long branches, whose Tanh and Add the CPU may compute, with tensors that cross twice."""
    nodes, weights, value = ladder(6)
    weights["shape"] = np.array([1, -1], "int64")
    nodes.append(helper.make_node("Reshape", [value, "shape"], ["flat"]))
    return make_model(nodes, {"data": SHAPE}, ["flat", "a2", "t4"], weights)


SHAPE = (1, 8, 10, 10)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("fallback", [["Tanh"], ["Add"], ["Conv"], ["Tanh", "Sigmoid"]])
def test_two_devices_with_planned_memory(fallback: list[str], gpu: str) -> None:
    """Also when two threads take turns, and no result is changed by a later run."""
    compiled = tvm_edge.compile(to_and_fro(), gpu, fallback=fallback)
    memory = compiled.report.memory
    assert memory is not None and set(memory.by_device) == {gpu, "llvm"}
    # On OpenCL all of the CPU's tensors here lie in the GPU's memory.
    assert memory.by_device[gpu] and bool(memory.by_device["llvm"]) == (gpu == "cuda")
    inputs = [{"data": random_input(SHAPE, seed)} for seed in range(4)]

    def runs(half: int) -> list[dict[str, Any]]:
        return [compiled.run(each, device_outputs=True) for each in inputs[half::2] * 3]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(runs, range(2)))
    for half in range(2):
        for each, result in zip(inputs[half::2] * 3, found[half], strict=True):
            for name, expected in reference(to_and_fro(), each).items():
                assert relative_error(result[name].numpy(), expected) < 1e-5, name


def test_the_report_has_each_device(tmp_path: Path) -> None:
    """Of one device it says nothing more; storage of results is not counted."""
    one = tvm_edge.analyze(to_and_fro(), "jetson-orin-nano").memory
    assert one is not None and one.by_device == {}
    report = tvm_edge.analyze(to_and_fro(), "jetson-orin-nano", fallback=["Tanh"])
    assert report.memory is not None
    tensor = 4 * math.prod(SHAPE)
    assert report.memory.by_device["llvm"] == 2 * tensor  # in and out; one result is its own
    assert report.memory.activations == sum(report.memory.by_device.values())
    assert "(cuda " in report.summary() and "llvm " in report.summary()
    page = report.to_html(tmp_path / "report.html").read_text()
    assert "activations on llvm" in page and f">{2 * tensor:,}<" in page
    again = tvm_edge.CompileReport.from_dict(report.to_dict())
    assert again.memory == report.memory
    fields = report.to_dict()
    del fields["memory"]["by_device"]  # an artifact of an earlier version
    earlier = tvm_edge.CompileReport.from_dict(fields).memory
    assert earlier is not None and earlier.activations == report.memory.activations
