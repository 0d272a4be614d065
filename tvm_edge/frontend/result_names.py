"""Names of Relax variables: a trace of the user's operators, and identifiers in any language."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["name_results"]


def name_results(
    mod: tvm.IRModule, results: Mapping[relax.Var, int], first_input: int = 0
) -> tvm.IRModule:
    """Call the variable of node ``i``'s result ``n<i>_``, that of parameter ``i`` ``input<i>``.

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
    # The mark keeps digits apart that Relax appends to make a name unique.
    names = {var: f"n{i}_" for var, i in node.items()}
    names |= {param: f"input{i}" for i, param in enumerate(main.params, first_input)}
    mod[mod.get_global_var("main")] = _Renamer(mod, names).visit_expr(main)
    return mod


@mutator
class _Renamer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, names: dict[relax.Var, str]) -> None:
        super().__init__(mod)
        self._names = names

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._renamed(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._renamed(var, relax.DataflowVar)

    def _renamed(self, var: relax.Var, kind: type[relax.Var]) -> relax.Var:
        if var not in self._names:
            return var
        renamed = kind(self._names[var], var.ty)
        self.set_var_remap(var, renamed)
        return renamed
