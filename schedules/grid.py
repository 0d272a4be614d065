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
from math import inf, prod

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules import cpu, gpu
from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.base import WORKSPACE, Scheduled, apply_first
from tvm_edge.schedules.placed_buffers import with_placed_buffers

__all__ = ["GRID", "as_grid", "schedule", "sequence"]

GRID = "tvm_edge.grid"
"""Set on kernels with the loops of a CPU, of which launches are to be made."""

_RULES = tuple(rule for rule in cpu.RULES if rule.origin != "fallback")

# Bytes of private arrays: drivers take them from the stacks of their threads, of some MiB.
_MOST_PRIVATE = 1 << 20

_SERIAL, _PARALLEL = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL


def schedule(func: tirx.PrimFunc, spec: DeviceSpec) -> Scheduled:
    """Schedule a kernel for an OpenCL device that is a CPU.

    A CPU rule that knows the kernel is used where its result can be launched, else the rules of
    GPUs. The loops become launches after the passes that work on scheduled kernels.

    Kernels that were written with their loops are either a GPU's, which launch themselves, or a
    CPU's, whose parallel loops are launched here.
    """
    written = func.attrs is not None and func.attrs.get("tirx.is_scheduled", False)
    if written and not _has_parallel(func.body):
        return gpu.schedule(func, spec)
    made = apply_first(_RULES, func, spec)
    if made is None or as_grid(made.func) is None:
        assert not written, "the loops of a CPU outside of a grid would run on the host"
        return gpu.schedule(func, spec)
    return replace(made, func=made.func.with_attr(GRID, True))


def as_grid(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Prepare a scheduled CPU kernel to have its loop nests launched.

    Each nest that cores do not share gets a grid of one work-group. Parallel loops stay loops
    until their remainders have been split off, see
    :class:`tvm_edge.lowering.opencl_grids.LaunchLoops`.

    Returns
    -------
    PrimFunc or None
        ``None`` for what cannot be launched: functions that are not made of blocks, nests of
        which cores share only a part, too much private memory.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    root = func.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    if not all(_is_shared(nest) or not _has_parallel(nest) for nest in nests):
        return None
    private: list[tirx.Buffer] = []
    shared: list[tirx.Buffer] = []
    for buffer in root.alloc_buffers:
        users = sum(_uses(nest, buffer) for nest in nests)
        (shared if users > 1 else private).append(buffer)
    launches = [nest if _is_shared(nest) else _alone(nest) for nest in nests]
    body, local = _in_private_memory(sequence(launches), private)
    block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=local)
    made = tirx.PrimFunc([*func.params, *shared], s_tir.SBlockRealize([], True, block))
    if _private_bytes(made) > _MOST_PRIVATE:
        return None
    return made.with_attrs(func.attrs).with_attr(WORKSPACE, len(shared))


def _private_bytes(func: tirx.PrimFunc) -> float:
    """Bytes of the arrays of a task, once each is as large as its part of the tensor."""
    total = 0.0
    for block in nodes_in(with_placed_buffers(func).body, s_tir.SBlock):
        for buffer in block.alloc_buffers:
            sizes = [constant(dim) for dim in buffer.shape]
            known = prod(size for size in sizes if size is not None)
            total += inf if None in sizes else known * tvm.DataType(str(buffer.dtype)).itemsize
    return total


def sequence(stmts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement out of one or more."""
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


def _is_shared(nest: tirx.Stmt) -> bool:
    """Return whether the outermost loop that runs more than once is the only parallel one."""
    while isinstance(nest, tirx.For) and nest.kind == _SERIAL and constant(nest.extent) == 1:
        nest = nest.body
    is_parallel = isinstance(nest, tirx.For) and nest.kind == _PARALLEL
    return is_parallel and not _has_parallel(nest.body)


def _has_parallel(stmt: tirx.Stmt) -> bool:
    return any(loop.kind == _PARALLEL for loop in nodes_in(stmt, tirx.For))


def _alone(nest: tirx.Stmt) -> tirx.Stmt:
    """A nest as a work-group that has the device to itself."""
    axis = tirx.IterVar(
        None, tirx.Var("blockIdx.x", "int32"), tirx.IterVar.ThreadIndex, "blockIdx.x"
    )
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    group = tirx.Var("group", "int32")
    return tirx.For(group, zero, one, tirx.ForKind.THREAD_BINDING, nest, axis)


def _uses(stmt: tirx.Stmt, buffer: tirx.Buffer) -> bool:
    return any(node.source.same_as(buffer) for node in nodes_in(stmt, ir.TensorLoad)) or any(
        node.buffer.same_as(buffer) for node in nodes_in(stmt, tirx.BufferStore)
    )


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
