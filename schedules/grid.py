"""Schedules for OpenCL devices that are CPUs: those of a CPU, as grids of work-groups.

Such a device runs a work-group on one core, as a CPU runs an iteration of a parallel loop. A
work-group here is a single work-item that does a whole task with the vectors and register tiles
that the rules of a CPU chose: nothing is left for the device's compiler to vectorise.

Each loop nest of a kernel is a launch. What two launches share is workspace, memory of the device;
what a task keeps to itself is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules import cpu, gpu
from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.base import WORKSPACE, Scheduled, apply_first
from tvm_edge.schedules.gpu.launch import guard_empty_grids

__all__ = ["GRID", "as_grid", "schedule"]

GRID = "tvm_edge.grid"
"""Set on kernels with the loops of a CPU that :func:`as_grid` has to make launches of."""

_SERIAL, _PARALLEL = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL


def schedule(func: tirx.PrimFunc, spec: DeviceSpec) -> Scheduled:
    """Schedule a kernel for an OpenCL device that is a CPU.

    By the rules of CPUs where the result can be launched, and else by those of GPUs. The loops
    become launches after the passes that work on scheduled kernels.
    """
    written = func.attrs is not None and func.attrs.get("tirx.is_scheduled", False)
    made = None if written else apply_first(cpu.RULES, func, spec)
    if made is None or as_grid(made.func) is None:
        return gpu.schedule(func, spec)
    return replace(made, func=made.func.with_attr(GRID, True))


def as_grid(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The launches that do what the loop nests of a scheduled CPU kernel do.

    Returns
    -------
    PrimFunc or None
        ``None`` for what cannot be launched like this: functions that are not made of blocks,
        cores that share a part of a nest only, workspace of symbolic size.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    root = func.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    launches = [_launch(nest) for nest in nests]
    if any(launch is None for launch in launches):
        return None
    private, shared = [], []
    for buffer in root.alloc_buffers:
        users = sum(_uses(nest, buffer) for nest in nests)
        (shared if users > 1 else private).append(buffer)
    if any(constant(dim) is None for buffer in shared for dim in buffer.shape):
        return None
    body = launches[0] if len(launches) == 1 else tirx.SeqStmt(launches)
    body, local = _in_private_memory(body, private)
    block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=local)
    made = tirx.PrimFunc([*func.params, *shared], s_tir.SBlockRealize([], True, block))
    made = made.with_attrs(func.attrs).with_attr(WORKSPACE, len(shared)).without_attr(GRID)
    return guard_empty_grids(made)


def _launch(nest: tirx.Stmt) -> tirx.Stmt | None:
    """A nest as a grid: a work-group for each iteration of its parallel loop, or one for all."""
    outer = []
    stmt = nest
    while isinstance(stmt, tirx.For) and stmt.kind == _SERIAL and constant(stmt.extent) == 1:
        outer.append(stmt)
        stmt = stmt.body
    if not (isinstance(stmt, tirx.For) and stmt.kind == _PARALLEL):
        one = tirx.const(1, "int32")
        return None if _is_parallel(nest) else _bound(tirx.Var("group", "int32"), one, nest)
    if _is_parallel(stmt.body):
        return None
    grid = _bound(stmt.loop_var, stmt.extent, stmt.body)
    for loop in reversed(outer):
        grid = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, grid)
    return grid


def _bound(var: tirx.Var, extent: tirx.Expr, body: tirx.Stmt) -> tirx.Stmt:
    zero = tirx.const(0, str(var.ty.dtype))
    axis = tirx.IterVar(
        None, tirx.Var("blockIdx.x", str(var.ty.dtype)), tirx.IterVar.ThreadIndex, "blockIdx.x"
    )
    return tirx.For(var, zero, extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _is_parallel(stmt: tirx.Stmt) -> bool:
    found = False

    def on_loop(loop: tirx.For) -> None:
        nonlocal found
        found |= loop.kind == _PARALLEL

    tvm_ffi.structural_walk(stmt, (tirx.For, on_loop))
    return found


def _uses(stmt: tirx.Stmt, buffer: tirx.Buffer) -> bool:
    found = False

    def load(node: ir.TensorLoad) -> None:
        nonlocal found
        found |= node.source.same_as(buffer)

    def store(node: tirx.BufferStore) -> None:
        nonlocal found
        found |= node.buffer.same_as(buffer)

    tvm_ffi.structural_walk(stmt, ((ir.TensorLoad, load), (tirx.BufferStore, store)))
    return found


def _in_private_memory(
    body: tirx.Stmt, buffers: Sequence[tirx.Buffer]
) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
    """A statement whose `buffers` lie in private memory, and these."""
    moved = {
        buffer: tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope="local")
        for buffer in buffers
    }

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in moved:
            return node
        return tirx.BufferStore(moved[node.buffer], node.value, node.indices)

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        return moved[node.source][tuple(node.indices)] if node.source in moved else node

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if node.source not in moved:
            return node
        return tirx.BufferRegion(moved[node.source], node.region)

    body = tvm_ffi.structural_map(
        body, ((tirx.BufferStore, store), (ir.TensorLoad, load), (ir.TensorRegion, region))
    )
    return body, list(moved.values())
