"""Accumulators of a CPU's kernels on the stack, from where LLVM moves them into registers.

TVM allocates arrays in a workspace. LLVM has to believe that somebody else reads that: the 28
vectors of a register tile are set to zero in memory before each tile and stored there after it,
beside the registers that they are in.
"""

from __future__ import annotations

from math import prod

import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.schedules.accesses import constant

__all__ = ["RegisterArrays"]

_KEEP = "disable_lower_builtin"
"""TVM's annotation of an allocation that stays one, which its code generator has on the stack."""

_MOST = 4096
"""Bytes: what the registers of a CPU hold, twice."""


@tvm.transform.module_pass(opt_level=0, name="RegisterArrays")
class RegisterArrays:
    """Have local arrays of known size on the stack."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                body = tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, _on_stack))
                updated.update_func(gvar, func.with_body(body))
        return updated


def _on_stack(node: tirx.AllocBuffer) -> tirx.AllocBuffer:
    array = node.buffer
    sizes = [constant(length) for length in array.shape]
    dtype = tvm.DataType(str(array.dtype))
    nbytes = prod(size or _MOST for size in sizes) * (int(dtype.bits) * int(dtype.lanes) // 8)
    if array.scope() != "local" or nbytes > _MOST:
        return node
    return tirx.AllocBuffer(array, {**(node.annotations or {}), _KEEP: tirx.const(1, "int32")})
