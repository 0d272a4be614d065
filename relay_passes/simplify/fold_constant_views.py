"""Evaluate reshapes, transposes and broadcasts of constants, and tensors of constant shapes.

Importers emit ``reshape(bias, [1, C, 1, 1])`` for every bias. TVM's FoldConstant compiles and runs
a kernel for each (20–50 ms); NumPy does the same in microseconds. A shape of constants is a vector
of indices at times, of 9,207 elements in a detector, and a kernel that selects each was four
minutes of its compilation.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import array_of, is_call, rewrite_functions
from tvm_edge.schedules.accesses import constant

__all__ = ["FoldConstantViews"]

_MOVES = frozenset(
    "relax." + name
    for name in ("reshape", "expand_dims", "squeeze", "flatten", "permute_dims", "broadcast_to")
)


@tvm.transform.module_pass(opt_level=0, name="FoldConstantViews")
class FoldConstantViews:
    """Replace data movement on constants whose result shape is static by its result.

    A tensor of a constant shape is a constant as well.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda func: _Folder(mod).visit_expr(func))


@mutator
class _Folder(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if is_call(op, "relax.shape_to_tensor") and isinstance(op.args[0], relax.ShapeExpr):
            elements = [constant(element) for element in op.args[0].values]
            return op if None in elements else relax.const(np.array(elements, "int64"), "int64")
        if not isinstance(op.op, tvm.ir.Op) or op.op.name not in _MOVES:
            return op
        source = op.args[0]
        if isinstance(source, relax.Var):
            # A chain of views: the inner one is a constant bound to a variable by now.
            source = self.lookup_binding(source)
        if not isinstance(source, tvm.ir.GenericConst) or not hasattr(source.value, "numpy"):
            return op
        shape = op.ty.shape
        if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape):
            return op
        lengths = [int(d) for d in shape]
        value = array_of(source.value)
        if op.op.name == "relax.permute_dims":
            axes = op.attrs.axes
            value = np.transpose(value, None if axes is None else [int(a) for a in axes])
        elif op.op.name == "relax.broadcast_to":
            value = np.broadcast_to(value, lengths)
        else:
            value = value.reshape(lengths)
        # Not ascontiguousarray, which makes a vector of a scalar.
        return relax.const(np.asarray(value, order="C"), str(op.ty.dtype))
