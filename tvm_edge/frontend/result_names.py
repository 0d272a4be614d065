"""Locations of Relax variables among the user's operators, and names that any language takes."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.locations import at_node

__all__ = ["name_results"]


def name_results(
    mod: tvm.IRModule, results: Mapping[relax.Var, int], first_input: int = 0
) -> tvm.IRModule:
    """Locate the variable of node ``i``'s result there, and name parameter ``i`` ``input<i>``.

    The parameters' own names are the user's, and become identifiers of kernels: ``images/rgb`` or
    ``input-1`` would not compile.

    Parameters
    ----------
    mod : tvm.IRModule
        As imported.
    results : mapping of relax.Var to int
        Variables of ``main`` and the node that made them. A variable that only renames another
        (an output of the graph) takes its name.
    first_input : int
        The number of the first parameter.
    """
    main = mod["main"]
    node = dict(results)
    for block in main.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Var) and binding.value in node:
                node[binding.var] = node[binding.value]
    renamed = {var: type(var)(f"n{i}_", var.ty, at_node(i)) for var, i in node.items()}
    renamed |= {
        param: relax.Var(f"input{i}", param.ty) for i, param in enumerate(main.params, first_input)
    }
    mod[mod.get_global_var("main")] = _Renamer(mod, renamed).visit_expr(main)
    return mod


@mutator
class _Renamer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, renamed: dict[relax.Var, relax.Var]) -> None:
        super().__init__(mod)
        self._renamed = renamed

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._new(var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._new(var)

    def _new(self, var: relax.Var) -> relax.Var:
        new = self._renamed.get(var, var)
        if new is not var:
            self.set_var_remap(var, new)
        return new
