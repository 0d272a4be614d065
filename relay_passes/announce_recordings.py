"""Let the runtime know when a run is about to record a CUDA graph."""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_edge.relay_passes.expressions import is_call, with_blocks
from tvm_edge.runtime.captures import RECORDING

__all__ = ["AnnounceRecordings"]

_RUN = "vm.builtin.cuda_graph.run_or_capture"


@tvm.transform.module_pass(opt_level=0, name="AnnounceRecordings")
class AnnounceRecordings:
    """Begin what ``RewriteCUDAGraph`` lifts to be recorded with a call of the runtime.

    TVM calls a lifted function twice when a run first comes to it, to warm up and to record, and
    never again: :mod:`tvm_edge.runtime.captures` has the GPU's driver for that run by then, and
    replays cost nothing.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for gvar in _recorded(mod):
            func = mod[gvar]
            call = relax.Call(relax.ExternFunc(RECORDING), [], ty_args=[relax.ObjectType()])
            announced = relax.VarBinding(relax.Var("recording", relax.ObjectType()), call)
            mod[gvar] = with_blocks(func, [relax.BindingBlock([announced]), *func.body.blocks])
        return mod


def _recorded(mod: tvm.IRModule) -> set[tvm.ir.GlobalVar]:
    """The functions that are run to be recorded."""
    found: set[tvm.ir.GlobalVar] = set()

    def visit(expr: relax.Expr) -> None:
        if is_call(expr, "relax.call_builtin_with_ctx") and str(expr.args[0].global_symbol) == _RUN:
            found.add(expr.args[1].fields[0])

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found
