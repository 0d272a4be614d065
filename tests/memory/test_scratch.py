"""Scratch space of kernels, counted behind the passes that decide it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge.hardware import resolve_target
from tvm_edge.memory import scratch
from tvm_edge.memory.scratch import Scratch, kept, scratch_of

LENGTH = 1 << 20  # floats


def two_stages(length: int = LENGTH) -> tirx.PrimFunc:
    """``exp(x)`` into an array of its own, and ``x + reversed`` of that."""
    x = te.placeholder((length,), "float32", "x")
    first = te.compute((length,), lambda i: te.exp(x[i]), "first")
    second = te.compute((length,), lambda i: x[i] + first[length - 1 - i], "second")
    return te.create_prim_func([x, second])


def test_an_array_of_a_kernel() -> None:
    target = resolve_target("llvm").target
    assert scratch_of(two_stages(), target) == Scratch((4 * LENGTH,))
    assert scratch_of(two_stages(128), target) == Scratch(), "half a KiB is on the stack"
    add = topi.add(te.placeholder((4,), "float32", "a"), te.placeholder((4,), "float32", "b"))
    assert scratch_of(te.create_prim_func([*add.op.input_tensors, add]), target) == Scratch()


def test_an_array_of_each_thread_is_as_large_as_what_is_alive_at_once() -> None:
    """A row of a matrix, not the matrix."""
    rows, columns = 64, 4096
    x = te.placeholder((rows, columns), "float32", "x")
    first = te.compute((rows, columns), lambda i, j: te.exp(x[i, j]), "first")
    second = te.compute(
        (rows, columns), lambda i, j: first[i, j] + first[i, columns - 1 - j], "second"
    )
    sch = Schedule(te.create_prim_func([x, second]))
    row, _ = sch.get_loops(sch.get_sblock("second"))
    sch.parallel(row)
    sch.compute_at(sch.get_sblock("first"), row)
    found = scratch_of(sch.mod["main"], resolve_target("llvm").target)
    assert found == Scratch((), (4 * columns,))
    assert found.total(3) == 3 * 4 * columns


def test_a_kernel_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not lowered again, until the kernel, the CPU or the open lengths are others."""
    monkeypatch.setenv("TVM_EDGE_CACHE", str(tmp_path / "cache"))
    measured: list[int] = []
    lower = scratch._measured

    def counted(*args: Any) -> Scratch:
        measured.append(1)
        return lower(*args)

    monkeypatch.setattr(scratch, "_measured", counted)
    target, other = (resolve_target({"kind": "llvm", "num-cores": n}).target for n in (1, 2))
    first = scratch_of(two_stages(), target)
    assert scratch_of(two_stages(), target) == first == Scratch((4 * LENGTH,))
    assert len(measured) == 1
    scratch_of(two_stages(), other)
    scratch_of(two_stages(), target, {"n": 3})
    assert scratch_of(two_stages(LENGTH // 2), target) == Scratch((2 * LENGTH,))
    assert len(measured) == 4


def test_what_is_kept_for_several_kernels() -> None:
    """The pool has as many pieces as a kernel needs at once, and makes its largest one larger."""
    kernels = [Scratch((10, 4), (1,)), Scratch((7, 6, 2)), Scratch()]
    assert kept(kernels, 2) == 10 + 6 + 2 + 2 * 1
    assert kept([], 2) == 0


def winograd(channels: int, size: int) -> onnx.ModelProto:
    """A 3x3 convolution to as many channels, of a square image."""
    shape = (channels, channels, 3, 3)
    weight = np.random.default_rng(0).standard_normal(shape).astype("float32")
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)
    return make_model([node], {"x": (1, channels, size, size)}, ["y"], {"w": weight})


def test_fused_stages_of_winograd_take_the_room_of_a_line_of_tiles() -> None:
    """With F(4x4) a tile is 36 elements of each channel, and so are its products."""
    report = tvm_edge.analyze(winograd(64, 224), "llvm", tuning_logs=False)
    if "Winograd" not in report.layouts["conv"]:
        pytest.skip("this CPU is better off without")
    assert report.memory is not None
    line = 2 * 4 * 36 * 64 * 56
    threads = resolve_target("llvm").spec.cores
    assert threads * line <= report.memory.workspace < 1.2 * threads * line


def test_winograd_takes_room_and_can_be_left_out() -> None:
    """With F(4x4) the image and the products are 2.25 times as large transformed."""
    conv = winograd(512, 28)
    report = tvm_edge.analyze(conv, "llvm", tuning_logs=False)
    if "Winograd" not in report.layouts["conv"]:
        pytest.skip("this CPU is better off without")
    memory = report.memory
    image = 4 * 512 * 28 * 28
    assert memory is not None and memory.workspace >= 2 * 2.25 * image
    assert memory.workspace < 2 * 2.25 * image + image / 2, "the padded image is a few lines"
    budget = memory.peak - image
    planned = tvm_edge.analyze(conv, "llvm", tuning_logs=False, memory_budget=budget)
    assert "Winograd" not in planned.layouts["conv"]
    assert planned.memory is not None and planned.memory.workspace < memory.workspace / 2
    taken = [plan.name for plan in planned.memory.plans if plan.taken]
    assert taken == ["no Winograd"]
    assert planned.memory.peak <= budget == planned.memory.budget
