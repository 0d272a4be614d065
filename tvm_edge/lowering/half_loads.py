"""Loads of vectors in halves, for cores that start nothing beside a load of 128 bits.

A Cortex-A53 or A55 takes two cycles for one, in which no multiply-add starts. Loads of 64 bits,
one into a vector's lower half and one into a general register that is then inserted, start beside
multiply-adds. LLVM would put the halves together again: it leaves an atomic load alone, whose
weakest kind is a plain load.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_edge.hardware.cpu import IN_ORDER
from tvm_edge.schedules.accesses import constant, nodes_in

__all__ = ["HalfLoads", "is_load", "loads_in_halves"]

_REINTERPRET = ir.Op.get("tirx.reinterpret")
_BITS = 128
_NAME = "tvm_edge_load_halves"
_CODE = f"""
define <2 x i64> @{_NAME}(ptr %at) alwaysinline {{
  %low = load i64, ptr %at, align 8
  %beyond = getelementptr i8, ptr %at, i64 8
  %high = load atomic i64, ptr %beyond unordered, align 8
  %half = insertelement <2 x i64> poison, i64 %low, i32 0
  %both = insertelement <2 x i64> %half, i64 %high, i32 1
  ret <2 x i64> %both
}}
"""


@tvm.transform.module_pass(opt_level=0, name="HalfLoads")
class HalfLoads:
    """Load operands of accumulators in halves, in kernels for such cores."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and loads_in_halves(func):
                body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, _in_halves))
                if not body.same_as(func.body):
                    code = ir.StringImm(_CODE)
                    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", code, body)
                    updated.update_func(gvar, func.with_body(body))
        return updated


def loads_in_halves(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel is for such a core."""
    target = func.attrs.get("target") or tvm.target.Target.current()
    return target is not None and str(target.attrs.get("mcpu", "")) in IN_ORDER


def is_load(node: tirx.Expr) -> bool:
    """Return whether an expression is a vector that is loaded in halves."""
    if not isinstance(node, ir.Call) or not node.op.same_as(_REINTERPRET):
        return False
    (both,) = node.args
    return isinstance(both, ir.Call) and _NAME in map(_text, both.args)


def _text(argument: tirx.Expr) -> str:
    return argument.value if isinstance(argument, ir.StringImm) else ""


def _in_halves(store: tirx.BufferStore) -> tirx.BufferStore:
    """Return an addition to an accumulator whose operands are loaded in halves."""
    if store.buffer.scope() != "local":
        return store
    loads = nodes_in(store.value, ir.TensorLoad)
    if not any(load.source.same_as(store.buffer) for load in loads):
        return store

    def halves(load: ir.TensorLoad) -> tirx.Expr:
        index = load.indices[-1]
        bits = int(load.source.dtype.bits)
        if load.source.scope() == "local" or not isinstance(index, tirx.Ramp):
            return load
        lanes = constant(index.lanes) or 0
        aligned = sym.Analyzer().modular_set(index.base)
        if lanes * bits != _BITS or constant(index.stride) != 1:
            return load
        if aligned.coeff % lanes or aligned.base % lanes:
            return load
        first = tirx.address_of(load.source[index.base])
        both = tirx.call_extern("int64x2", _NAME, first)
        return tirx.reinterpret(str(load.ty.dtype), both)

    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, halves))
    return tirx.BufferStore(store.buffer, value, store.indices)
