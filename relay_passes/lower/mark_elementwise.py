"""Let fusion take kernels as element-wise that say so themselves."""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_edge.ops.quantization.kernels import ELEMENTWISE

__all__ = ["MarkElementwise"]

_KIND = 0  # Relax's OpPatternKind


@tvm.transform.module_pass(opt_level=0, name="MarkElementwise")
class MarkElementwise:
    """Correct ``AnnotateTIROpPattern``, to which a load by a calculated index is opaque.

    It takes this kind for one that is not set, so the kernel cannot have it before.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and func.attrs and func.attrs.get(ELEMENTWISE):
                updated.update_func(gvar, func.with_attr("op_pattern", _KIND))
        return updated
