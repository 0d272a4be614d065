"""Fold a DEQUANTIZE of constants."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.ops import DEQUANTIZE
from tvm_edge.relay_passes.ir.expressions import const, is_call, rewrite_functions
from tvm_edge.relay_passes.quantize.quantized_constants import quantized_constant

__all__ = ["FoldDequantized"]


@tvm.transform.module_pass(opt_level=0, name="FoldDequantized")
class FoldDequantized:
    """Calculate what quantised constants stand for, where nobody took them as they are."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        return rewrite_functions(mod, lambda func: _Folder(mod).visit_expr(func))


@mutator
class _Folder(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        found = quantized_constant(op, {}) if is_call(op, DEQUANTIZE) else None
        return op if found is None else const(found.real, "float32")
