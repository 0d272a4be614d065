"""Give the virtual machine a register for what a recorded region returns, be it nothing."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.instructions.announce_recordings import calls_region
from tvm_edge.relay_passes.ir.expressions import rewrite_functions

__all__ = ["KeepRegionResults"]


@tvm.transform.module_pass(opt_level=0, name="KeepRegionResults")
class KeepRegionResults:
    """Type as an object what a region of ``RewriteCUDAGraph`` returns if it has no results.

    Such a region writes into tensors that were there before it: the last slices of a concatenation
    of which another slice was written outside. A call that returns the empty tuple is given no
    register, and TVM's machine fails when the region's function returns to it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, _Typer(mod).visit_expr)


@mutator
class _Typer(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not calls_region(call) or call.ty_args[0].fields:
            return call
        return relax.Call(call.op, call.args, call.attrs, [relax.ObjectType()])
