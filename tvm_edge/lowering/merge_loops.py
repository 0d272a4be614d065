"""The parallel loops of a composed kernel's members as one, on the cores of a CPU.

A pool of threads is woken once and not once for each member, and none of it waits for the end of
one member before it begins with the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.lowering.merge_stages import Joined, merge_stages
from tvm_edge.lowering.outline_members import with_members
from tvm_edge.schedules.accesses import constant

__all__ = ["MergeLoops"]

_MOST = 2**31 - 1


@tvm.transform.module_pass(opt_level=0, name="MergeLoops")
class MergeLoops:
    """Merge the outermost parallel loops of composed kernels for CPUs, stage by stage.

    Runs after ``LoopPartition``, which splits remainders off, and before ``StorageRewrite``, which
    then knows that arrays of different members are in use at the same time.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        merge = partial(merge_stages, take_apart=_parallel, merge=_merged)
        return with_members(mod, merge, _is_for_cpu)


def _is_for_cpu(func: tirx.PrimFunc) -> bool:
    target = None if func.attrs is None else func.attrs.get("target")
    return target is not None and target.kind.name == "llvm"


def _parallel(stmt: tirx.Stmt) -> tirx.For | None:
    """A loop that threads share, of which it is known how often it runs."""
    if not isinstance(stmt, tirx.For) or stmt.kind != tirx.ForKind.PARALLEL:
        return None
    steps = 1 if stmt.step is None else constant(stmt.step)
    return stmt if steps == 1 and (constant(stmt.extent) or 0) > 0 else None


def _merged(_stage: int, loops: Mapping[int, tirx.For]) -> list[Joined]:
    """One loop out of those of a stage."""
    extents = [int(loop.extent) for loop in loops.values()]
    if len(loops) == 1 or sum(extents) * max(extents) > _MOST:
        return [([number], loop) for number, loop in loops.items()]
    task = tirx.Var("task", "int32")
    body = _chosen(task, sum(extents), list(loops.values()))
    zero, total = tirx.const(0, "int32"), tirx.const(sum(extents), "int32")
    return [(list(loops), tirx.For(task, zero, total, tirx.ForKind.PARALLEL, body))]


def _chosen(task: tirx.Expr, total: int, loops: Sequence[tirx.For]) -> tirx.Stmt:
    """Iteration `task` of the `total` ones of all loops.

    Members are dealt out evenly: a thread takes a range of tasks, and so its share of each member,
    however much more an iteration of one costs than one of another. Before task ``i`` come
    ``i * n // total`` of the `n` iterations of the first member.
    """
    first, *rest = loops
    if not rest:
        return _iteration(first, task)
    count = int(first.extent)
    before = tirx.truncdiv(task * count, total)
    is_own = before < tirx.truncdiv((task + 1) * count, total)
    others = _chosen(task - before, total - count, rest)
    return tirx.IfThenElse(is_own, _iteration(first, before), others)


def _iteration(loop: tirx.For, number: tirx.Expr) -> tirx.Stmt:
    dtype = str(loop.loop_var.ty.dtype)
    place = loop.min + (number if dtype == "int32" else tirx.Cast(dtype, number))
    own = tirx.Var(loop.loop_var.name, dtype)

    def renamed(var: tirx.Var) -> tirx.Var:
        return own if var.same_as(loop.loop_var) else var

    body = tvm_ffi.structural_map(loop.body, (tirx.Var, renamed))
    return tirx.SeqStmt([tirx.Bind(own, place), body])
