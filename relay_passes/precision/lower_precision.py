"""Store activations and weights as float16 or bfloat16 (``precision="mixed"`` and alike).

Products (convolutions, matrices) take operands of 16 bits, and what lies between two of them stays
so. All else is float32: operators that are not declared otherwise (``float16=``), those that
the user names, those with a constant that float16 cannot hold, and what follows the last product
(decoding of boxes, softmax, logits). A tensor is converted once for all who read it, where it is
made, so that the conversion is fused with the kernel that makes it; a constant is converted now.

TVM's own ``ToMixedPrecision`` keeps its policy in the operators' registry, where a node of a model
cannot be an exception, rounds after each product and each element-wise operator, and converts
constants that become infinite. What is rounded in a kernel of ours is what it stores, see
:mod:`~tvm_edge.relay_passes.precision.calculate_in_float32`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import (
    array_of,
    const,
    constant_of,
    is_call,
    static_shape,
)
from tvm_edge.relay_passes.ir.locations import emit_at
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.precision.precision_plan import PrecisionPlan, is_float32, is_product
from tvm_edge.relay_passes.precision.round_weights import round_weights
from tvm_edge.relay_passes.precision.stored_arithmetic import call_arithmetic

__all__ = ["LoweredPrecision", "lower_precision"]


@dataclass(frozen=True)
class LoweredPrecision:
    """A model in lower precision.

    Attributes
    ----------
    module : tvm.IRModule
    types : dict of int to str
        The lower type or ``"float32"`` by node of the user's model, if it has a float result.
    reasons : dict of int to str
        Why a node that could have been of the lower type is not.
    unfit : dict of int to str
        Those of them with a constant that the lower type cannot hold.
    casts : int
        Conversions of tensors in a run.
    """

    module: tvm.IRModule
    types: dict[int, str]
    reasons: dict[int, str]
    unfit: dict[int, str]
    casts: int


def lower_precision(
    mod: tvm.IRModule,
    kind: str,
    exceptions: Mapping[int, str] | None = None,
    dtype: str = "float16",
) -> LoweredPrecision:
    """Convert ``main``, whose parameters and results keep their types.

    Parameters
    ----------
    mod : IRModule
        Simplified and placed, operators not legalised yet.
    kind : str
        Kind of the device that has the lower type; operators on others stay as they are.
    exceptions : mapping of int to str
        Nodes of the user's model that stay float32, and why.
    dtype : {"float16", "bfloat16"}
    """
    gvar = mod.get_global_var("main")
    plan = PrecisionPlan(mod[gvar], kind, exceptions or {}, dtype)
    converter = _Converter(mod, plan)
    converter.builder_.update_func(gvar, converter.visit_expr(mod[gvar]))
    types, reasons, unfit = plan.of_nodes()
    return LoweredPrecision(converter.builder_.get(), types, reasons, unfit, converter.casts)


@mutator
class _Converter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, plan: PrecisionPlan) -> None:
        super().__init__(mod)
        self._plan = plan
        self._dtype = "float32"  # what is visited is to be
        self._in_dataflow = False
        self._made: dict[relax.Var, relax.Var] = {}
        self._casts: dict[tuple[relax.Var, str], relax.Var] = {}
        self._constants: dict[tvm.ir.GenericConst, relax.Expr] = {}
        self.casts = 0

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is made in a dataflow block is not visible outside of it, its results excepted.
        outside = dict(self._made), dict(self._casts)
        self._in_dataflow = True
        block = super().visit_dataflow_block_(block)
        self._in_dataflow = False
        self._made, self._casts = outside
        return block

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        if var in self._plan.lowered:
            self._dtype = self._plan.dtype
            self._round_weights(binding.value)
            kernel = self._with_constant(binding.value)
            value = self.visit_expr(binding.value) if kernel is None else kernel
            value = self.builder_.normalize(value)
            self._dtype = "float32"
            self._made[var] = emit_at(self.builder_, value, var)
            if self._in_dataflow and not isinstance(var, relax.DataflowVar):
                result = self._converted(self._made[var], "float32")
                self._casts[var, "float32"] = emit_at(self.builder_, result, var, output=True)
                self.set_var_remap(var, self._casts[var, "float32"])
        else:
            super().visit_var_binding_(binding)
        if isinstance(var.ty, relax.TensorType):
            for dtype in sorted(self._plan.wanted.get(var, ())):
                self._form(var, dtype)

    def _round_weights(self, call: relax.Expr) -> None:
        """Round the constant weights of a product together."""
        if not is_product(call):
            return
        weights = constant_of(call.args[1])
        if weights is None or weights.ndim < 2 or call.args[1] in self._constants:
            return
        if is_call(call, "relax.matmul"):
            axes = [weights.ndim - 2]
        elif prod(weights.shape[2:]) > 1:
            axes = list(range(2, weights.ndim))
        else:
            axes = [str(call.attrs.kernel_layout).index("I")]
        self._constants[call.args[1]] = const(
            round_weights(weights, axes, self._plan.dtype), self._plan.dtype
        )

    def _with_constant(self, call: relax.Expr) -> relax.Call | None:
        """Make the kernel of an operator one of whose operands is a bias, or alike, in float32."""
        shape, how = static_shape(call.ty), of_call(call).float16
        arithmetic = None if how is None else how.arithmetic
        if arithmetic is None or shape is None:
            return None
        values = [constant_of(arg) for arg in call.args]
        if all(value is None or value.size >= prod(shape) for value in values):
            return None
        args = [
            self.visit_expr(arg) if value is None else arg
            for arg, value in zip(call.args, values, strict=True)
        ]
        device = vdevice_of(call.ty)
        return call_arithmetic(self.builder_, str(call.op.name), args, shape, device, self._dtype)

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self._read(op, super().visit_var_)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        return self._read(op, super().visit_dataflow_var_)

    def _read(self, var: relax.Var, visit: Any) -> relax.Expr:
        if self._dtype != "float32" and var in self._plan.tuples:
            return self.visit_expr(self._plan.tuples[var])
        if isinstance(var.ty, relax.TensorType) and is_float32(var.ty):
            return self._form(var, self._dtype)
        return self._made[var] if var in self._made else visit(var)

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        if self._dtype == "float32" or not is_float32(op.ty):
            return op
        if op not in self._constants:
            self._constants[op] = const(array_of(op.value), self._dtype)
        return self._constants[op]

    def _form(self, var: relax.Var, dtype: str) -> relax.Expr:
        """A tensor of float32 in one of both types, converted once."""
        made = self._made.get(var, self.get_var_remap(var))
        made = var if made is None else made
        if str(made.ty.dtype) == dtype:
            return made
        if (var, dtype) not in self._casts:
            self._casts[var, dtype] = emit_at(self.builder_, self._converted(made, dtype), var)
        return self._casts[var, dtype]

    def _converted(self, made: relax.Var, dtype: str) -> relax.Expr:
        if str(made.ty.dtype) == dtype:
            return made
        self.casts += 1
        return relax.op.astype(made, dtype)
