"""Elements that a work-item reads: each once, those side by side as vectors."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.accesses import constant
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
    """

    def __init__(self, unaligned: bool) -> None:
        self._unaligned = unaligned
        self._simplify = sym.Analyzer()
        self._places: dict[Any, int] = {}
        self._exprs: list[tirx.Expr] = []

    def add(self, expr: tirx.Expr) -> int:
        """Which of the values this is; the same for the same element."""
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
                load = self._exprs[first]
                wide = registers(width, dtype)
                if self._is_aligned(first, width):
                    with T.vectorized(0, width) as lane:
                        wide[lane] = load.source[load.indices[0] + lane]
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
        """Elements of one tensor that follow each other, without a condition."""
        groups: list[tuple[ir.TensorLoad, list[tuple[int, int]]]] = []
        for i, expr in enumerate(self._exprs):
            if not isinstance(expr, ir.TensorLoad) or len(expr.indices) != 1:
                continue
            for base, members in groups:
                if base.source.same_as(expr.source):
                    apart = constant(self._simplify.simplify(expr.indices[0] - base.indices[0]))
                    if apart is not None:
                        members.append((apart, i))
                        break
            else:
                groups.append((expr, [(0, i)]))
        runs: list[list[int]] = []
        for _, members in groups:
            last = None
            for offset, i in sorted(members):
                if last is None or offset != last + 1:
                    runs.append([])
                runs[-1].append(i)
                last = offset
        return runs

    def _vectors(self, run: list[int]) -> list[list[int]]:
        """Parts of a run that can be read as one vector."""
        found, at = [], 0
        while at < len(run):
            fitting = (w for w in _WIDTHS if at + w <= len(run))
            width = next((w for w in fitting if self._unaligned or self._is_aligned(run[at], w)), 1)
            if width > 1:
                found.append(run[at : at + width])
            at += width
        return found

    def _is_aligned(self, first: int, width: int) -> bool:
        index = self._exprs[first].indices[0]
        return constant(self._simplify.simplify(tirx.floormod(index, width))) == 0
