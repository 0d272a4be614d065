"""Vector loops that OpenCL C has words for.

It has vectors of 2, 3, 4, 8 and 16 elements. Schedules of CPUs have longer ones, of 8-bit integers,
and shorter ones, for the remainder of a line after its last whole vector. A comparison of vectors
is a vector of integers, all bits set where it holds. There are no vectors of truth values. TVM
writes one that all lanes share as ones, of which ``select`` sees the highest bit. TVM packs 8-bit
integers that it cannot read as one aligned vector into integers, four to each, as CUDA has them.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_edge.lowering.opencl_functions import is_opencl
from tvm_edge.schedules.accesses import constant, nodes_in, uses

__all__ = ["LegalizeVectors"]

_LENGTHS = (16, 8, 4, 2, 1)
_OTHER = 3  # costs the space of four


@tvm.transform.module_pass(opt_level=0, name="LegalizeVectors")
class LegalizeVectors:
    """Rewrite vector loops of functions for OpenCL where OpenCL C has no such vector.

    Runs between ``LoopPartition``, which makes remainders, and ``VectorizeLoop``. Loops with truth
    values in memory, and with 8-bit integers that are not aligned, become serial; choices that all
    lanes share become branches.

    Examples
    --------
    ``for i in vectorized(7)`` becomes vectors of four, two and one::

        for i in vectorized(4): y[i] = x[i]
        for i in vectorized(2): y[4 + i] = x[4 + i]
        y[6] = x[6]
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_opencl(func):
                body = tvm_ffi.structural_map(func.body, (tirx.For, _legal))
                updated.update_func(gvar, func.with_body(body))
        return updated


def _legal(loop: tirx.For) -> tirx.Stmt:
    lanes = constant(loop.extent)
    if loop.kind != tirx.ForKind.VECTORIZED or lanes is None:
        return loop
    if _has_truth_values(loop.body):
        return _serial(loop)
    body = _with_branches(loop.body, loop.loop_var)
    loop = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
    if lanes in (*_LENGTHS, _OTHER):
        return _with_vectors_of_bytes(loop)
    parts = []
    start = 0
    while start < lanes:
        length = next(n for n in _LENGTHS if n <= lanes - start)
        parts.append(_part(loop, start, length))
        start += length
    return tirx.SeqStmt(parts)


def _serial(loop: tirx.For) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _has_truth_values(stmt: tirx.Stmt) -> bool:
    """Return whether truth values are loaded, stored or converted."""
    return (
        any(node.source.dtype == "bool" for node in nodes_in(stmt, ir.TensorLoad))
        or any(node.buffer.dtype == "bool" for node in nodes_in(stmt, tirx.BufferStore))
        or any(
            node.ty.dtype == "bool" or node.value.ty.dtype == "bool"
            for node in nodes_in(stmt, tirx.Cast)
        )
    )


def _with_vectors_of_bytes(loop: tirx.For) -> tirx.For:
    """A loop whose loads of 8-bit integers are one aligned vector each; serial where not.

    Loads of the same element in all lanes stay as they are.
    """
    lane, lanes = loop.loop_var, constant(loop.extent)
    simplify = sym.Analyzer().simplify
    apart = False

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        nonlocal apart
        if tvm.DataType(str(node.source.dtype)).bits != 8 or node.source.dtype == "bool":
            return node
        *rest, last = node.indices
        if not any(uses(index, lane) for index in node.indices):
            return node
        first = _at(last, lane, tirx.const(0, str(lane.ty.dtype)))
        follows = constant(simplify(last - first - lane)) == 0
        aligned = constant(simplify(tirx.floormod(first, lanes))) == 0
        if not (follows and aligned) or any(uses(index, lane) for index in rest):
            apart = True
            return node
        # Said so that TVM sees it: ``i // 10 * 10 + i % 10`` is not a vector to it.
        found = [*rest, first + lane]
        return node.source[tuple(found)]

    body = tvm_ffi.structural_map(loop.body, (ir.TensorLoad, load))
    if apart:
        return _serial(loop)
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)


def _with_branches(stmt: tirx.Stmt, lane: tirx.Var) -> tirx.Stmt:
    """A statement whose choices that do not depend on `lane` are branches."""
    own = [lane, *_defined(stmt)]

    def branch(node: tirx.Select) -> tirx.Expr:
        if any(uses(node.condition, var) for var in own):
            return node
        return tirx.if_then_else(node.condition, node.true_value, node.false_value)

    return tvm_ffi.structural_map(stmt, (tirx.Select, branch))


def _defined(stmt: tirx.Stmt) -> list[tirx.Var]:
    """Variables and buffers that a statement defines for itself; each lane may have its own."""
    bound = [node.var for node in nodes_in(stmt, tirx.Bind, tirx.Let)]
    return bound + [node.buffer for node in nodes_in(stmt, tirx.AllocBuffer)]


def _part(loop: tirx.For, start: int, length: int) -> tirx.Stmt:
    """Iterations `start` to ``start + length`` of a loop."""
    dtype = str(loop.loop_var.ty.dtype)
    lane = tirx.Var(loop.loop_var.name, dtype)
    first = loop.min + tirx.const(start, dtype)
    at = first if length == 1 else first + lane

    body = _at(loop.body, loop.loop_var, at)
    if length == 1:
        return body
    part = tirx.For(lane, tirx.const(0, dtype), tirx.const(length, dtype), loop.kind, body)
    return _with_vectors_of_bytes(part)


def _at(node: Any, var: tirx.Var, value: tirx.Expr) -> Any:
    """A statement or an expression with a value in place of a variable."""
    return tvm_ffi.structural_map(
        node, (tirx.Var, lambda other: value if other.same_as(var) else other)
    )
