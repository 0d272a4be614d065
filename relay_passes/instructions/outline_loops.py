"""Loops become functions: one step, and functions that call it until it does not go on.

The virtual machine has calls and branches, and no jump back. A function that called itself after
each step would hold every step's tensors until the last one returns, and the machine's stack would
bound the number of steps. Instead function ``k`` calls function ``k - 1`` twice, as long as the
loop goes on, and function 0 is one step: 2**40 steps in a stack of 40.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars

from tvm_edge.relay_passes.ir.expressions import is_call, unused_name, with_blocks
from tvm_edge.relay_passes.ir.loops import LOOP_NEXT, LOOP_STATE, next_values

__all__ = ["OutlineLoops"]

_DOUBLINGS = 40


@tvm.transform.module_pass(opt_level=0, name="OutlineLoops")
class OutlineLoops:
    """Make functions of the loops of ``main``; runs when its storage is planned."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        outliner = _Outliner(mod.clone())
        blocks = outliner.outlined(main.body.blocks)
        outliner.mod[gvar] = with_blocks(main, blocks)
        return outliner.mod


class _Outliner:
    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod

    def outlined(self, blocks: Iterable[relax.BindingBlock]) -> list[relax.BindingBlock]:
        """Return blocks without loops, which have become functions of the module."""
        initial: dict[relax.Var, relax.Expr] = {}
        made = []
        for block in blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                value = binding.value
                if is_call(value, LOOP_STATE):
                    initial[binding.var] = value.args[0]
                elif next_values(value):
                    bindings += self._called(binding, initial)
                elif isinstance(value, relax.If):
                    ends = [self._body(end) for end in (value.true_branch, value.false_branch)]
                    choice = _typed(relax.If(value.cond, *ends, value.span), value.ty)
                    bindings.append(relax.VarBinding(binding.var, choice))
                else:
                    bindings.append(binding)
            made.append(type(block)(bindings))
        return made

    def _body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        return _typed(relax.SeqExpr(self.outlined(body.blocks), body.body), body.ty)

    def _called(
        self, binding: relax.Binding, initial: dict[relax.Var, relax.Expr]
    ) -> list[relax.Binding]:
        """Return the bindings that run a loop, and what is to be done when it has ended."""
        loop = binding.value
        following = next_values(loop)
        states = list(following)
        blocks = self.outlined(loop.true_branch.blocks)
        bindings = [each for block in blocks for each in block.bindings]
        # Behind the next values there are only copies of what the loop results in.
        last = max(i for i, each in enumerate(bindings) if is_call(each.value, LOOP_NEXT))
        step = [each for each in bindings[:last] if not is_call(each.value, LOOP_NEXT)]
        run, operands = self._functions(states, step, list(following.values()))
        actual = [initial[state] for state in states]
        whole = _bound("loop", relax.Call(run, [*actual, *operands]), run.ty.ret)
        ended = [whole]
        for i, state in enumerate(states):
            item = _typed(relax.TupleGetItem(whole.var, i), state.ty)
            ended.append(relax.VarBinding(state, item))
        ended += [b for block in self.outlined(loop.false_branch.blocks) for b in block.bindings]
        return [*ended, relax.VarBinding(binding.var, loop.false_branch.body)]

    def _functions(
        self,
        states: Sequence[relax.Var],
        step: Sequence[relax.Binding],
        following: Sequence[relax.Expr],
    ) -> tuple[tvm.ir.GlobalVar, list[relax.Expr]]:
        """Return the function that runs a loop, and its operands after the first state."""
        results = relax.TupleType([state.ty for state in states])
        body = _sequence(step, relax.Tuple(following))
        captured = [var for var in relax.analysis.free_vars(body) if var not in states]
        plain = relax.Function([*states, *captured], body, results, is_pure=False)
        lengths = list(relax.analysis.free_symbolic_vars(plain))
        operands: list[relax.Expr] = list(captured)
        params = [*states, *captured]
        if lengths:
            operands.append(relax.ShapeExpr(lengths))
            params.append(relax.Var("lengths", relax.ShapeType(lengths)))
        names = {str(gvar.name_hint) for gvar in self.mod.get_global_vars()}
        name = unused_name("loop", {each.removesuffix("_step") for each in names})
        inner = self._added(f"{name}_step", _function(params, body, results))
        for level in range(_DOUBLINGS + 1):
            again = _while_going(inner, states, params, calls=2 if level else 1)
            inner = self._added(f"{name}_{level}", again)
        return inner, operands

    def _added(self, name: str, func: relax.Function) -> tvm.ir.GlobalVar:
        gvar = tvm.ir.GlobalVar(name)
        relax.expr._update_type(gvar, func.ty)
        self.mod.update_func(gvar, func)
        return gvar


def _while_going(
    inner: tvm.ir.GlobalVar, states: Sequence[relax.Var], params: Sequence[relax.Var], calls: int
) -> relax.Function:
    """Make a function that calls `inner`, if the first state, a condition, is true."""
    result = inner.ty.ret
    fixed = list(params[len(states) :])
    bindings: list[relax.VarBinding] = []
    current = list(states)
    for _ in range(calls):
        whole = _bound("states", relax.Call(inner, [*current, *fixed]), result)
        items = [
            _bound("state", relax.TupleGetItem(whole.var, i), ty)
            for i, ty in enumerate(result.fields)
        ]
        bindings += [whole, *items]
        current = [item.var for item in items]
    same = _bound("same", relax.Tuple(list(states)), result)
    going, ended = _sequence(bindings, whole.var), _sequence([same], same.var)
    choice = _bound("result", relax.If(states[0], going, ended), result)
    return _function(params, _sequence([choice], choice.var), result)


def _function(
    params: Sequence[relax.Var], body: relax.SeqExpr, result: relax.Type
) -> relax.Function:
    made = relax.Function(list(params), body, result, is_pure=False)
    return copy_with_new_vars(made)


def _sequence(bindings: Sequence[relax.Binding], result: relax.Expr) -> relax.SeqExpr:
    made = relax.SeqExpr([relax.BindingBlock(list(bindings))], result)
    return _typed(made, result.ty)


def _typed(value: relax.Expr, ty: relax.Type) -> relax.Expr:
    """Say of which type a value is; tuples and their items know it."""
    if not isinstance(value, relax.Tuple | relax.TupleGetItem):
        relax.expr._update_type(value, ty)
    return value


def _bound(name: str, value: relax.Expr, ty: relax.Type) -> relax.VarBinding:
    return relax.VarBinding(relax.Var(name, ty), _typed(value, ty))
