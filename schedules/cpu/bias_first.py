"""Accumulators that begin with the bias instead of zero: an addition less for each result.

Only sums of whole numbers, which are the same in any order.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = ["begin_with_bias"]


def begin_with_bias(func: tirx.PrimFunc, init: str, epilogue: str) -> tirx.PrimFunc:
    """Move ``sum + bias`` from the epilogue of a reduction to its initialisation.

    Parameters
    ----------
    func : PrimFunc
        Scheduled, the reduction decomposed.
    init, epilogue : str
        Names of the block that initialises the accumulators, and of the only one that reads them;
        both over the same axes.

    Returns
    -------
    PrimFunc
        `func` itself where the epilogue adds no such bias.
    """
    blocks = {block.name_hint: block for block in nodes_in(func.body, s_tir.SBlock)}
    start, end = blocks[init], blocks[epilogue]
    accumulators = start.writes[0].source
    found = _biased(end, accumulators)
    if found is None:
        return func
    addition, bias = found
    # By axis of the accumulators, what stands there in each block.
    own = dict(zip(addition.a.indices, start.body.indices, strict=True))
    moved = bias.source[tuple(own.get(index, index) for index in bias.indices)]
    region = [
        ir.Range.from_min_extent(index, tirx.const(1, index.ty.dtype)) for index in moved.indices
    ]

    def without(node: tirx.Add) -> tirx.Expr:
        return node.a if tvm_ffi.structural_equal(node, addition) else node

    def rewritten(block: s_tir.SBlock) -> s_tir.SBlock:
        reads, body = list(block.reads), block.body
        if block.name_hint == init:
            reads.append(tirx.BufferRegion(moved.source, region))
            body = tirx.BufferStore(accumulators, moved, body.indices)
        elif block.name_hint == epilogue:
            reads = [read for read in reads if not read.source.same_as(bias.source)]
            body = tvm_ffi.structural_map(body, (tirx.Add, without))
        else:
            return block
        return s_tir.SBlock(
            block.iter_vars,
            reads,
            block.writes,
            block.name_hint,
            body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, rewritten)))


def _biased(
    epilogue: s_tir.SBlock, accumulators: tirx.Buffer
) -> tuple[tirx.Add, ir.TensorLoad] | None:
    """``sum + bias`` in an epilogue that reads its accumulator there alone, and the bias."""
    loads = nodes_in(epilogue.body, ir.TensorLoad)
    own = [load for load in loads if load.source.same_as(accumulators)]
    for add in nodes_in(epilogue.body, tirx.Add):
        bias = add.b
        if len(own) != 1 or not isinstance(bias, ir.TensorLoad) or add.ty.dtype != "int32":
            continue
        if not isinstance(add.a, ir.TensorLoad) or not add.a.source.same_as(accumulators):
            continue
        read_once = sum(load.source.same_as(bias.source) for load in loads) == 1
        simple = all(
            constant(index) is not None or any(index.same_as(i) for i in add.a.indices)
            for index in bias.indices
        )
        if read_once and simple:
            return add, bias
    return None
