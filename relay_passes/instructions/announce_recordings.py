"""Let the runtime know when a run is about to record a CUDA graph."""

from __future__ import annotations

from typing import TypeGuard

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import all_bindings, bindings_of, is_call, with_blocks
from tvm_edge.runtime.entry import RECORDING

__all__ = ["AnnounceRecordings", "calls_region"]

_RUN = "vm.builtin.cuda_graph.run_or_capture"
_FIELDS = 3  # function, arguments, number of the region; then the shape, if it is symbolic


@tvm.transform.module_pass(opt_level=0, name="AnnounceRecordings")
class AnnounceRecordings:
    """Begin what ``RewriteCUDAGraph`` lifts to be recorded with a call of the runtime.

    TVM calls a lifted function twice when a run first comes to it, to warm up and to record, and
    never again: ``captures.cc`` has the GPU's driver for that run by then, and
    replays cost nothing.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for gvar, last in _recorded(mod).items():
            func = mod[gvar]
            ty = relax.ObjectType()
            call = relax.Call(relax.ExternFunc(RECORDING), [relax.prim_value(last)], ty_args=[ty])
            announced = relax.VarBinding(relax.Var("recording", ty), call)
            mod[gvar] = with_blocks(func, [relax.BindingBlock([announced]), *func.body.blocks])
        return mod


def _recorded(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, int]:
    """The functions that are run to be recorded.

    With each, whether the first run of what calls it records all that any will: not where a region
    is in a branch, or recorded for each of several shapes.
    """
    found: dict[tvm.ir.GlobalVar, int] = {}
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        calls = [b.value for b in all_bindings(func.body) if calls_region(b.value)]
        outside = [b.value for b in bindings_of(func)]
        last = sum(map(calls_region, outside)) == len(calls)
        last = last and all(len(call.args[1].fields) == _FIELDS for call in calls)
        for call in calls:
            region = call.args[1].fields[0]
            found[region] = int(last) & found.get(region, 1)
    return found


def calls_region(value: relax.Expr) -> TypeGuard[relax.Call]:
    """Return whether an expression calls a region that ``RewriteCUDAGraph`` lifts to record it."""
    return is_call(value, "relax.call_builtin_with_ctx") and value.args[0].global_symbol == _RUN
