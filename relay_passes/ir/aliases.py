"""Aliases of tensors: values of Relax that are a view, a name or a tuple of them."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax

from tvm_edge.relay_passes.ir.expressions import (
    KERNEL_CALLS,
    bindings_of,
    is_call,
    may_hold_tensors,
    static_shape,
)

__all__ = ["Held", "Lives", "holds", "reached"]

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


class Lives:
    """Tensors that each variable of a function may be, and where they are overwritten.

    Attributes
    ----------
    bindings : list of Binding
    held : dict of Var to Held
        Tensors by the variables that stand for them.
    made : dict of Var to tuple of int
        The shapes of those that a kernel makes, where they are known.
    overwritten : dict of Var to int
        The last binding that writes a tensor in place.
    results : frozenset of Var
        The tensors among the function's results.
    """

    def __init__(self, main: relax.Function) -> None:
        self.bindings = bindings_of(main)
        self.held: dict[relax.Var, Held] = {param: frozenset([param]) for param in main.params}
        self.made: dict[relax.Var, tuple[int, ...]] = {}
        self.overwritten: dict[relax.Var, int] = {}
        for position, binding in enumerate(self.bindings):
            var, value = binding.var, binding.value
            if is_call(value, *KERNEL_CALLS):
                self.held[var] = self._written(var, value, position)
            elif is_call(value, "relax.to_vdevice"):
                self.held[var] = frozenset([var])
            else:
                self.held[var] = holds(value, self.held)
        self.results = reached(main.body.body, self.held)

    def _written(self, var: relax.Var, call: relax.Call, position: int) -> Held:
        """Return the tensors that a kernel's results hold."""
        whole = isinstance(var.ty, relax.TensorType)
        types = [var.ty] if whole else list(var.ty.fields)
        places = [-1] * len(types)
        if is_call(call, "relax.call_tir_inplace"):
            places = [int(place) for place in call.attrs.inplace_indices]
        fields: list[Held] = []
        for place, ty in zip(places, types, strict=True):
            if place >= 0:
                over = reached(call.args[1].fields[place], self.held)
                self.overwritten.update(dict.fromkeys(over, position))
                fields.append(over)
                continue
            tensor = var if whole else relax.Var(var.name, ty, var.span)
            shape = static_shape(ty)
            if shape is not None:
                self.made[tensor] = shape
            fields.append(frozenset([tensor]))
        return fields[0] if whole else tuple(fields)
