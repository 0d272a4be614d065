"""A loop as it stands in ``main`` before it is a function: :mod:`tvm_edge.ops.loops` says how."""

from __future__ import annotations

from tvm import relax

from tvm_edge.relay_passes.ir.expressions import all_bindings, bindings_in, is_call

__all__ = ["LOOP_NEXT", "LOOP_STATE", "has_loops", "next_values"]

LOOP_STATE = "tvm_edge.loop_state"
"""A tensor that each step makes anew."""

LOOP_NEXT = "tvm_edge.loop_next"
"""Its value for the next step."""


def next_values(value: relax.Expr) -> dict[relax.Var, relax.Expr]:
    """Return what a step makes of each state of its loop; nothing if `value` is no loop."""
    if not isinstance(value, relax.If):
        return {}
    calls = [binding.value for binding in bindings_in(value.true_branch)]
    return {each.args[0]: each.args[1] for each in calls if is_call(each, LOOP_NEXT)}


def has_loops(func: relax.Function) -> bool:
    """Return whether a function has a loop, or a branch of it."""
    return any(is_call(binding.value, LOOP_NEXT) for binding in all_bindings(func.body))
