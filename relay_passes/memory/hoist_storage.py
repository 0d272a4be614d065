"""Storage that a branch of an If allocates is allocated before the If.

TVM's planner (``StaticPlanBlockMemory``) gives storage of one branch to tensors of the other, where
it is not allocated.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from tvm_edge.relay_passes.ir.expressions import is_call, with_blocks

__all__ = ["HoistStorage"]


@tvm.transform.module_pass(opt_level=0, name="HoistStorage")
class HoistStorage:
    """Move the storage of branches of ``main`` out of them; runs after the planner."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        blocks = [type(block)(_hoisted(block.bindings)) for block in main.body.blocks]
        mod = mod.clone()
        mod[gvar] = with_blocks(main, blocks)
        return mod


def _hoisted(bindings: list[relax.Binding]) -> list[relax.Binding]:
    made: list[relax.Binding] = []
    for binding in bindings:
        if isinstance(binding.value, relax.If):
            storage: list[relax.Binding] = []
            value = _without_storage(binding.value, storage)
            made += [*storage, relax.VarBinding(binding.var, value)]
        else:
            made.append(binding)
    return made


def _has_known_size(value: relax.Expr) -> bool:
    """Return whether a value is storage whose size no branch has to calculate."""
    if not is_call(value, "relax.memory.alloc_storage"):
        return False
    return all(isinstance(size, tirx.IntImm) for size in value.args[0].values)


def _without_storage(choice: relax.If, storage: list[relax.Binding]) -> relax.If:
    """Return an If without allocations of storage, which are put into `storage`."""
    ends = []
    for branch in (choice.true_branch, choice.false_branch):
        blocks = []
        for block in branch.blocks:
            kept: list[relax.Binding] = []
            for binding in block.bindings:
                if _has_known_size(binding.value):
                    storage.append(binding)
                elif isinstance(binding.value, relax.If):
                    inner = _without_storage(binding.value, storage)
                    kept.append(relax.VarBinding(binding.var, inner))
                else:
                    kept.append(binding)
            blocks.append(type(block)(kept))
        end = relax.SeqExpr(blocks, branch.body)
        relax.expr._update_type(end, branch.ty)
        ends.append(end)
    made = relax.If(choice.cond, *ends, choice.span)
    relax.expr._update_type(made, choice.ty)
    return made
