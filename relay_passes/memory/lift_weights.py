"""Turn the constants of ``main`` into one tuple parameter.

Weights then live outside the library: an artifact stores them aligned and the runtime maps them
from the file, so that a process that loads a model does not copy them and the operating system
may drop their pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import all_bindings
from tvm_edge.relay_passes.ir.vdevices import reading_device
from tvm_edge.relay_passes.memory.stream_weights import asks_for_part
from tvm_edge.runtime.device_plan import STREAMED

__all__ = ["WEIGHTS_PARAM", "LiftWeights", "Weight"]

WEIGHTS_PARAM = "weights"


@dataclass(frozen=True)
class Weight:
    """Constant outside of the code.

    Attributes
    ----------
    value : tvm.runtime.Tensor
    device : int
        Position, among the module's virtual devices, of the one that reads it;
        :data:`~tvm_edge.runtime.device_plan.STREAMED` if a kernel gets it from the runtime.
    """

    value: tvm.runtime.Tensor
    device: int


@tvm.transform.module_pass(opt_level=0, name="LiftWeights")
class LiftWeights:
    """Replace each distinct tensor constant by an item of a trailing tuple parameter.

    A constant that kernels of two devices read becomes two items.

    Attributes
    ----------
    weights : list[Weight]
        Filled by the pass: the items of the tuple, in order.
    """

    def __init__(self) -> None:
        self.weights: list[Weight] = []

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        gvar = mod.get_global_var("main")
        lifter = _Lifter(mod, mod[gvar])
        mod[gvar] = lifter.lifted()
        self.weights = lifter.weights
        return mod


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self._mod = mod
        self._func = func
        self._device = 0
        self._items: dict[tuple[tvm.ir.GenericConst, int], int] = {}
        for binding in all_bindings(func.body):
            value, device = binding.value, _device(mod, binding.value)
            if isinstance(value, relax.If):  # what is in its branches comes by itself
                value = relax.Tuple([value.true_branch.body, value.false_branch.body])
            self._collect(value, device)
        self._collect(func.body.body, 0)
        self.weights = [Weight(constant.value, device) for constant, device in self._items]
        types = [constant.ty for constant, _ in self._items]
        self._param = relax.Var(WEIGHTS_PARAM, relax.TupleType(types))

    def _collect(self, value: relax.Expr, device: int) -> None:
        def visit(expr: relax.Expr) -> None:
            if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
                self._items.setdefault((expr, device), len(self._items))

        relax.analysis.post_order_visit(value, visit)

    def lifted(self) -> relax.Function:
        body = self.visit_expr(self._func.body)
        return relax.Function(
            [*self._func.params, self._param],
            body,
            self._func.ret_ty,
            self._func.is_pure,
            self._func.attrs,
        )

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        outside, self._device = self._device, _device(self._mod, binding.value)
        super().visit_var_binding_(binding)
        self._device = outside  # that of an If, whose branch may result in a constant

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        item = self._items.get((op, self._device))
        return op if item is None else relax.TupleGetItem(self._param, item)


def _device(mod: tvm.IRModule, value: relax.Expr) -> int:
    return STREAMED if asks_for_part(value) else reading_device(mod, value)
