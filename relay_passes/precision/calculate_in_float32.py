"""Kernels of float16 and bfloat16 tensors that calculate in float32.

Storage is 16 bits and arithmetic float32: what a kernel reads is widened, what it keeps for itself
(accumulators, stages before and after them) is float32, and what it stores is rounded once. A sum
of thousands of products is then as good as float32's, and a chain of element-wise operators that
was fused rounds at its end only.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.analysis import root_blocks
from tvm_edge.schedules.float16 import KEPT, STORED, as_stored, is_half, widened

__all__ = ["CalculateInFloat32", "calculate_in_float32"]

# Functions of numbers: they are the same functions in float32.
_FUNCTIONS = frozenset(
    (
        "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp exp10 exp2 fabs "
        "floor fmod hypot if_then_else isfinite isinf isnan ldexp likely log log10 log1p log2 "
        "pow round rsqrt sigmoid sin sinh sqrt tan tanh trunc"
    ).split()
)
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Mod),
)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


@tvm.transform.module_pass(opt_level=0, name="CalculateInFloat32")
class CalculateInFloat32:
    """Apply :func:`calculate_in_float32` to the kernels of a GPU.

    Parameters
    ----------
    kind : str
        Of the GPU's target; kernels for another device stay as they are.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            own = func.attrs.get("target") if func.attrs is not None else None
            if own is None or own.kind.name == self.kind:
                updated.update_func(gvar, calculate_in_float32(func))
        return updated


def calculate_in_float32(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel of blocks with its arithmetic and its own buffers in float32 where they are 16 bits.

    Kernels that are written out, and those that look at the bits, stay as they are. So do copies
    that keep their type.
    """
    if not isinstance(func.body, s_tir.SBlockRealize) or not _uses_halves(func):
        return func
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled", False):
        return func
    if not _is_arithmetic(func):
        return func
    func = _with_own_accumulators(func)
    return func.with_body(_Widener(func).widened(func.body))


def _uses_halves(func: tirx.PrimFunc) -> bool:
    buffers = (*func.params, *func.body.block.alloc_buffers)
    return any(tirx.buffer.is_buffer_var(b) and is_half(b.dtype) for b in buffers)


def _is_arithmetic(func: tirx.PrimFunc) -> bool:
    """Return whether all that it does with 16 bits means the same of float32."""
    strange: list[Any] = []

    def on_call(call: ir.Call) -> None:
        types = [getattr(expr.ty, "dtype", None) for expr in (call, *call.args)]
        dialect, _, name = call.op.name.partition(".") if isinstance(call.op, ir.Op) else ("",) * 3
        known = dialect in ("tirx", "prim") and name in _FUNCTIONS
        if not known and any(map(is_half, types)):
            strange.append(call)

    def on_other(node: Any) -> None:
        strange.append(node)

    others = (tirx.Ramp, tirx.Broadcast, tirx.Shuffle, tirx.Reduce)
    nested = (tirx.AllocBuffer, tirx.DeclBuffer)
    walk = ((ir.Call, on_call), (others, on_other), (nested, on_other))
    tvm_ffi.structural_walk(func.body, walk)
    return not strange


def _with_own_accumulators(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel whose reductions add up in buffers of their own, never in a result."""
    sch = s_tir.Schedule(func)
    results = list(sch.mod["main"].params)
    for block in root_blocks(sch):
        stmt = sch.get(block)
        if not isinstance(stmt, s_tir.SBlock) or stmt.init is None:
            continue
        for i, region in enumerate(stmt.writes):
            if any(region.source.same_as(b) for b in results) and is_half(region.source.dtype):
                sch.cache_write(block, i, "global")
    return sch.mod["main"].with_attrs(func.attrs) if func.attrs is not None else sch.mod["main"]


class _Widener:
    """Rewrites statements; buffers and variables of 16 bits that they define become float32."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._new: dict[tirx.Var, tirx.Var] = {}
        blocks = nodes_in(func.body, s_tir.SBlock)
        self._kept = [b.writes[0].source for b in blocks if KEPT in b.annotations]
        for buffer in func.body.block.alloc_buffers:
            self._own(buffer)

        def on_block(block: s_tir.SBlock) -> None:
            for buffer in block.alloc_buffers:
                self._own(buffer)

        def on_definition(node: tirx.Bind | tirx.Let) -> None:
            if is_half(node.var.ty.dtype):
                self._new[node.var] = tirx.Var(node.var.name, "float32")

        walk = ((s_tir.SBlock, on_block), ((tirx.Bind, tirx.Let), on_definition))
        tvm_ffi.structural_walk(func.body, walk)

    def _own(self, buffer: tirx.Var) -> None:
        kept = any(buffer.same_as(other) for other in self._kept)
        if is_half(buffer.dtype) and buffer not in self._new and not kept:
            self._new[buffer] = tirx.decl_buffer(
                buffer.shape, "float32", buffer.name, scope=buffer.scope(), layout=None
            )

    def widened(self, body: tirx.Stmt) -> tirx.Stmt:
        """The statement, calculating in float32."""
        callbacks = (
            (ir.Var, lambda var: self._new.get(var, var)),
            (ir.TensorLoad, lambda load: widened(tirx.BufferLoad(load.source, load.indices))),
            (tirx.FloatImm, _literal),
            ((*_ARITHMETIC, *_COMPARISONS), _operation),
            (tirx.Select, lambda x: tirx.Select(x.condition, x.true_value, x.false_value)),
            (tirx.Cast, _cast),
            (ir.Call, _call),
            (tirx.Let, lambda let: tirx.Let(let.var, let.value, let.body)),
            (tirx.BufferStore, _store),
            (s_tir.SBlock, _block),
        )
        return tvm_ffi.structural_map(body, callbacks)


def _block(block: s_tir.SBlock) -> s_tir.SBlock:
    """Drop the rounding of values that are only stored as 16 bits, where they are not stored."""
    store = block.body
    if STORED not in block.annotations or not isinstance(store, tirx.BufferStore):
        return block
    rounded = store.value
    if isinstance(rounded, tirx.Cast) and is_half(rounded.value.ty.dtype):
        rounded = rounded.value  # widened again for an array that is float32 now
    is_rounded = isinstance(rounded, tirx.Cast) and is_half(rounded.ty.dtype)
    if store.buffer.dtype != "float32" or not is_rounded:
        return block
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.BufferStore(store.buffer, rounded.value, store.indices),
        annotations={k: v for k, v in block.annotations.items() if k != STORED},
    )


def _operation(node: Any) -> tirx.Expr:
    """Make it one of float32; those of indices stay, or lengths in types of arrays would change."""
    return type(node)(node.a, node.b) if "float" in str(node.a.ty.dtype) else node


def _literal(value: tirx.FloatImm) -> tirx.Expr:
    return tirx.const(value.value, "float32") if is_half(value.ty.dtype) else value


def _cast(cast: tirx.Cast) -> tirx.Expr:
    """A conversion that the model asks for rounds; one of what is float32 already is none."""
    if str(cast.ty.dtype) == str(cast.value.ty.dtype):
        return cast.value
    return widened(cast)


def _call(call: ir.Call) -> tirx.Expr:
    if not is_half(call.ty.dtype):
        return call
    return ir.Call(call.op, list(call.args), call.attrs, ret_ty="float32")


def _store(store: tirx.BufferStore) -> tirx.Stmt:
    value = store.value
    dtype = str(store.buffer.dtype)
    if is_half(dtype):
        value = as_stored(value, dtype)
        value = tirx.Cast(dtype, store.value) if value is None else value
    return tirx.BufferStore(store.buffer, value, store.indices)
