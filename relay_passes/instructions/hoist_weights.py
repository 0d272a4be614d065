"""Take the weights that ``main`` reads out of their tuple before its first kernel."""

from __future__ import annotations

import tvm
from tvm import relax

__all__ = ["HoistWeights"]


@tvm.transform.module_pass(opt_level=0, name="HoistWeights")
class HoistWeights:
    """Move the items of the weights' tuple to the front of ``main``.

    ``RewriteCUDAGraph`` lifts what it finds between kernels together with them. A region that takes
    the whole tuple checks the types of all weights when it is called: 60 of them cost the host as
    much as 20 launches. Unpacked before it, a region's weights are its own alone.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        main = mod[gvar]
        weights = main.params[-1]  # LiftWeights

        def is_item(binding: relax.Binding) -> bool:
            value = getattr(binding, "value", None)
            return isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(weights)

        blocks = [list(block.bindings) for block in main.body.blocks]
        items = [binding for block in blocks for binding in block if is_item(binding)]
        rest = [[binding for binding in block if not is_item(binding)] for block in blocks]
        body = relax.SeqExpr(
            [relax.BindingBlock(bindings) for bindings in [items, *rest] if bindings],
            main.body.body,
        )
        mod = mod.clone()
        mod[gvar] = relax.Function(
            main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span
        )
        return mod
