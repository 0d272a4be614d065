"""Passes on the branches of an If, which some of TVM's pass by.

A body of a Loop is such a branch, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import bindings_of, static_shape

__all__ = ["InBranches"]


@tvm.transform.module_pass(opt_level=0, name="InBranches")
class InBranches:
    """Run a pass on each dataflow block in a branch of ``main``, as on a function of its own.

    Blocks with lengths that only the run tells stay as they are: such a function would not know
    the names that others gave them.

    Parameters
    ----------
    inner : tvm.transform.Pass
        Changes no function but those, and adds functions.
    """

    def __init__(self, inner: tvm.transform.Pass) -> None:
        self._inner = inner

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        blocks = list(_blocks_in_branches(mod[gvar].body))
        if not blocks:
            return mod
        kernels = {g: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
        names = {block: f"branch{number}" for number, block in enumerate(blocks)}
        parts = tvm.IRModule(kernels)
        for block, name in names.items():
            parts[name] = _function(block)
        parts = self._inner(parts)
        mod = mod.clone()
        for each, func in parts.functions_items():
            if isinstance(func, relax.Function) and each.name_hint not in names.values():
                mod[each] = func
        changed = {block: parts[name] for block, name in names.items()}
        mod[gvar] = _Replaced(mod, changed).visit_expr(mod[gvar])
        return mod


def _blocks_in_branches(
    body: relax.SeqExpr, *, inside: bool = False
) -> Iterator[relax.DataflowBlock]:
    """Yield the dataflow blocks of branches that have static types alone."""
    for block in body.blocks:
        if inside and isinstance(block, relax.DataflowBlock) and _is_static(block):
            yield block
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from _blocks_in_branches(binding.value.true_branch, inside=True)
                yield from _blocks_in_branches(binding.value.false_branch, inside=True)


def _is_static(block: relax.DataflowBlock) -> bool:
    read = relax.analysis.free_vars(relax.SeqExpr([block], relax.Tuple([])))
    bound = [binding.var for binding in block.bindings]
    return all(static_shape(var.ty) is not None for var in (*read, *bound))


def _results(block: relax.DataflowBlock) -> list[relax.Var]:
    """Return the variables that others may read."""
    return [b.var for b in block.bindings if not isinstance(b.var, relax.DataflowVar)]


def _function(block: relax.DataflowBlock) -> relax.Function:
    results = _results(block)
    body = relax.SeqExpr([block], relax.Tuple(results))
    read, types = relax.analysis.free_vars(body), relax.TupleType([var.ty for var in results])
    return relax.utils.copy_with_new_vars(relax.Function(read, body, types))


@mutator
class _Replaced(PyExprMutator):
    """Puts the functions back where the blocks were."""

    def __init__(
        self, mod: tvm.IRModule, changed: dict[relax.DataflowBlock, relax.Function]
    ) -> None:
        super().__init__(mod)
        self._changed = changed

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        func = self._changed.get(block)
        if func is None:
            return super().visit_dataflow_block_(block)
        read = relax.analysis.free_vars(relax.SeqExpr([block], relax.Tuple([])))
        for param, var in zip(func.params, read, strict=True):
            self.set_var_remap(param, self.visit_expr(var))
        self.builder_._begin_dataflow_block()
        for binding in bindings_of(func):
            self.visit_binding(binding)
        made = self.builder_._end_block()
        for var, result in zip(_results(block), func.body.body.fields, strict=True):
            self.set_var_remap(var, self.visit_expr(result))
        return made
