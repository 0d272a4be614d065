"""Broadcast elements of vectors that are loaded whole, for AArch64.

A register tile multiplies a vector of filters by one number of each pixel. NEON's ``fmla`` and
``sdot`` take that number as an element of a vector: one load serves four neighbouring channels.
LLVM keeps a load for each of them, and runs out of registers: 14 pixels by 2 blocks in float32 had
60 loads and stores of spilled vectors for 112 ``fmla``.
"""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_edge.schedules.accesses import constant

__all__ = ["VectorElements"]

_BYTES = 16
"""Size of a vector."""


@tvm.transform.module_pass(opt_level=0, name="VectorElements")
class VectorElements:
    """Take what is broadcast out of aligned vectors, in kernels for AArch64."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _is_aarch64(func):
                body = tvm_ffi.structural_map(func.body, (tirx.Broadcast, _of_vector))
                updated.update_func(gvar, func.with_body(body))
        return updated


def _is_aarch64(func: tirx.PrimFunc) -> bool:
    target = func.attrs.get("target") or tvm.target.Target.current()
    triple = "" if target is None else str(target.attrs.get("mtriple", ""))
    return triple.startswith(("aarch64", "arm64"))


def _of_vector(node: tirx.Broadcast) -> tirx.Expr:
    """Return a broadcast of a vector's element in place of one of a load, where there is one."""
    words: list[str] = []
    value = node.value
    while isinstance(value, ir.Call) and value.op.name == "tirx.reinterpret":
        # Four neighbours of 8 bits, or two of bfloat16 first as bits, as one word.
        words.insert(0, str(value.ty.dtype).partition("x")[0])
        (value,) = value.args
    if not isinstance(value, ir.TensorLoad) or len(value.indices) != 1:
        return node
    (index,) = value.indices
    own = 1
    if isinstance(index, tirx.Ramp):
        if constant(index.stride) != 1:
            return node
        index, own = index.base, constant(index.lanes) or 0
    if bool(words) != (own > 1):
        return node
    buffer = value.source
    lanes = _BYTES * 8 // int(buffer.dtype.bits)
    place = _place(index, lanes)
    if place is None or place % own or (constant(node.lanes) or 0) * own != lanes:
        return node
    size = prod(constant(dim) or 0 for dim in buffer.shape)
    if buffer.scope() == "local" or size == 0 or size % lanes:
        return node
    vector = buffer.vload([index - place], f"{buffer.dtype}x{lanes}")
    for word in words:
        count = _BYTES * 8 // int(tvm.DataType(word).bits)
        vector = tirx.reinterpret(f"{word}x{count}", vector)
    return tirx.Broadcast(tirx.Shuffle([vector], [place // own]), node.lanes)


def _place(index: tirx.Expr, lanes: int) -> int | None:
    """Return the place of an element in its vector; ``None`` where that is not one number."""
    multiple = sym.Analyzer().modular_set(index)
    return None if multiple.coeff % lanes else multiple.base % lanes
