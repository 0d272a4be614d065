"""Short loops over remainders are written out: LLVM's loop vectoriser gets them wrong.

What TVM cannot turn into vectors (a choice by element, as of the parts of a concatenation) it leaves
as a loop over the elements, and LLVM makes vectors of it. Where an index is ``i % 8`` in a loop of
16, LLVM 512 bits wide reads 16 elements in a row for it, past the end of the tensor in the worst
case (seen for Zen 4: wrong with ``mcpu=znver4``, right with 256 bits or without ``-vectorize-loops``).
Written out, remainders are constants.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.schedules.accesses import constant

__all__ = ["UnrollRemainders"]

_MOST = 16  # elements of the widest vector


@tirx.transform.prim_func_pass(opt_level=0, name="UnrollRemainders")
class UnrollRemainders:
    """Unroll serial loops of up to 16 iterations over whose number a smaller remainder is taken."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        body = tvm_ffi.structural_map(func.body, (tirx.For, _unrolled))
        return func.with_body(body) if not body.same_as(func.body) else func


def _unrolled(loop: tirx.For) -> tirx.For:
    extent = constant(loop.extent)
    if loop.kind != tirx.ForKind.SERIAL or extent is None or not 1 < extent <= _MOST:
        return loop
    wraps = False

    def visit(remainder: tirx.FloorMod) -> None:
        nonlocal wraps
        divisor = constant(remainder.b)
        if divisor is not None and divisor < extent and _uses(remainder.a, loop.loop_var):
            wraps = True

    tvm_ffi.structural_walk(loop.body, (tirx.FloorMod, visit))
    if not wraps:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)


def _uses(expr: tirx.Expr, var: tirx.Var) -> bool:
    found = False

    def visit(other: tirx.Var) -> None:
        nonlocal found
        found = found or other.same_as(var)

    tvm_ffi.structural_walk(expr, (tirx.Var, visit))
    return found
