"""The host refuses shapes that a kernel's 32-bit indices do not reach.

Kernels of open shapes say :data:`~tvm_edge.schedules.open_lengths.NARROW`. Arguments have lengths
of 64 bits: the first pass checks their products, the second that each one fits.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.open_lengths import MOST_ELEMENTS, NARROW, length_of, total, wide

__all__ = ["CheckElements", "CheckNarrowed"]

# As in :func:`tvm_edge.schedules.emit.require`.
_REFUSED = f"the inputs' values do not fit: a tensor has more than {MOST_ELEMENTS} elements"


@tvm.transform.module_pass(opt_level=0, name="CheckElements")
class CheckElements:
    """Check the number of elements of each tensor of open shape before any launch."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if not _is_narrow(func):
                continue
            checks = [*map(_all_elements, _open_shapes(func)), *map(_narrow, _wide_lengths(func))]
            if checks:
                updated.update_func(gvar, func.with_body(tirx.SeqStmt([*checks, func.body])))
        return updated


def _open_shapes(func: tirx.PrimFunc) -> list[list[tirx.Expr]]:
    """Return the shapes of parameters that are not all numbers, each once."""
    found = {}
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            if any(constant(dim) is None for dim in param.shape):
                found[tuple(map(str, param.shape))] = list(param.shape)
    return list(found.values())


def _wide_lengths(func: tirx.PrimFunc) -> list[tirx.Var]:
    """Return the lengths of 64 bits, which a kernel's body makes 32-bit ones."""
    found = [param for param in func.params if not isinstance(param.ty, tirx.BufferType)]
    for shape in _open_shapes(func):
        for dim in shape:
            found += nodes_in(dim, tirx.Var)
    return [var for var in dict.fromkeys(found) if str(var.ty.dtype) == "int64"]


def _all_elements(shape: list[tirx.Expr]) -> tirx.Stmt:
    lengths = [wide(dim, _as_int64) for dim in shape]
    return _assertion(total(map(length_of, lengths)) <= tirx.const(MOST_ELEMENTS, "int64"))


def _narrow(length: tirx.Var) -> tirx.Stmt:
    most = tirx.const(MOST_ELEMENTS, "int64")
    return _assertion(tirx.all(length <= most, length >= -most))


def _as_int64(var: tirx.Var) -> tirx.Expr:
    return var if str(var.ty.dtype) == "int64" else tirx.Cast("int64", var)


@tvm.transform.module_pass(opt_level=0, name="CheckNarrowed")
class CheckNarrowed:
    """Check that lengths are what they were in 64 bits, in what ``MakePackedAPI`` has made."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if _is_narrow(func):
                body = tvm_ffi.structural_map(func.body, (tirx.Bind, _checked))
                updated.update_func(gvar, func.with_body(body).without_attr(NARROW))
        return updated


def _checked(bind: tirx.Bind) -> tirx.Stmt:
    value = bind.value
    if not isinstance(value, tirx.Cast) or str(value.ty.dtype) != "int32":
        return bind
    if str(value.value.ty.dtype) != "int64":
        return bind
    return tirx.SeqStmt([bind, _assertion(tirx.Cast("int64", bind.var).equal(value.value))])


def _assertion(condition: tirx.Expr) -> tirx.Stmt:
    # TVM 0.25's own class has the first two in another order than the constructor it calls.
    return tirx.AssertStmt(
        condition, tvm.ir.StringImm("RuntimeError"), [tvm.ir.StringImm(_REFUSED)]
    )


def _is_narrow(func: tvm.ir.BaseFunc) -> bool:
    return isinstance(func, tirx.PrimFunc) and func.attrs is not None and NARROW in func.attrs
