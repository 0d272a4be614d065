"""Broadcasts of float16 on x86, by words that hold a number twice.

Of the lower half of a word LLVM would load 16 bits, and shuffle them into all lanes. A word of 32
bits goes there by the load.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import constant

__all__ = ["WordBroadcasts"]


@tvm.transform.module_pass(opt_level=0, name="WordBroadcasts")
class WordBroadcasts:
    """Broadcast the words that :func:`tvm_edge.schedules.float16.as_word` makes."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                body = tvm_ffi.structural_map(func.body, (tirx.Broadcast, _of_word))
                updated.update_func(gvar, func.with_body(body))
        return updated


def _of_word(node: tirx.Broadcast) -> tirx.Expr:
    half, lanes = node.value, constant(node.lanes) or 0
    if not isinstance(half, ir.Call) or half.op.name != "tirx.reinterpret" or lanes % 2:
        return node
    (cast,) = half.args
    if str(half.ty.dtype) != "float16" or not isinstance(cast, tirx.Cast):
        return node
    if str(cast.value.ty.dtype) != "uint32":
        return node
    return tirx.reinterpret(f"float16x{lanes}", tirx.Broadcast(cast.value, lanes // 2))
