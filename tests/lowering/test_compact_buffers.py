"""Buffers of kernels that a schedule made shrink; kernels that were written stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx, topi

from tvm_edge.hardware import resolve_target
from tvm_edge.lowering import cpu_pipeline, opencl_pipeline
from tvm_edge.lowering.compact_buffers import CompactScheduled
from tvm_edge.schedules import cpu, gpu


def convolution(target: str, passes: list[Any]) -> tvm.IRModule:
    """A convolution scheduled for a device, as it is in front of the pass."""
    data, weight = te.placeholder((1, 16, 20, 20)), te.placeholder((24, 16, 3, 3))
    func = te.create_prim_func([data, weight, topi.nn.conv2d_nchw(data, weight, 1, 1, 1)])
    return in_front(func, target, passes)


def product_of_open_rows(
    target: str = "mali-g76", passes: list[Any] = opencl_pipeline.PASSES, multiple: int = 1
) -> tvm.IRModule:
    """A product whose number of rows only the run tells, as it is in front of the pass."""
    data = te.placeholder((te.var("rows", "int64") * multiple, 16))
    func = te.create_prim_func(
        [data, weight := te.placeholder((16, 70)), topi.matmul(data, weight)]
    )
    return in_front(func, target, passes)


def in_front(func: tirx.PrimFunc, target: str, passes: list[Any]) -> tvm.IRModule:
    """Schedule a kernel for a device, and run the passes before the one that is tested."""
    resolved = resolve_target(target)
    rules = cpu if resolved.kind == "llvm" else gpu
    made = rules.schedule(func.with_attr("tirx.noalias", True), resolved.spec).func
    mod = tvm.IRModule({"main": made.with_attr("global_symbol", "main")})
    place = next(i for i, one in enumerate(passes) if one.info.name == "CompactScheduled")
    bound = tirx.transform.BindTarget(resolved.target)(mod)
    with resolved.target:
        return tvm.transform.Sequential(passes[:place])(bound)


def sizes(func: tirx.PrimFunc) -> list[int]:
    """Elements of each buffer that a kernel allocates."""
    found: list[int] = []

    def visit(node: Any) -> None:
        buffers = node.alloc_buffers if isinstance(node, s_tir.SBlock) else [node.buffer]
        found.extend(int(np.prod([int(dim) for dim in buffer.shape])) for buffer in buffers)

    tvm_ffi.structural_walk(func.body, ((s_tir.SBlock, tirx.AllocBuffer), visit))
    return found


def test_of_a_schedule() -> None:
    mod = convolution("raspberry-pi/4b-aarch64", cpu_pipeline.PASSES)
    compact = CompactScheduled()(mod)
    tvm.ir.assert_structural_equal(compact, s_tir.transform.CompactBufferAllocation()(mod))
    assert sum(sizes(compact["main"])) < sum(sizes(mod["main"]))


@pytest.mark.parametrize("target", ["mali-g76", "adreno-640"])
def test_of_a_written_kernel(target: str) -> None:
    mod = convolution(target, opencl_pipeline.PASSES)
    assert sizes(mod["main"])
    assert CompactScheduled()(mod)["main"].same_as(mod["main"])
    # There is nothing to gain.
    assert sizes(s_tir.transform.CompactBufferAllocation()(mod)["main"]) == sizes(mod["main"])


@pytest.mark.parametrize("multiple", [2, 7])
def test_registers_of_a_multiple_of_an_open_axis(multiple: int) -> None:
    """To TVM a tile uses ``min(rows, 4) * 2``: still a tile's number of registers."""
    before = product_of_open_rows("raspberry-pi/4b-aarch64", cpu_pipeline.PASSES, multiple)
    assert 0 < max(sizes(CompactScheduled()(before)["main"])) <= 128


def test_registers_of_an_open_axis() -> None:
    """A tile of rows is as long as itself: the condition that ends the axis says nothing of it."""
    before = product_of_open_rows()
    assert 0 < max(sizes(CompactScheduled()(before)["main"])) <= 64


def test_conditions_are_put_back() -> None:
    before = product_of_open_rows()

    def conditions(mod: tvm.IRModule) -> list[str]:
        found: list[str] = []
        tvm_ffi.structural_walk(
            mod["main"].body, (s_tir.SBlockRealize, lambda node: found.append(str(node.predicate)))
        )
        return found

    assert conditions(CompactScheduled()(before)) == conditions(before)
    assert any("rows" in each for each in conditions(before))
