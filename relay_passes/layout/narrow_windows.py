"""Convolutions in NCHW without the zeros along the borders of their windows.

They are what transposed convolutions of few filters were turned into.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import const, static_shape
from tvm_edge.relay_passes.ir.workloads import conv_workload
from tvm_edge.schedules.cpu.narrow_windows import NarrowWindows as Windows
from tvm_edge.schedules.cpu.narrow_windows import conv2d_narrow

__all__ = ["NarrowWindows"]


@tvm.transform.module_pass(opt_level=0, name="NarrowWindows")
class NarrowWindows:
    """Have kernels skip taps of constant filters that are zero, each run of filters its own.

    After :class:`~tvm_edge.relay_passes.layout.block_layout.BlockLayout`, which has left those in
    NCHW.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod = _Narrower(mod).narrowed(gvar, func)
        return mod


@mutator
class _Narrower(PyExprMutator):
    def narrowed(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module, one function rewritten; asked for here, as it is gone with the mutator."""
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        found = conv_workload(op)
        if found is None or static_shape(op.args[0].ty) is None:
            return op
        workload, weights = found
        if workload.groups != 1 or {*workload.strides, *workload.dilation} != {1}:
            return op
        narrow = Windows.of(weights)
        if narrow is None:
            return op
        return self.builder_.call_te(
            conv2d_narrow,
            op.args[0],
            const(narrow.filters, "float32"),
            workload.padding,
            workload.kernel,
            narrow.starts,
            primfunc_name_hint="conv2d",
        )
