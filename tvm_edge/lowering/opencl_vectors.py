"""Vector loops of the lengths that OpenCL C has vectors for: 2, 3, 4, 8 and 16.

Schedules of CPUs have longer ones, of bytes, and shorter ones: what remains of a line behind its
last whole vector.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.schedules.accesses import constant

__all__ = ["SplitVectors"]

_LENGTHS = (16, 8, 4, 2, 1)
_OTHER = 3  # costs the space of four


@tvm.transform.module_pass(opt_level=0, name="SplitVectors")
class SplitVectors:
    """Split vector loops of functions for OpenCL where OpenCL C has no such vector.

    Runs between ``LoopPartition``, which makes remainders, and ``VectorizeLoop``.

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
            if isinstance(func, tirx.PrimFunc) and _is_opencl(func):
                body = tvm_ffi.structural_map(func.body, (tirx.For, _split))
                updated.update_func(gvar, func.with_body(body))
        return updated


def _is_opencl(func: tirx.PrimFunc) -> bool:
    target = None if func.attrs is None else func.attrs.get("target")
    return target is not None and target.kind.name == "opencl"


def _split(loop: tirx.For) -> tirx.Stmt:
    lanes = constant(loop.extent)
    if loop.kind != tirx.ForKind.VECTORIZED or lanes is None or lanes in (*_LENGTHS, _OTHER):
        return loop
    parts = []
    start = 0
    while start < lanes:
        length = next(n for n in _LENGTHS if n <= lanes - start)
        parts.append(_part(loop, start, length))
        start += length
    return tirx.SeqStmt(parts)


def _part(loop: tirx.For, start: int, length: int) -> tirx.Stmt:
    """Iterations `start` to ``start + length`` of a loop."""
    dtype = str(loop.loop_var.ty.dtype)
    lane = tirx.Var(loop.loop_var.name, dtype)
    first = loop.min + tirx.const(start, dtype)
    at = first if length == 1 else first + lane

    def own(var: tirx.Var) -> tirx.Expr:
        return at if var.same_as(loop.loop_var) else var

    body = tvm_ffi.structural_map(loop.body, (tirx.Var, own))
    if length == 1:
        return body
    return tirx.For(lane, tirx.const(0, dtype), tirx.const(length, dtype), loop.kind, body)
