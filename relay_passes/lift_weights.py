"""Turn the constants of ``main`` into one tuple parameter.

Weights then live outside the library: an artifact stores them aligned and the runtime maps them
from the file, so that a process that loads a model does not copy them and the operating system
may drop their pages.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["WEIGHTS_PARAM", "LiftWeights"]

WEIGHTS_PARAM = "weights"


@tvm.transform.module_pass(opt_level=0, name="LiftWeights")
class LiftWeights:
    """Replace each distinct tensor constant by an item of a trailing tuple parameter.

    Attributes
    ----------
    weights : list[tvm.runtime.Tensor]
        Filled by the pass: the items of the tuple, in order.
    """

    def __init__(self) -> None:
        self.weights: list[tvm.runtime.Tensor] = []

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        gvar = mod.get_global_var("main")
        lifter = _Lifter(mod, mod[gvar])
        mod[gvar] = lifter.lifted()
        self.weights = lifter.weights
        return mod


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self.weights: list[tvm.runtime.Tensor] = []
        self._func = func
        self._items: dict[tvm.ir.GenericConst, int] = {}
        constants: list[tvm.ir.GenericConst] = []

        def collect(expr: relax.Expr) -> None:
            if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
                if expr not in self._items:
                    self._items[expr] = len(constants)
                    constants.append(expr)

        relax.analysis.post_order_visit(func.body, collect)
        self.weights = [constant.value for constant in constants]
        self._param = relax.Var(WEIGHTS_PARAM, relax.TupleType([c.ty for c in constants]))

    def lifted(self) -> relax.Function:
        body = self.visit_expr(self._func.body)
        return relax.Function(
            [*self._func.params, self._param],
            body,
            self._func.ret_ty,
            self._func.is_pure,
            self._func.attrs,
        )

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        if op not in self._items:
            return op
        return relax.TupleGetItem(self._param, self._items[op])
