"""Buffers become as large as what is used of them, in the kernels where they are not yet."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in

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
        compact = s_tir.transform.CompactBufferAllocation()(tvm.IRModule(scheduled))
        updated = mod.clone()
        for gvar, func in compact.functions_items():
            updated.update_func(mod.get_global_var(str(gvar.name_hint)), _of_known_size(func))
        return updated


def _allocates_in_blocks(func: tirx.PrimFunc) -> bool:
    return any(len(block.alloc_buffers) for block in nodes_in(func.body, s_tir.SBlock))


def _of_known_size(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give allocations the most that a length can be, where it is the lesser of two.

    A tile of 14 pixels of an open axis is as long as ``min(w, 14)`` to TVM, and registers are not
    allocated by the length.
    """
    larger: dict[tirx.Buffer, tirx.Buffer] = {}
    for block in nodes_in(func.body, s_tir.SBlock):
        for buffer in block.alloc_buffers:
            if any(isinstance(length, tirx.Min) for length in buffer.shape):
                shape = [_most(length) for length in buffer.shape]
                larger[buffer] = tirx.decl_buffer(
                    shape, buffer.dtype, str(buffer.name), scope=buffer.scope()
                )
    if not larger:
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda var: larger.get(var, var)))
    return func.with_body(body)


def _most(length: tirx.Expr) -> tirx.Expr:
    if isinstance(length, tirx.Min):
        return next((a for a in (length.a, length.b) if constant(a) is not None), length)
    return length
