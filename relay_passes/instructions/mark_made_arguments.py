"""Marks on the arguments of kernels that are tensors the program itself has made."""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_edge.lowering.argument_checks import MADE
from tvm_edge.relay_passes.ir.dependences import places_of
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call

__all__ = ["MarkMade"]


@tvm.transform.module_pass(opt_level=0, name="MarkMade")
class MarkMade:
    """Say of each kernel which of its arguments are results of kernels, in all calls of it.

    Their memory is allocated for what the kernel's call says of its results, so their types, shapes
    and devices are what the compiler knows, or what the same run has calculated. A model's inputs
    and weights are not: kernels look at those in each run, as TVM's would always
    (:mod:`tvm_edge.lowering.argument_checks`).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        made: dict[tvm.ir.GlobalVar, set[int]] = {}
        for _, func in mod.functions_items():
            if isinstance(func, relax.Function):
                _look_at(func, made)
        updated = mod.clone()
        for gvar, places in made.items():
            if places and gvar in mod.functions:
                updated.update_func(gvar, mod[gvar].with_attr(MADE, sorted(places)))
        return updated


def _look_at(func: relax.Function, made: dict[tvm.ir.GlobalVar, set[int]]) -> None:
    """Take out of `made` what a function does not make itself."""
    own: set[relax.Expr] = set()
    for binding in all_bindings(func.body):
        value = binding.value
        if is_call(value, *KERNEL_CALLS):
            own.add(binding.var)
            places = _places(value, own)
            kernel = value.args[0]
            made[kernel] = made[kernel] & places if kernel in made else places
        elif (isinstance(value, relax.TupleGetItem) and value.tuple_value in own) or value in own:
            own.add(binding.var)


def _places(call: relax.Call, own: set[relax.Expr]) -> set[int]:
    """The arguments of a call that the program has made, its results among them."""
    args = list(call.args[1].fields)
    results = sum(place < 0 for place in places_of(call))
    return {place for place, arg in enumerate(args) if arg in own} | {
        len(args) + number for number in range(results)
    }
