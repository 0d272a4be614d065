"""Branches of an If become plain sequences: TVM's FuseOps takes no match_cast of a length there."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import bindings_of

__all__ = ["PlainBranches"]


@tvm.transform.module_pass(opt_level=0, name="PlainBranches")
class PlainBranches:
    """Take the dataflow blocks out of the branches of ``main``, whose kernels stay unfused."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        if any(isinstance(binding.value, relax.If) for binding in bindings_of(mod[gvar])):
            mod = mod.clone()
            mod[gvar] = _Plain(mod).visit_expr(mod[gvar])
        return mod


@mutator
class _Plain(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._inside = 0

    def visit_if_(self, op: relax.If) -> relax.Expr:
        self._inside += 1
        result = super().visit_if_(op)
        self._inside -= 1
        return result

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        if not self._inside:
            return super().visit_dataflow_block_(block)
        self.builder_._begin_binding_block()
        for binding in block.bindings:
            self.visit_binding(binding)
        return self.builder_._end_block()

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        if not self._inside:
            return super().visit_dataflow_var_def_(var)
        plain = relax.Var(var.name, var.ty, var.span)
        self.set_var_remap(var, plain)
        return plain
