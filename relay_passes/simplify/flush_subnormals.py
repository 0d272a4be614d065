"""Weights that are subnormal numbers become zero.

Training with weight decay leaves them (63 % of the weights of a layer of a detector of text). A CPU
multiplies them 10 to 100 times slower than others. They are below 1.2e-38 (float32): next to any
other weight they change no result.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import const, constant_of

__all__ = ["FlushSubnormals"]


_PIECE = 1 << 16  # elements that the cache keeps from one operation to the next


@tvm.transform.module_pass(opt_level=0, name="FlushSubnormals")
class FlushSubnormals:
    """Replace the subnormal numbers in constant operands of convolutions and matrix products.

    Of float32 and float64; those of float16 are calculated with in float32, where they are normal.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod[gvar] = _Flusher(mod).visit_expr(func)
        return mod


@mutator
class _Flusher(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        facts = of_call(op)
        if facts.float16 is None or not facts.float16.is_product:
            return op
        args = [self._flushed(arg) for arg in op.args]
        if all(new is old for new, old in zip(args, op.args, strict=True)):
            return op
        return relax.Call(op.op, args, op.attrs, op.ty_args)

    def _flushed(self, arg: relax.Expr) -> relax.Expr:
        weights = constant_of(arg)
        if weights is None or str(weights.dtype) not in ("float32", "float64"):
            return arg
        tiny = np.finfo(weights.dtype).tiny
        flat = weights.reshape(-1)
        pieces = (flat[at : at + _PIECE] for at in range(0, flat.size, _PIECE))
        if not any(np.any(piece[np.abs(piece) < tiny]) for piece in pieces):
            return arg
        small = np.abs(weights) < tiny
        return const(np.where(small, np.zeros_like(weights), weights), str(weights.dtype))
