"""Reshapes of open lengths, which are views and no kernels."""

from __future__ import annotations

from tvm import relax, tirx, topi
from tvm.relax.transform.legalize_ops.manipulate import _reshape

from tvm_edge.relay_passes.ir.expressions import lengths_of

__all__ = ["legalize_reshape"]

_KERNEL = _reshape(topi.reshape, "reshape")


def legalize_reshape(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Leave reshapes of open lengths to the virtual machine, which makes a view.

    TVM's kernel divides each index by lengths whose sign it does not know: LLVM 20 takes minutes
    for two such axes, and ``RewriteDataflowReshape`` cannot tell that the kernel moves nothing.
    """
    lengths = (*(lengths_of(call.args[0].ty) or ()), *(lengths_of(call.ty) or ()))
    if any(isinstance(length, tirx.Expr) for length in lengths):
        return call
    return _KERNEL(bb, call)
