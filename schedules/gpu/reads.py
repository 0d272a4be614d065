"""Elements that a work-item reads: each once, those side by side as vectors."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.accesses import IF_THEN_ELSE, constant
from tvm_edge.schedules.emit import registers

__all__ = ["Reads"]

_WIDTHS = (4, 2)


class Reads:
    """Operands of one type to be read together.

    Parameters
    ----------
    unaligned : bool
        Whether vectors may begin at any element. Where they may not, elements are read one by one
        but for vectors that TVM can prove to be aligned.
    guarded : bool
        Whether elements that are read on the same condition may be a vector, too.
    """

    def __init__(self, unaligned: bool, *, guarded: bool = False) -> None:
        self._unaligned, self._guarded = unaligned, guarded
        self._simplify = sym.Analyzer()
        self._places: dict[Any, int] = {}
        self._exprs: list[tirx.Expr] = []

    def add(self, expr: tirx.Expr) -> int:
        """Add a value and return its index; the same element has one index."""
        key = tvm_ffi.StructuralKey(expr)
        if key not in self._places:
            self._places[key] = len(self._exprs)
            self._exprs.append(expr)
        return self._places[key]

    def write(self) -> Any:
        """Read everything into registers, in the order of :meth:`add`."""
        dtype = str(self._exprs[0].ty.dtype)
        values = registers(len(self._exprs), dtype)
        left = dict(enumerate(self._exprs))
        for run in self._runs():
            for start in self._vectors(run):
                first, width = start[0], len(start)
                guard, load = self._load(first)
                assert load is not None
                wide = registers(width, dtype)
                if self._is_aligned(first, width):
                    with T.vectorized(0, width) as lane:
                        value = load.source[load.indices[0] + lane]
                        wide[lane] = value if guard is None else _where(guard, value)
                else:
                    # TVM would read a vector that might not be aligned element by element.
                    wide[tirx.Ramp(0, 1, width)] = tirx.call_extern(
                        f"{dtype}x{width}", f"vload{width}", 0, tirx.address_of(load)
                    )
                for lane, member in enumerate(start):
                    values[member] = wide[lane]
                    left.pop(member)
        for i, expr in left.items():
            values[i] = expr
        return values

    def _runs(self) -> list[list[int]]:
        """Elements of one tensor that follow each other, on one condition or none."""
        groups: list[tuple[ir.Call | None, ir.TensorLoad, list[tuple[int, int]]]] = []
        for i in range(len(self._exprs)):
            guard, load = self._load(i)
            if load is None:
                continue
            for like, base, members in groups:
                if base.source.same_as(load.source) and _same(guard, like):
                    apart = constant(self._simplify.simplify(load.indices[0] - base.indices[0]))
                    if apart is not None:
                        members.append((apart, i))
                        break
            else:
                groups.append((guard, load, [(0, i)]))
        runs: list[list[int]] = []
        for _, _, members in groups:
            last = None
            for offset, i in sorted(members):
                if last is None or offset != last + 1:
                    runs.append([])
                runs[-1].append(i)
                last = offset
        return runs

    def _vectors(self, run: list[int]) -> list[list[int]]:
        """Split a run into the parts that can be read as one vector."""
        found, at = [], 0
        while at < len(run):
            fitting = (w for w in _WIDTHS if at + w <= len(run))
            width = next((w for w in fitting if self._suits(run[at], w)), 1)
            if width > 1:
                found.append(run[at : at + width])
            at += width
        return found

    def _suits(self, first: int, width: int) -> bool:
        """Return whether so many elements can be read as a vector."""
        guard, _ = self._load(first)
        return (self._unaligned and guard is None) or self._is_aligned(first, width)

    def _load(self, number: int) -> tuple[ir.Call | None, ir.TensorLoad | None]:
        """Return the guard of a conditional read, if there is one, and the load."""
        expr, guard = self._exprs[number], None
        if self._guarded and isinstance(expr, ir.Call) and expr.op.same_as(IF_THEN_ELSE):
            expr, guard = expr.args[1], expr
        if not isinstance(expr, ir.TensorLoad) or len(expr.indices) != 1:
            return None, None
        return guard, expr

    def _is_aligned(self, first: int, width: int) -> bool:
        _, load = self._load(first)
        assert load is not None
        index = load.indices[0]
        return constant(self._simplify.simplify(tirx.floormod(index, width))) == 0


def _where(guard: ir.Call, value: tirx.Expr) -> tirx.Expr:
    """Replace the value of a conditional read by `value`."""
    return tirx.if_then_else(guard.args[0], value, guard.args[2])


def _same(one: ir.Call | None, other: ir.Call | None) -> bool:
    """Return whether two reads have the same condition and the same value otherwise."""
    if one is None or other is None:
        return one is other
    pairs = ((one.args[0], other.args[0]), (one.args[2], other.args[2]))
    return all(bool(tvm_ffi.structural_equal(a, b)) for a, b in pairs)
