"""Divisions of indices by lengths that only the run tells, as the device divides.

Python's division rounds down, a device's towards zero. They differ for negative numbers. TVM takes
a length for negative where nothing says otherwise, and each place on an axis became a division, a
remainder, four comparisons and two selections.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.open_lengths import has_open_lengths

__all__ = ["PlainDivisions"]


@tvm.transform.module_pass(opt_level=0, name="PlainDivisions")
class PlainDivisions:
    """Divide what is not negative towards zero, in kernels of open shapes."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and has_open_lengths(func):
                updated.update_func(gvar, func.with_body(_plain(func)))
        return updated


def _plain(func: tirx.PrimFunc) -> tirx.Stmt:
    known = _Known(func)

    def quotient(node: tirx.FloorDiv) -> tirx.Expr:
        return tirx.truncdiv(node.a, node.b) if known.divides(node) else node

    def remainder(node: tirx.FloorMod) -> tirx.Expr:
        return tirx.truncmod(node.a, node.b) if known.divides(node) else node

    kinds = (tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)
    return tvm_ffi.structural_map(func.body, kinds)


class _Known:
    """Variables of a kernel that are not negative: lengths, those of loops and of threads."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        shapes = [param.shape for param in func.params if isinstance(param.ty, tirx.BufferType)]
        # As they were, and as TVM has simplified them by now.
        self._simplify = sym.Analyzer().simplify
        self._named: dict[tirx.Var, tirx.Expr] = {}
        dims = [dim for shape in shapes for dim in shape]
        lengths = [each for dim in dims for each in (dim, self._simplify(dim))]
        self._lengths = set(map(tvm_ffi.StructuralKey, lengths))
        self._variables: set[tirx.Var] = set()
        stores = [s for s in nodes_in(func.body, tirx.BufferStore) if _is_register(s.buffer)]
        self._registers: set[tirx.Buffer] = {store.buffer for store in stores}
        kinds = ((tirx.For, self._loop), (tirx.AttrStmt, self._thread), (tirx.Bind, self._bind))
        left = -1
        while left != len(self._registers):  # until no other value may be negative
            left = len(self._registers)
            self._variables = set()
            tvm_ffi.structural_walk(func.body, kinds, order="pre")
            self._registers -= {s.buffer for s in stores if not self.holds(s.value)}

    def _loop(self, loop: tirx.For) -> None:
        if self.holds(loop.min):
            self._variables.add(loop.loop_var)

    def _thread(self, attribute: tirx.AttrStmt) -> None:
        if attribute.attr_key == "thread_extent":
            self._variables.add(attribute.node.var)

    def _bind(self, bind: tirx.Bind) -> None:
        if str(bind.var.ty.dtype) not in ("int32", "int64"):
            return
        self._named[bind.var] = value = self._written_out(bind.value)
        if self.holds(bind.value) or tvm_ffi.StructuralKey(value) in self._lengths:
            self._variables.add(bind.var)

    def _written_out(self, value: tirx.Expr) -> tirx.Expr:
        """Return a value without names for parts of it."""

        def part(var: tirx.Var) -> tirx.Expr:
            return self._named.get(var, var)

        return self._simplify(tvm_ffi.structural_map(value, (tirx.Var, part)))

    def divides(self, node: tirx.FloorDiv | tirx.FloorMod) -> bool:
        """Return whether both numbers are known: the divisor is a length, and no data."""
        if not str(node.ty.dtype).startswith("int") or nodes_in(node.b, ir.TensorLoad, ir.Call):
            return False
        divisor = constant(node.b)
        return (divisor is None or divisor > 0) and self.holds(node.a)

    def holds(self, expr: tirx.Expr) -> bool:
        """Return whether an expression is not negative, lengths that divide being positive."""
        known = constant(expr)
        if known is not None:
            return known >= 0
        if tvm_ffi.StructuralKey(expr) in self._lengths:
            return True
        if isinstance(expr, tirx.Var):
            return expr in self._variables
        if isinstance(expr, ir.TensorLoad):
            return expr.source in self._registers
        if isinstance(expr, tirx.FloorMod | tirx.Mod):
            divides = self.divides if isinstance(expr, tirx.FloorMod) else self._both
            return divides(expr)
        return isinstance(expr, _KEEPING) and self._both(expr)

    def _both(self, expr: tirx.Expr) -> bool:
        return self.holds(expr.a) and (isinstance(expr, _DIVIDING) or self.holds(expr.b))


def _is_register(buffer: tirx.Buffer) -> bool:
    """Return whether a buffer is a variable of a work-item, for indices."""
    return bool(buffer.scope() == "local" and str(buffer.dtype) == "int32")


_DIVIDING = (tirx.FloorDiv, tirx.Div, tirx.Mod)
_KEEPING = (tirx.Add, tirx.Mul, tirx.Min, tirx.Max, *_DIVIDING)
