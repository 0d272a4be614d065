"""Devices take what sorts and scans launch: sizes of work-groups, and their local memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tests.schedules.gpu.harness import MALI, ORIN, TINY
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, Tensor
from tvm_edge.schedules.vision import gpu
from tvm_edge.schedules.vision.compaction import valid_rows
from tvm_edge.schedules.vision.decode import decode_locations
from tvm_edge.schedules.vision.nonzero import count_nonzero, nonzero_indices
from tvm_edge.schedules.vision.scatter import apply_sorted, element_targets, slice_targets

LITTLE = replace(
    ORIN, key="test/little-local-memory", local_memory=16 << 10, max_work_group_size=256
)
SPECS = (MALI, ORIN, TINY, LITTLE)


@dataclass
class Launch:
    """One GPU kernel: work-groups, work-items of a group, and bytes that a group shares."""

    groups: int = 0
    items: int = 0
    local_bytes: int = 0


def launches(func: tirx.PrimFunc) -> list[Launch]:
    """Every launch of a function, in order."""
    found: list[Launch] = []

    def visit(node: tirx.Stmt) -> None:
        if isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
            if str(node.node.thread_tag) == "blockIdx.x":
                found.append(Launch(groups=int(node.value)))
            else:
                assert str(node.node.thread_tag) == "threadIdx.x"
                found[-1].items = int(node.value)
        elif isinstance(node, tirx.AllocBuffer) and node.buffer.scope() == "shared":
            width = tvm.DataType(node.buffer.dtype).bits // 8
            found[-1].local_bytes += prod(int(size) for size in node.buffer.shape) * width

    _walk(func.body, visit)
    return found


def _walk(body: tirx.Stmt, visit: Callable[[tirx.Stmt], None]) -> None:
    """Outer statements first."""
    tvm_ffi.structural_walk(body, (tirx.Stmt, visit), order="pre")


@cache
def kernels(spec: DeviceSpec) -> dict[str, Kernel]:
    """Short and long, few and many, narrow and wide."""
    made: dict[str, Kernel] = {}
    for rows, length in [(3000, 2), (1, 1793), (80, 8732), (1, 1_000_000)]:
        for dtype in ("float32", "int64"):
            name = f"{rows} x {length} {dtype}"
            how = {"index_dtype": "int32"}
            made[f"argsort {name}"] = gpu.argsort_rows(
                rows, length, dtype, spec, descending=False, **how
            )
            made[f"top-k {name}"] = gpu.top_k_rows(
                rows, length, -(-length // 100), dtype, spec, largest=True, **how
            )
            made[f"segments {name}"] = gpu.argsort_segments(
                rows * length, rows + 1, dtype, "int32", spec, descending=False, **how
            )
            made[f"scan {name}"] = gpu.scan_lines(rows, length, 1, dtype, dtype, spec)
            made[f"scan across {name}"] = gpu.scan_lines(1, length, rows, dtype, dtype, spec)
    return made | boxes(spec)


def boxes(spec: DeviceSpec) -> dict[str, Kernel]:
    """What finds, moves and scatters."""
    made: dict[str, Kernel] = {}
    for count in (1, 24564, 1_000_000):
        how: dict[str, Any] = {"score_threshold": 0.1, "id_index": 0, "score_index": 1}
        made[f"valid rows {count}"] = valid_rows(2, count, 6, "float32", spec, **how)
        how = {"clip": True, "threshold": 0.1, "variances": (0.1, 0.1, 0.2, 0.2)}
        made[f"locations {count}"] = decode_locations(2, 21, count, "float32", spec, **how)
        data: Tensor = ((count, 3), "float32")
        made[f"count {count}"] = count_nonzero(*data, spec)
        made[f"nonzero {count}"] = nonzero_indices(*data, spec)
        indices: Tensor = ((count, 1), "int64")
        made[f"slices {count}"] = slice_targets(data, indices, 1, spec, "int32")
        made[f"elements {count}"] = element_targets(data, indices, 1, spec, "int32")
        for reduction in ("update", "add"):
            how = {"axes": 1, "reduction": reduction, "spec": spec}
            made[f"{reduction} {count}"] = apply_sorted(data, ((count,), "int32"), data, **how)
    return made


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.key))
def test_launches_are_within_the_device(spec: DeviceSpec) -> None:
    """Local memory only where it is on the chip: Mali's is main memory."""
    room = spec.local_memory if spec.local_memory_kind == "dedicated" else 0
    for name, kernel in kernels(spec).items():
        found = launches(kernel.func)
        assert found, name
        for launch in found:
            assert 1 <= launch.items <= spec.max_work_group_size, (name, launch)
            assert 1 <= launch.groups < 2**31, (name, launch)
            assert launch.local_bytes <= room, (name, launch)


def test_every_store_is_inside_of_a_launch() -> None:
    """Outside of one it would be the host's, which cannot reach the device's memory."""
    for name, kernel in kernels(ORIN).items():
        body = kernel.func.body.block.body
        while isinstance(body, tirx.AttrStmt) and body.attr_key != "thread_extent":
            body = body.body
        for part in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
            assert isinstance(part, tirx.AttrStmt), (name, type(part))
            assert part.attr_key == "thread_extent", name


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_kernels_take_tensors_and_nothing_else(dtype: str) -> None:
    """TVM shares expressions between kernels by handing values over; CUDA takes no uint64."""
    target = tvm.target.Target("opencl", host="llvm")
    for rows, length in [(7, 300), (2, 9000)]:
        kernel = gpu.argsort_rows(
            rows, length, dtype, ORIN, descending=True, index_dtype="int32", values=True
        )
        with target:
            source = tvm.compile(kernel.func, target=target).mod.imports[0].inspect_source()
        signatures = re.findall(r"__kernel void \w+\((.*?)\) \{", source)
        assert signatures
        for signature in signatures:
            assert all("*" in parameter for parameter in signature.split(",")), signature
