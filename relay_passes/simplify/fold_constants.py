"""TVM's folding of constants, where there is something to fold.

TVM's pass copies and normalises every function of a module, a sixth of what a network takes outside
of code generation. After :class:`~tvm_edge.relay_passes.simplify.fold_constant_views` most have
nothing left that is calculated from constants alone.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import transform

from tvm_edge.relay_passes.ir.expressions import is_call

__all__ = ["FoldConstants"]

_OF_SHAPES = ("relax.shape_of", "relax.shape_to_tensor", "relax.size", "relax.tensor_to_shape")
"""Operators whose result may be known of a tensor that is not."""


@tvm.transform.module_pass(opt_level=0, name="FoldConstant")
class FoldConstants:
    """Evaluate calls whose arguments are constants, or shapes, by TVM's ``FoldConstant``."""

    def __init__(self) -> None:
        self._fold = transform.FoldConstant()

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
        return self._fold(mod) if any(map(_calculates_constants, functions)) else mod


def _calculates_constants(func: relax.Function) -> bool:
    """Return whether a call of a function may be evaluated: no more is lost by a wrong yes."""
    known: set[relax.Var] = set()  # bound to constants
    found: list[relax.Call] = []

    def is_constant(expr: object) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(map(is_constant, expr.fields))
        if isinstance(expr, relax.ShapeExpr):
            return all(isinstance(length, tvm.tirx.IntImm) for length in expr.values)
        if isinstance(expr, relax.Var):
            return expr in known
        return not isinstance(expr, relax.Call | relax.TupleGetItem | relax.If)

    def note_binding(binding: relax.VarBinding) -> None:
        if is_constant(binding.value):
            known.add(binding.var)

    def note_call(call: relax.Call) -> None:
        if is_call(call, *_OF_SHAPES) or all(map(is_constant, call.args)):
            found.append(call)

    tvm_ffi.structural_walk(func.body, [(relax.VarBinding, note_binding), (relax.Call, note_call)])
    return bool(found)
