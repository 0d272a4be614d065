"""Zeros around an image, as convolutions' own padding.

Exporters write a Pad before a convolution where a framework pads one side more than the other. Its
kernel copies the image, which the convolution, or the copy into channel blocks, then copies again.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import is_call, rewrite_functions

__all__ = ["FoldPadding"]


@tvm.transform.module_pass(opt_level=0, name="FoldPadding")
class FoldPadding:
    """Have ``conv2d(pad(x))`` read `x`, where lines and columns alone are padded, by zero.

    Convolutions of integers are left: of them zero may be a number that a type stores otherwise.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda func: _Folder(mod).visit_expr(func))


@mutator
class _Folder(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not is_call(op, "relax.nn.conv2d") or "float" not in str(op.args[0].ty.dtype):
            return op
        image, attrs = op.args[0], op.attrs
        pad = self.lookup_binding(image) if isinstance(image, relax.Var) else None
        if not is_call(pad, "relax.nn.pad") or str(attrs.data_layout) != "NCHW":
            return op
        width = [int(side) for side in pad.attrs.pad_width]
        if str(pad.attrs.pad_mode) != "constant" or float(pad.attrs.pad_value) != 0:
            return op
        if any(width[:4]) or min(width) < 0 or len(width) != 8:
            return op
        top, bottom, left, right = width[4:]
        sides = zip(attrs.padding, (top, left, bottom, right), strict=True)
        return relax.op.nn.conv2d(
            pad.args[0],
            op.args[1],
            list(attrs.strides),
            [int(own) + more for own, more in sides],
            list(attrs.dilation),
            int(attrs.groups),
            str(attrs.data_layout),
            str(attrs.kernel_layout),
            str(attrs.out_layout),
            attrs.out_dtype,
        )
