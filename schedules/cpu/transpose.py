"""Transposes: kernels without reduction that read across the direction in which they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import (
    Access,
    accesses,
    branch_conditions,
    constant,
    nodes_in,
    stride,
    uses,
)

__all__ = ["Transpose", "match_transpose"]


@dataclass(frozen=True)
class Transpose:
    """Access pattern of a block that reads across the direction in which it writes.

    Attributes
    ----------
    row : int
        Position of the variable along which it reads neighbouring elements.
    rows : int
        Number of variables, `row` the last, that can be fused to one along which it reads them.
    depth : int
        Neighbours that share a cache line.
    columns : int
        Number of trailing variables that can be fused to the one along which it writes.
    """

    row: int
    rows: int
    depth: int
    columns: int


def match_transpose(block: s_tir.SBlock, spec: DeviceSpec) -> Transpose | None:
    """Recognise a block that writes along its last variables and reads along another one."""
    found = accesses(block)[0]
    variables = list(block.iter_vars)
    if not variables or any(constant(var.dom.extent) == 0 for var in variables):
        return None
    last = variables[-1].var
    if any(stride(a, last) != 1 for a in found if a.is_store):
        return None
    columns = _equal_steps(variables, found)
    fused = [var.var for var in variables[-columns:]]
    if any(uses(c, var) for c in branch_conditions(block) for var in fused):
        return None
    for access in found:
        if not access.is_store and _is_across(access, last):
            line = max(1, spec.cache_line * 8 // access.buffer.dtype.bits)
            for position, var in enumerate(variables[:-columns]):
                depth = _neighbours(access, var.var, line)
                if depth and constant(var.dom.extent) != 1:
                    rows = _equal_steps(variables[: position + 1], found)
                    conditions = branch_conditions(block)
                    fused = variables[position + 1 - rows : position]
                    if any(uses(c, each.var) for c in conditions for each in fused):
                        rows = 1
                    return Transpose(position, rows, depth, columns)
    return None


def _is_across(access: Access, var: tirx.Var) -> bool:
    """Return whether neighbours along a variable are apart, but for a last one that is repeated."""
    step = stride(access, var)
    if step is None:
        bounded = [each for index in access.indices for each in nodes_in(index, tirx.Min)]
        return any(uses(each, var) for each in bounded)
    return step not in (0, 1)


def _equal_steps(variables: Sequence[tirx.IterVar], found: Sequence[Access]) -> int:
    """Return the number of last variables that move every access in equal steps, as one would."""
    count = 1
    while count < len(variables):
        before, after = variables[-count - 1], variables[-count]
        size = constant(after.dom.extent)
        if size is None or constant(before.dom.extent) is None:
            return count
        for access in found:
            step, inner = stride(access, before.var), stride(access, after.var)
            if step is None or inner is None or step != inner * size:
                return count
        count += 1
    return count


def _neighbours(access: Access, var: tirx.Var, line: int) -> int:
    """Number of values of `var` side by side in an access, at most a cache line; 0 for none."""
    if stride(access, var) == 1:
        return line
    last = access.indices[-1]
    if isinstance(last, tirx.FloorMod) and last.a.same_as(var):
        return constant(last.b) or 0
    return 0
