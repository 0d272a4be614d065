"""Bfloat16 in kernels of CPUs: bits that are moved, widened by a shift, and rounded.

TVM makes arrays of bfloat16 in a kernel float32, and rounds by arithmetic that makes infinity or
zero of a NaN. Here they stay 16 bits. A vector is rounded to the nearest, ties to even, by one
instruction of AVX512-BF16 or of Arm's BF16. TVM has no vectors of LLVM's ``bfloat``: they are
arguments of functions of LLVM, as integers.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.target import codegen

from tvm_edge.schedules.accesses import IF_THEN_ELSE, nodes_in
from tvm_edge.schedules.cpu.dot_products import PAIR_PRODUCTS
from tvm_edge.schedules.float16 import HALVES

__all__ = ["BFloat16Bits", "BFloat16Instructions"]

_FEATURES = ("avx512bf16", "bf16")
_EXTERN = ir.Op.get("tirx.call_pure_extern")
_REINTERPRET = ir.Op.get("tirx.reinterpret")
_ROUND = "tirx.tvm_edge_round_to_bfloat16"
tvm.ir.register_op_attr(_ROUND, "TVectorizable", True)
tvm.ir.register_op_attr(_ROUND, "TCallEffectKind", tirx.CallEffectKind.Pure.value)


def _dot_code(instruction: str, called: str) -> str:
    """Return LLVM's code of the function that adds products of pairs."""
    dot = PAIR_PRODUCTS[instruction]
    wide, bits = f"<{dot.lanes} x float>", f"<{dot.lanes} x i32>"
    pairs = f"<{2 * dot.lanes} x bfloat>"
    return f"""
declare {wide} @{called}({wide}, {pairs}, {pairs})
define {wide} @{dot.intrinsic}({wide} %sum, {bits} %a, {bits} %b) alwaysinline {{
  %x = bitcast {bits} %a to {pairs}
  %y = bitcast {bits} %b to {pairs}
  %r = call {wide} @{called}({wide} %sum, {pairs} %x, {pairs} %y)
  ret {wide} %r
}}
"""


_DOT_CODE = {
    PAIR_PRODUCTS[instruction].intrinsic: _dot_code(instruction, called)
    for instruction, called in {
        "vdpbf16ps": "llvm.x86.avx512bf16.dpbf16ps.512",
        "bfdot": "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    }.items()
}


@tvm.transform.module_pass(opt_level=0, name="BFloat16Bits")
class BFloat16Bits:
    """Have kernels that store bfloat16, and calculate in float32, move 16 bits."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _stores_alone(func):
                updated.update_func(gvar, func.with_body(_as_bits(func.body)))
        return updated


def _is_bfloat16(value: ir.Expr) -> bool:
    return str(getattr(value.ty, "dtype", "")).partition("x")[0] == "bfloat16"


def _stores_alone(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel has bfloat16, and does no more than store, move and convert it."""
    moved: list[ir.Expr] = []
    strange: list[ir.Expr] = []

    def on_value(node: ir.Expr) -> None:
        if not isinstance(node, ir.Var) and _is_bfloat16(node):
            kinds = (ir.TensorLoad, tirx.Select, tirx.FloatImm)
            called = isinstance(node, ir.Call) and node.op in (IF_THEN_ELSE, _REINTERPRET)
            stored = isinstance(node, tirx.Cast) and _is_float32(node.value)
            (moved if called or stored or isinstance(node, kinds) else strange).append(node)

    tvm_ffi.structural_walk(func.body, (ir.Expr, on_value))
    return bool(moved) and not strange


def _is_float32(value: ir.Expr) -> bool:
    return str(value.ty.dtype).partition("x")[0] == "float32"


def _as_bits(body: tirx.Stmt) -> tirx.Stmt:
    """Return a body whose own arrays are of 16 bits; others are read and written as bits."""
    own: dict[tirx.Var, tirx.Var] = {}
    for alloc in nodes_in(body, tirx.AllocBuffer):
        buffer = alloc.buffer
        if buffer.dtype == "bfloat16":
            own[buffer] = tirx.decl_buffer(
                buffer.shape, "uint16", buffer.name, scope=buffer.scope(), layout=None
            )
    callbacks = (
        (ir.Var, lambda var: own.get(var, var)),
        (ir.TensorLoad, _load),
        (tirx.Cast, _cast),
        (ir.Call, _call),
        (tirx.BufferStore, _store),
    )
    return tvm_ffi.structural_map(body, callbacks)


def _load(load: ir.TensorLoad) -> tirx.Expr:
    if not _is_bfloat16(load) or load.source.dtype == "bfloat16":
        return load
    return tirx.reinterpret(str(load.ty.dtype), tirx.BufferLoad(load.source, load.indices))


def _cast(cast: tirx.Cast) -> tirx.Expr:
    if not _is_bfloat16(cast.value):
        return cast
    bits = tirx.Cast(_of_lanes("uint32", cast), _bits(cast.value))
    whole = tirx.reinterpret(_of_lanes("float32", cast), bits << tirx.const(16, bits.ty.dtype))
    return whole if _is_float32(cast) else tirx.Cast(str(cast.ty.dtype), whole)


def _call(call: ir.Call) -> tirx.Expr:
    if call.op.same_as(_REINTERPRET) and _is_bfloat16(call.args[0]):
        return tirx.reinterpret(str(call.ty.dtype), _bits(call.args[0]))
    return call


def _store(store: tirx.BufferStore) -> tirx.Stmt:
    value = store.value
    if not _is_bfloat16(value):
        return store
    value = _bits(value)
    if store.buffer.dtype == "bfloat16":
        value = tirx.reinterpret(_of_lanes("bfloat16", value), value)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _bits(value: tirx.Expr) -> tirx.Expr:
    """Return a bfloat16 as 16 bits."""
    dtype = _of_lanes("uint16", value)
    if isinstance(value, tirx.Select):
        chosen = [_bits(each) for each in (value.true_value, value.false_value)]
        return tirx.Select(value.condition, *chosen)
    if isinstance(value, tirx.Cast):
        return ir.Call(ir.Op.get(_ROUND), [value.value], None, ret_ty=dtype)
    if isinstance(value, ir.Call) and value.op.same_as(IF_THEN_ELSE):
        return tirx.if_then_else(value.args[0], *map(_bits, value.args[1:]))
    if isinstance(value, tirx.FloatImm):
        return tirx.const(int(HALVES["bfloat16"](value.value).view("uint16")), dtype)
    if isinstance(value, ir.Call) and value.op.same_as(_REINTERPRET):
        (value,) = value.args
    return value if str(value.ty.dtype) == dtype else tirx.reinterpret(dtype, value)


def _of_lanes(dtype: str, like: tirx.Expr) -> str:
    """Return a type with as many lanes as an expression has."""
    _, x, lanes = str(like.ty.dtype).partition("x")
    return dtype + x + lanes


@tvm.transform.module_pass(opt_level=0, name="BFloat16Instructions")
class BFloat16Instructions:
    """Round to bfloat16 and multiply its pairs by instructions, in kernels of CPUs that have them.

    Elsewhere rounding is arithmetic.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                rewritten = _with_instructions(func)
                if not rewritten.same_as(func):
                    updated.update_func(gvar, rewritten)
        return updated


def _with_instructions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    called: dict[str, str] = {}
    target = func.attrs.get("target") or tvm.target.Target.current()
    has_feature = target is not None and any(
        codegen.llvm_cpu_has_features(feature, target) for feature in _FEATURES
    )

    def on_call(call: ir.Call) -> tirx.Expr:
        if call.op.same_as(_EXTERN) and call.args[0].value in _DOT_CODE:
            called[call.args[0].value] = _DOT_CODE[call.args[0].value]
        if not call.op.same_as(ir.Op.get(_ROUND)):
            return call
        (value,) = call.args
        if not has_feature:
            return _rounded(value)
        lanes = _of_lanes("", value).removeprefix("x") or "1"
        name = f"tvm_edge_round_{lanes}"
        called[name] = _round_code(name, int(lanes))
        return tirx.call_pure_extern(str(call.ty.dtype), name, value)

    body = tvm_ffi.structural_map(func.body, (ir.Call, on_call))
    if called:
        code = ir.StringImm("\n".join(called.values()))
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", code, body)
    return func if body.same_as(func.body) else func.with_body(body)


def _round_code(name: str, lanes: int) -> str:
    wide, half, bits = "float", "bfloat", "i16"
    if lanes > 1:
        wide, half, bits = (f"<{lanes} x {each}>" for each in (wide, half, bits))
    return f"""
define {bits} @{name}({wide} %value) alwaysinline {{
  %near = fptrunc {wide} %value to {half}
  %bits = bitcast {half} %near to {bits}
  ret {bits} %bits
}}
"""


def _rounded(value: tirx.Expr) -> tirx.Expr:
    """Return the bits of the nearest bfloat16, ties to even; a NaN stays one."""
    dtype = _of_lanes("uint32", value)

    def number(each: int) -> tirx.Expr:
        return tirx.const(each, dtype)

    name = tirx.Var("wide", dtype)
    odd = (name >> number(16)) & number(1)
    near = (name + number(0x7FFF) + odd) >> number(16)
    is_nan = (name & number(0x7FFFFFFF)) > number(0x7F800000)
    chosen = tirx.Select(is_nan, (name >> number(16)) | number(0x40), near)
    bits = tirx.Cast(_of_lanes("uint16", value), chosen)
    return tirx.Let(name, tirx.reinterpret(dtype, value), bits)
