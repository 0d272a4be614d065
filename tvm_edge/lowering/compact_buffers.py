"""Buffers become as large as what is used of them, in the kernels where they are not yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.open_lengths import MOST_ELEMENTS, has_open_lengths

__all__ = ["CompactScheduled"]


@tvm.transform.module_pass(opt_level=0, name="CompactScheduled")
class CompactScheduled:
    """TVM's ``CompactBufferAllocation`` for kernels that a schedule made.

    A schedule leaves a buffer that holds a part of a tensor as large as the tensor. Kernels that
    were written loop by loop allocate what they need. Now and then an array of registers has an
    element too many. Finding that out of their unrolled bodies was a quarter of densenet121's
    compile time for tensor cores.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        scheduled = {
            gvar: func
            for gvar, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and _allocates_in_blocks(func)
        }
        if not scheduled:
            return mod
        updated = mod.clone()
        for gvar, func in _compact(scheduled).items():
            updated.update_func(gvar, func)
        return updated


def _compact(functions: dict[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    open_ones = {gvar: func for gvar, func in functions.items() if has_open_lengths(func)}
    fixed = {gvar: func for gvar, func in functions.items() if gvar not in open_ones}
    return _by_tvm(fixed) | _as_without_conditions(open_ones)


def _by_tvm(functions: dict[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    if not functions:
        return {}
    done = s_tir.transform.CompactBufferAllocation()(tvm.IRModule(functions))
    return {gvar: done[str(gvar.name_hint)] for gvar in functions}


def _allocates_in_blocks(func: tirx.PrimFunc) -> bool:
    return any(len(block.alloc_buffers) for block in nodes_in(func.body, s_tir.SBlock))


def _as_without_conditions(
    functions: dict[ir.GlobalVar, tirx.PrimFunc],
) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """Compact what a task holds, as if no block had a condition.

    By the condition that ends an open axis, what a tile of four rows uses is ``min(rows - first,
    4)`` rows to TVM, or it finds no bound. Without it TVM sees the tile. Of tensors between the
    loops over tasks every element is used; TVM would find a page of nested bounds for that, and
    put them in every index.
    """
    conditions: list[tirx.Expr] = []

    def taken_out(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        conditions.append(realize.predicate)
        return s_tir.SBlockRealize(realize.iter_values, True, realize.block)

    between = {gvar: _between_tasks(func) for gvar, func in functions.items()}
    bare = {
        gvar: _allocating(_with_realizes(func, taken_out), without=between[gvar])
        for gvar, func in functions.items()
    }
    left = iter(conditions)

    def put_back(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        return s_tir.SBlockRealize(realize.iter_values, next(left), realize.block)

    return {
        gvar: _of_known_size(_allocating(_with_realizes(func, put_back), beside=between[gvar]))
        for gvar, func in _by_tvm(bare).items()
    }


def _between_tasks(func: tirx.PrimFunc) -> list[tirx.Var]:
    """Tensors that no loop is around."""
    return [buffer for buffer in func.body.block.alloc_buffers if buffer.scope() == "global"]


def _allocating(
    func: tirx.PrimFunc, without: Sequence[tirx.Var] = (), beside: Sequence[tirx.Var] = ()
) -> tirx.PrimFunc:
    """Return a kernel whose outermost block allocates other buffers."""
    root = func.body.block
    buffers = [buffer for buffer in root.alloc_buffers if buffer not in set(without)]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        [*buffers, *beside],
        root.match_buffers,
        root.annotations,
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _with_realizes(
    func: tirx.PrimFunc, change: Callable[[s_tir.SBlockRealize], s_tir.SBlockRealize]
) -> tirx.PrimFunc:
    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, change)))


def _of_known_size(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give allocations the most that a length can be: a tile's, not ``min(rows, 4)``."""
    analyzer = sym.Analyzer()

    def most(length: tirx.Expr) -> tirx.Expr:
        if constant(length) is not None or not nodes_in(length, tirx.Min):
            return length
        bound = analyzer.const_int_bound(length).max_value
        return tirx.IntImm(str(length.ty.dtype), bound) if bound <= MOST_ELEMENTS else length

    larger: dict[tirx.Var, tirx.Var] = {}
    blocks = nodes_in(func.body, s_tir.SBlock)
    for buffer in (buffer for block in blocks for buffer in block.alloc_buffers):
        shape = [most(length) for length in buffer.shape]
        if not all(own.same_as(length) for own, length in zip(shape, buffer.shape, strict=True)):
            larger[buffer] = tirx.decl_buffer(
                shape, buffer.dtype, str(buffer.name), scope=buffer.scope()
            )
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda var: larger.get(var, var)))
    return func.with_body(body)
