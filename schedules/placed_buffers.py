"""Buffers of a scheduled kernel at the place and of the size that lowering gives them."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx

from tvm_edge.schedules.accesses import nodes_in

__all__ = ["with_placed_buffers"]

_PASSES = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


def with_placed_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose buffers are as large as what a task or a work-group keeps in them.

    A schedule leaves a buffer that holds a part of a tensor as large as the tensor. Kernels that
    were written loop by loop have them so already.
    """
    scheduled = any(len(block.iter_vars) for block in nodes_in(func.body, s_tir.SBlock))
    if not scheduled:
        return func
    return _PASSES(tvm.IRModule({"main": func}))["main"]
