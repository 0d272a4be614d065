"""Buffers become as large as what is used of them, in the kernels where they are not yet."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = ["CompactScheduled"]

_NO_BOUND = 2**31 - 1
"""What TVM has for the length of a buffer when it found no bound."""


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


def _compact(functions: dict[tvm.ir.GlobalVar, tirx.PrimFunc]) -> dict[Any, tirx.PrimFunc]:
    compact = _by_tvm(functions)
    # TVM bounds what a tile uses by the condition that ends an open axis, as by min(w - 4 * x, 4)
    # or by all of it. Without the condition it sees the tile.
    open_length = {g: functions[g] for g, func in compact.items() if _allocates_open(func)}
    whole = _by_tvm({g: _without_conditions(func) for g, func in open_length.items()})
    return compact | {g: _allocating_as(compact[g], func) for g, func in whole.items()}


def _by_tvm(functions: dict[Any, tirx.PrimFunc]) -> dict[Any, tirx.PrimFunc]:
    if not functions:
        return {}
    done = s_tir.transform.CompactBufferAllocation()(tvm.IRModule(functions))
    return {gvar: done[str(gvar.name_hint)] for gvar in functions}


def _allocates_in_blocks(func: tirx.PrimFunc) -> bool:
    return any(len(block.alloc_buffers) for block in nodes_in(func.body, s_tir.SBlock))


def _allocates_open(func: tirx.PrimFunc) -> bool:
    lengths = [constant(length) for buffer in _allocated(func) for length in buffer.shape]
    return any(length is None or length >= _NO_BOUND for length in lengths)


def _allocated(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    blocks = nodes_in(func.body, s_tir.SBlock)
    return [buffer for block in blocks for buffer in block.alloc_buffers]


def _without_conditions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def always(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        return s_tir.SBlockRealize(realize.iter_values, True, realize.block)

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, always)))


def _allocating_as(func: tirx.PrimFunc, whole: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give allocations the lengths that they have in a kernel without conditions."""
    larger: dict[tirx.Var, tirx.Var] = {}
    for own, more in zip(_allocated(func), _allocated(whole), strict=True):
        shape = [_most(length) for length in more.shape]
        if not tvm_ffi.structural_equal(tvm_ffi.convert(shape), own.shape):
            larger[own] = tirx.decl_buffer(shape, own.dtype, str(own.name), scope=own.scope())
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda var: larger.get(var, var)))
    return func.with_body(body)


def _most(length: tirx.Expr) -> tirx.Expr:
    """Return the most that a length can be: a tile of four rows is ``min(rows, 4)`` to TVM."""
    if isinstance(length, tirx.Min):
        return next((a for a in (length.a, length.b) if constant(a) is not None), length)
    return length
