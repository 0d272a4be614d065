"""Which tensors a value of Relax may be: a view, a name or a tuple of them."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax

from tvm_edge.relay_passes.expressions import may_hold_tensors

__all__ = ["Held", "holds", "reached"]

Held = frozenset[relax.Var] | tuple["Held", ...]
"""The tensors that a value may hold, by the variables that stand for them: a tuple's by field."""


def reached(value: relax.Expr, held: dict[relax.Var, Held]) -> frozenset[relax.Var]:
    """The tensors that an expression may read or write."""
    if isinstance(value, relax.TupleGetItem):
        return frozenset(_flat(holds(value, held)))
    variables = relax.analysis.free_vars(value)
    return frozenset(each for var in variables for each in _flat(held.get(var, ())))


def holds(value: relax.Expr, held: dict[relax.Var, Held]) -> Held:
    """The tensors that an expression's value may be a view of, or a tuple of."""
    if isinstance(value, relax.Var):
        return held.get(value, ())
    if isinstance(value, relax.Tuple):
        return tuple(holds(each, held) for each in value.fields)
    if isinstance(value, relax.TupleGetItem):
        whole = holds(value.tuple_value, held)
        return whole[value.index] if isinstance(whole, tuple) and whole else whole
    return reached(value, held) if may_hold_tensors(value.ty) else ()


def _flat(held: Held) -> Iterator[relax.Var]:
    for each in held:
        if isinstance(each, relax.Var):
            yield each
        else:
            yield from _flat(each)
