"""Locations of Relax variables among the user's operators, and names that any language takes."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.locations import at_node

__all__ = ["name_results", "with_dataflow"]


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


def with_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """Put dataflow blocks around all of ``main`` but its Ifs; variables keep their locations.

    ``relax.transform.ConvertToDataflow`` makes new ones, which are located nowhere.
    """
    main = mod["main"]
    runs: list[list[relax.Binding]] = []
    read: set[relax.Var] = set(relax.analysis.free_vars(main.body.body))  # outside of its run
    body = _in_runs(main.body, runs, read)
    for run in runs:
        made = {binding.var for binding in run}
        for binding in run:
            read.update(var for var in relax.analysis.free_vars(binding.value) if var not in made)
    inside = {
        binding.var: relax.DataflowVar(binding.var.name, binding.var.ty, binding.var.span)
        for run in runs
        for binding in run
        if binding.var not in read
    }
    blocks = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span)
    mod[mod.get_global_var("main")] = _Renamer(mod, inside).visit_expr(blocks)
    return mod


def _in_runs(
    body: relax.SeqExpr, runs: list[list[relax.Binding]], read: set[relax.Var]
) -> relax.SeqExpr:
    """Split a body at its Ifs; collect the runs between them, and what Ifs and results read."""
    blocks: list[relax.BindingBlock] = []
    run: list[relax.Binding] = []
    read.update(relax.analysis.free_vars(body.body))
    for binding in [*(b for block in body.blocks for b in block.bindings), None]:
        chooses = binding is not None and isinstance(binding.value, relax.If)
        if binding is not None and not chooses:
            run.append(binding)
            continue
        if run:
            runs.append(run)
            blocks.append(relax.DataflowBlock(run))
            run = []
        if binding is not None:
            old = binding.value
            read.update(relax.analysis.free_vars(old.cond))
            ends = [_in_runs(end, runs, read) for end in (old.true_branch, old.false_branch)]
            new = relax.If(old.cond, *ends, old.span)
            relax.expr._update_type(new, old.ty)
            blocks.append(relax.BindingBlock([relax.VarBinding(binding.var, new)]))
    made = relax.SeqExpr(blocks, body.body)
    relax.expr._update_type(made, body.ty)
    return made


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
