"""Results of a model lie in memory of the caller's, where the caller has any for them.

The virtual machine would allocate a result, and the runtime copy it to where it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call, with_bindings
from tvm_edge.runtime.entry import RESULT

__all__ = ["ResultMemory"]


@tvm.transform.module_pass(opt_level=0, name="ResultMemory")
class ResultMemory:
    """Ask the runtime for each result's memory; runs after the memory planner.

    Results that ``main`` allocates on the CPU, of any shape. One that a branch or a loop makes, or
    that is an input, a weight or a view, is copied by the runtime.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        places = _allocated_results(main)
        if not places:
            return mod
        builder = relax.BlockBuilder()

        def asked(binding: relax.Binding) -> Iterator[relax.Binding]:
            place = places.get(binding.var)
            if place is None:
                yield binding
                return
            shape, dtype, *_ = binding.value.args
            given = [relax.prim_value(place), shape, dtype]
            call = relax.Call(relax.ExternFunc(RESULT), given, ty_args=[binding.var.ty])
            yield relax.VarBinding(binding.var, builder.normalize(call))

        mod = mod.clone()
        mod[gvar] = with_bindings(main, asked)
        return mod


def _allocated_results(main: relax.Function) -> dict[relax.Var, int]:
    """Allocations in ``main``, with the position of the first result that each is."""
    values = {binding.var: binding.value for binding in bindings_of(main)}

    def origin(value: relax.Expr) -> relax.Expr:
        """Return the value that a name stands for."""
        while isinstance(value, relax.Var) and isinstance(values.get(value), relax.Var):
            value = values[value]
        return value

    returned = origin(main.body.body)
    whole = values.get(returned, returned) if isinstance(returned, relax.Var) else returned
    fields = list(whole.fields) if isinstance(whole, relax.Tuple) else [returned]
    places: dict[relax.Var, int] = {}
    for place, field in enumerate(map(origin, fields)):
        if isinstance(field, relax.Var) and is_call(
            values.get(field), "relax.builtin.alloc_tensor"
        ):
            places.setdefault(field, place)
    return places
