"""GPU kernels: their launches, and their results against ONNX Runtime's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.relax import transform

import tvm_edge
from tests.compiler.steps import fuse_kernels, legalized, simplified
from tests.compiler.steps import lowered as lowered_model
from tests.onnx_models import reference
from tests.schedules.harness import Graph, Kernel, assert_close
from tvm_edge.compiler.build import build
from tvm_edge.frontend import load_model
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.report import KernelInfo
from tvm_edge.schedules.gpu import schedule

MALI = PRESETS["mali-t860"].spec
ORIN = PRESETS["jetson-orin-nano"].spec
TINY = DeviceSpec(
    key="test/tiny",
    kind="gpu",
    name="the least that OpenCL allows a GPU",
    cores=1,
    max_work_group_size=8,
    local_memory=1024,
    local_memory_kind="global",
)
SPECS = (MALI, ORIN, TINY)


def gpu_kernels(model: onnx.ModelProto, spec: DeviceSpec = MALI) -> list[Kernel]:
    """Legalise, fuse and schedule a model of which nothing leaves the GPU."""
    fused = gpu_functions(model)
    return [
        Kernel(gvar.name_hint, func, schedule(func, spec))
        for gvar, func in fused.functions_items()
        if isinstance(func, tirx.PrimFunc)
    ]


def gpu_functions(model: onnx.ModelProto) -> tvm.IRModule:
    """The unscheduled kernels of a model."""
    resolved = resolve_target("mali-t860")
    with resolved.cpu.target:
        simple = simplified(load_model(model, None).module)
    with resolved.target:
        legal = legalized(simple, resolved)
        return transform.DeadCodeElimination()(fuse_kernels(legal, resolved))


@dataclass(frozen=True)
class Launch:
    """The grid of one launch: work-groups, and work-items of a group."""

    groups: int
    items: int


def launches(func: tirx.PrimFunc) -> list[Launch]:
    """The launches of a scheduled function; fails if a store lies outside of their grids."""
    if func.attrs.get("tirx.is_scheduled", False):
        return _written_launches(func)
    body = func.body.block.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return [_launch(nest) for nest in nests]


def _written_launches(func: tirx.PrimFunc) -> list[Launch]:
    """Those of a kernel that was written and not scheduled: groups around items."""
    found: list[dict[str, int]] = [{}]

    def visit(attribute: tirx.AttrStmt) -> None:
        if attribute.attr_key != "thread_extent":
            return
        axis = str(attribute.node.thread_tag)
        assert axis not in found[-1], f"{axis} twice in a launch"
        found[-1][axis] = int(attribute.value)
        if axis == "blockIdx.x":  # around all others
            found.append({})

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, visit))
    assert not found.pop()

    def along(axes: dict[str, int], kind: str) -> int:
        return prod(extent for axis, extent in axes.items() if axis.startswith(kind))

    return [Launch(along(axes, "blockIdx"), along(axes, "threadIdx")) for axes in found]


def _launch(nest: tirx.Stmt) -> Launch:
    extents: dict[str, int] = {}

    def visit(loop: tirx.For) -> None:
        assert loop.kind != tirx.ForKind.PARALLEL, "a GPU has no parallel loops"
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            axis, extent = str(loop.thread_binding.thread_tag), int(loop.extent)
            assert extents.setdefault(axis, extent) == extent, f"{axis} has two extents"

    tvm_ffi.structural_walk(nest, (tirx.For, visit))
    # The outermost loop is the grid, so that every store is inside of it.
    assert isinstance(nest, tirx.For) and nest.thread_binding is not None
    assert str(nest.thread_binding.thread_tag).startswith("blockIdx")
    groups = prod(e for axis, e in extents.items() if axis.startswith("blockIdx"))
    items = prod(e for axis, e in extents.items() if axis.startswith("threadIdx"))
    assert any(axis.startswith("threadIdx") for axis in extents)
    return Launch(groups, items)


def local_bytes(func: tirx.PrimFunc) -> int:
    """Local memory that a scheduled function names, TVM's own for reductions left out."""
    found: list[tirx.Buffer] = []

    def visit(block: s_tir.SBlock) -> None:
        found.extend(block.alloc_buffers)

    def written(node: tirx.AllocBuffer) -> None:  # in a kernel that was written, not scheduled
        found.append(node.buffer)

    tvm_ffi.structural_walk(func.body, ((s_tir.SBlock, visit), (tirx.AllocBuffer, written)))
    return sum(prod(int(d) for d in b.shape) * 4 for b in found if b.scope() == "shared")


def assert_legal(kernel: Kernel, spec: DeviceSpec) -> None:
    """Every launch has a grid, and work-groups that the device takes."""
    for launch in launches(kernel.scheduled.func):
        assert 1 <= launch.items <= spec.max_work_group_size, kernel.name
        assert launch.groups < 2**31


def rules(kernels: tuple[KernelInfo, ...]) -> set[str]:
    """The rules that scheduled them."""
    return {kernel.rule for kernel in kernels}


def check_gpu(graph: Graph, target: str) -> tuple[KernelInfo, ...]:
    """Compare a graph on a GPU with ONNX Runtime; its kernels, none of which left the GPU."""
    model = graph.model()
    compiled = tvm_edge.compile(model, target, fallback="none")
    actual = compiled.run(graph.values)
    for name, value in reference(model, graph.values).items():
        assert_close(actual[name], value, f"{name} of\n{onnx.printer.to_text(model.graph)}")
    assert {kernel.device for kernel in compiled.report.kernels} == {target}
    return compiled.report.kernels


def opencl_source(model: onnx.ModelProto, target: str, precision: str = "float32") -> str:
    """The OpenCL C of all kernels that a model has on a target."""
    plan = lowered_model(model, target, "none", host="llvm", precision=precision)
    found: list[str] = []

    def collect(module: Any) -> None:
        if module.kind == "opencl":
            found.append(module.inspect_source())
        for imported in module.imports:
            collect(imported)

    collect(build(plan.module, plan.resolved)._executable.mod)
    return "\n".join(found)


def assert_golden(source: str, name: str) -> None:
    """Assert that generated code equals the committed file.

    ``TVM_EDGE_UPDATE_GOLDEN=1`` writes it anew: read the difference.
    """
    path = Path(__file__).parent / "golden" / name
    if os.environ.get("TVM_EDGE_UPDATE_GOLDEN") == "1":
        path.write_text(source)
    assert source == path.read_text()
