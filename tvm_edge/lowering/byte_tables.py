"""Look vectors of bytes up in tables of 256, by AVX-512's permutations of bytes.

LLVM makes a load for each lane of a load by a vector of indices. ``vpermi2b`` takes 64 bytes out of
128, by the low seven bits of an index; of two of them the highest bit selects.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.target import codegen

__all__ = ["ByteTables"]

_TABLE, _LANES = 256, 64
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"
_FEATURE = "avx512vbmi"


@tvm.transform.module_pass(opt_level=0, name="ByteTables")
class ByteTables:
    """Replace such loads in kernels of CPUs that have the instruction."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _has_instruction(func):
                updated.update_func(gvar, _with_permutations(func))
        return updated


def _has_instruction(func: tirx.PrimFunc) -> bool:
    target = func.attrs.get("target") or tvm.target.Target.current()
    if target is None or target.kind.name != "llvm":
        return False
    return bool(codegen.llvm_cpu_has_features(_FEATURE, target))


def _with_permutations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def look_up(load: ir.TensorLoad) -> tirx.Expr:
        (index, *others) = load.indices
        is_table = not others and list(load.source.shape) == [_TABLE]
        if not is_table or load.source.dtype != "uint8" or not isinstance(index, tirx.Cast):
            return load
        numbers = index.value
        dtype, _, lanes = str(numbers.ty.dtype).partition("x")
        if dtype != "uint8" or not lanes or _LANES % int(lanes):
            return load
        return _permuted(load.source, numbers, int(lanes))

    return tvm_ffi.structural_map(func, (ir.TensorLoad, look_up))


def _permuted(table: tirx.Buffer, numbers: tirx.Expr, lanes: int) -> tirx.Expr:
    whole = f"uint8x{_LANES}"
    wide = tirx.Var("wide", whole)
    halves: list[Any] = []
    for first in (0, _TABLE // 2):
        low, high = (table.vload([first + at], whole) for at in (0, _LANES))
        halves.append(tirx.call_llvm_pure_intrin(whole, _PERMUTE, low, wide, high))
    beyond = wide >= tirx.Broadcast(tirx.const(_TABLE // 2, "uint8"), _LANES)
    found = tirx.Select(beyond, halves[1], halves[0])
    if lanes == _LANES:
        return tirx.Let(wide, numbers, found)
    own = tirx.Var("own", f"uint8x{lanes}")
    repeated = tirx.Shuffle([own] * (_LANES // lanes), list(range(_LANES)))
    found = tirx.Shuffle([tirx.Let(wide, repeated, found)], list(range(lanes)))
    return tirx.Let(own, numbers, found)
