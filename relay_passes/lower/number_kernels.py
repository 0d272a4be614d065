"""Number the kernels of ``main``, so that passes after this one may move, merge and drop them."""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.locations import at_kernel

__all__ = ["number_kernels"]


def number_kernels(mod: tvm.IRModule, results: Iterable[relax.Var]) -> tvm.IRModule:
    """Locate the result of each kernel call at the number of the call.

    Parameters
    ----------
    mod : IRModule
        Calls of kernels, or of groups that become one.
    results : iterable of Var
        Variables that calls are bound to, in the order of their numbers.
    """
    gvar = mod.get_global_var("main")
    numberer = _Numberer(mod, {var: number for number, var in enumerate(results)})
    mod = mod.clone()
    mod[gvar] = numberer.visit_expr(mod[gvar])
    return mod


@mutator
class _Numberer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, numbers: dict[relax.Var, int]) -> None:
        super().__init__(mod)
        self._numbers = numbers

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._numbered(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._numbered(var, relax.DataflowVar)

    def _numbered(self, var: relax.Var, kind: type[relax.Var]) -> relax.Var:
        if var not in self._numbers:
            return var
        numbered = kind(var.name, var.ty, at_kernel(self._numbers[var]))
        self.set_var_remap(var, numbered)
        return numbered
